"""FSDP2 as other releases of torch record it stays readable and planned: rank 0 of two of nano, one block, one step.

How they were recorded is in tests/data/README.md.
"""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

import tracekit
from tracekit.analyzers.ledger import ledger
from tracekit.plan.schema import PLACES

DATA = Path(__file__).resolve().parents[1] / "data"
RECORDED = sorted(path.name for path in DATA.glob("torch-*"))
# Elements of a unit, each parameter padded to a multiple of two ranks: embedding, norm and output; a block.
ROOT, BLOCK = 2064, 2592
STEP = [
    ("", "forward", "all_gather", "bfloat16", ROOT),
    ("layers.0", "forward", "all_gather", "bfloat16", BLOCK),
    ("layers.0", "backward", "all_gather", "bfloat16", BLOCK),
    ("layers.0", "backward", "reduce_scatter", "float32", BLOCK),
    ("", "backward", "reduce_scatter", "float32", ROOT),
]
# Clipping: one element, or one a parameter.
NORM = {"torch-2.6.0": 1, "torch-2.9.1": 1, "torch-2.14.1": 12}


@pytest.fixture(scope="module", params=RECORDED)
def run(request):
    return tracekit.open(DATA / request.param, cache=False)


def release(run):
    return Path(run.paths[0]).name


def test_each_release_is_here():
    assert set(RECORDED) == set(NORM)


def test_the_recorder_found_all_of_it(run):
    manifest = run.manifest
    assert str(manifest.versions["torch"]).startswith(release(run).removeprefix("torch-"))
    assert (manifest.strategy, [(axis.axis, axis.size) for axis in manifest.mesh]) == ("fsdp2", [("dp_shard", 2)])
    assert [(unit.name, unit.reshard_after_forward) for unit in manifest.units] == [("layers.0", None), ("", None)]
    assert (manifest.precision.param_dtype, manifest.precision.reduce_dtype) == ("bfloat16", "float32")
    assert manifest.psi == manifest.psi_train == ROOT + BLOCK


def test_its_calls_are_read(run):
    calls = run.collectives.select("layer", "phase", "kind", "dtype", "payload_numel").rows()
    assert calls == [*STEP, (None, "optimizer", "all_reduce", "float32", NORM[release(run)])]
    assert run.table("repairs").filter(pl.col("rank") == 0).is_empty()


def test_nothing_is_unexplained(run):
    rest = ledger(run, by=PLACES).filter(pl.col("term") == "unexplained")
    assert rest.height
    assert rest.select("numel", "payload_bytes", "backend_numel").sum().row(0) == (0, 0, 0)
    assert rest.select("numel", "payload_bytes", "backend_numel").null_count().row(0) == (0, 0, 0)
    assert not rest.filter((pl.col("numel") != 0) | (pl.col("payload_bytes") != 0)).height
