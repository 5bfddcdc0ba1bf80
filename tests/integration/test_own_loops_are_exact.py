"""Loops that are not ours, recorded by two lines: the plan made of what the recorder finds is what they send."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import polars as pl
import pytest

pytest.importorskip("torch", reason="torch is not installed: the loops train with it")

from own_loops import LOOPS
from sentence_checker import complaints

import tracekit
from tracekit.analyzers.ledger import ledger
from tracekit.plan import memory, plan
from tracekit.plan.schema import PLACES
from tracekit.report.sentences import sentences
from tracekit.training import environment

pytestmark = pytest.mark.integration

TIMEOUT_S = 300.0
UNKNOWN = {"ddp-power-hook": "what the hook powerSGD_hook sends instead of gradients cannot be planned"}
PLANNED = [name for name in LOOPS if name not in UNKNOWN]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a run of each loop, all recorded by one process and its forks."""
    path = tmp_path_factory.mktemp("loops")
    script = Path(__file__).with_name("own_loops.py")
    done = subprocess.run(
        [sys.executable, script, path],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return path


def opened(folder, name):
    run = tracekit.open(folder / name, cache=False)
    assert run.manifest.world_size == LOOPS[name][0]
    return run


@pytest.mark.parametrize("name", PLANNED)
def test_nothing_is_unexplained(folder, name):
    run = opened(folder, name)
    assert run.manifest.strategy == name.partition("-")[0]
    rest = ledger(run, by=PLACES).filter(pl.col("term") == "unexplained")
    sizes = ("numel", "payload_bytes", "backend_numel")
    wrong = rest.filter(pl.any_horizontal((pl.col(size) != 0) | pl.col(size).is_null() for size in sizes))
    assert wrong.is_empty(), wrong
    assert rest.select("rank", "step").unique().height == 2 * run.manifest.world_size


@pytest.mark.parametrize("name", PLANNED)
def test_what_is_held_is_what_was_planned(folder, name):
    run = opened(folder, name)
    for rank in run.manifest.ranks:
        planned = dict(memory(run.manifest, rank.rank).select("component", "held_bytes").iter_rows())
        held = msgspec.to_builtins(rank.held_bytes)
        assert {component: planned[component] for component in held} == held


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_cannot_be_planned_is_not(folder, name):
    run = opened(folder, name)
    assert run.manifest.strategy == "unknown"
    assert plan(run.manifest).is_empty()
    assert UNKNOWN[name] in (folder / name / "manifest.json").read_text()


@pytest.mark.parametrize("name", LOOPS)
def test_what_is_said_of_the_volume_is_true(folder, name):
    run = opened(folder, name)
    assert complaints(run, sentences(run)) == []
