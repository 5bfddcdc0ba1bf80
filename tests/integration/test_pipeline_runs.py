"""Pipelines that torch itself ran over gloo: what the table and the first sentence say of GPipe and of 1F1B."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

import tracekit
from tracekit.report.sentences import sentences

pytest.importorskip("torch", reason="torch is not installed: it runs torch's own pipelines")
pytestmark = pytest.mark.integration
SCHEDULES = ("ScheduleGPipe", "Schedule1F1B")
MICRO_BATCHES = 4


@pytest.fixture(scope="module")
def pipelines(tmp_path_factory):
    """The folder of both recordings, from one start of four ranks."""
    folder = tmp_path_factory.mktemp("pipeline")
    program = Path(__file__).with_name("pipeline_ranks.py")
    subprocess.run(
        [sys.executable, str(program), str(folder), *SCHEDULES], check=True, capture_output=True, timeout=180
    )
    return folder


@pytest.fixture(params=SCHEDULES)
def run(pipelines, request):
    return tracekit.open(pipelines / request.param)


def test_the_rows_of_a_step_add_up_to_its_length(run):
    parts = run.table("pipeline").group_by("rank", "step").agg(pl.col("busy_ns", "transfer_ns", "bubble_ns").sum())
    found = {(rank, step): sum(ns) for rank, step, *ns in parts.iter_rows()}
    assert found == {(rank, step): ns for rank, step, ns in
                     run.table("breakdown").select("rank", "step", "step_ns").iter_rows()}  # fmt: skip


def test_every_rank_is_a_stage_and_every_transfer_meets_its_peer(run):
    table = run.table("pipeline")
    assert set(table.select("rank", "stage").iter_rows()) == {(rank, rank) for rank in range(4)}
    sent = run.collectives.filter(pl.col("kind").is_in(["send", "recv"]))
    assert set(sent["matched_by"]) == {"peer"}
    assert sent["wait_ns"].null_count() == 0
    # Of each micro-batch activations and gradients cross three borders.
    steps = run.steps["step"].n_unique()
    assert sent["kind"].value_counts().sort("kind").rows() == [
        (kind, 2 * 3 * MICRO_BATCHES * steps) for kind in ("recv", "send")
    ]


def test_the_first_sentence_is_on_the_bubble(run):
    assert sentences(run)[0].startswith("The pipeline's ranks stood idle or waited for one another (its bubble) for ")
    assert "at least" not in sentences(run)[0]


def test_micro_batches_are_those_of_the_schedules_marks(pipelines):
    marked = tracekit.open(pipelines / "ScheduleGPipe").table("pipeline")
    assert marked["micro_batch"].drop_nulls().unique().sort().to_list() == list(range(MICRO_BATCHES))
    assert set(marked.drop_nulls("micro_batch")["phase"]) == {"forward", "backward"}
    # torch marks nothing of 1F1B.
    assert tracekit.open(pipelines / "Schedule1F1B").table("pipeline")["micro_batch"].count() == 0
