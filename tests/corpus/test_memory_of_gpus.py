"""Memory of public GPU traces: the allocator's totals at every event, and what a model of it reserves for them."""

from __future__ import annotations

import os
from pathlib import Path

import polars as pl
import pytest

import tracekit
from tracekit.plan.footprint.allocator import SMALL_BLOCK, CachingAllocator

CORPUS = Path(os.environ.get("TRACEKIT_CORPUS", Path(__file__).parents[3] / "shared" / "corpus"))
pytestmark = [
    pytest.mark.corpus,
    pytest.mark.skipif(not CORPUS.is_dir(), reason=f"no public traces at {CORPUS} (set TRACEKIT_CORPUS)"),
]
# The second has 28,010 events that are out of order in the file.
NAMES = ["h100-memory-modules.json.gz", "ddp-2rank-v100-memory.json.gz"]


@pytest.fixture(scope="module", params=NAMES)
def run(request):
    return tracekit.open(CORPUS / request.param, cache=False)


def on_gpu(table: pl.DataFrame) -> pl.DataFrame:
    return table.filter(pl.col("device") != "cpu")


def test_each_event_changes_the_total_by_its_own_bytes(run):
    """The recorded totals are those of running sums, in the order of time that the events are put in."""
    rows = on_gpu(run.allocations)
    assert rows.height > 2000
    assert (rows["allocated_bytes"].diff().drop_nulls() == rows["delta_bytes"].slice(1)).all()


def test_the_curve_is_the_recorded_total_and_its_categories_add_up(run):
    curve, rows = on_gpu(run.table("memory")), on_gpu(run.allocations)
    assert curve["allocated_bytes"].to_list() == rows["allocated_bytes"].to_list()
    parts = [
        name for name in curve.columns if name.endswith("_bytes") and name not in ("allocated_bytes", "reserved_bytes")
    ]
    assert (curve.select(pl.sum_horizontal(parts)).to_series() == curve["allocated_bytes"]).all()
    assert min(curve[name].min() for name in parts) >= 0


def test_every_free_ends_the_block_of_its_address(run):
    blocks = on_gpu(run.blocks)
    freed = on_gpu(run.allocations).filter(pl.col("delta_bytes") < 0, pl.col("category") != "before the window")
    assert blocks["end_ns"].count() == freed.height
    assert (blocks["end_from"].drop_nulls() == "recorded").all()


def test_the_model_reserves_what_was_reserved(run):
    """Within 2 % at the peak; what was reserved and free when the recording began is where its blocks then lie."""
    rows = on_gpu(run.allocations)
    made = rows.filter(pl.col("delta_bytes") > 0).select("address", end=pl.col("address") + pl.col("delta_bytes"))
    device = CachingAllocator()
    known = rows["reserved_bytes"][0]
    for address, end, largest in regions(made.sort("address").rows()):
        device.add_free(address, end - address, small=largest <= SMALL_BLOCK)
    free = device.reserved
    for delta, address in rows.select("delta_bytes", "address").iter_rows():
        if delta > 0:
            device.allocate(address, delta)
        else:
            device.free(address)
    assert known + device.peak_reserved - free == pytest.approx(rows["reserved_bytes"].max(), rel=0.02)
    assert device.peak_allocated <= rows["allocated_bytes"].max()


def regions(spans: list[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """Begin and end of each piece of memory that the spans cover without a gap, and the largest of its spans."""
    merged: list[list[int]] = []
    for start, end in spans:
        if merged and start <= merged[-1][1]:
            merged[-1][1:] = [max(merged[-1][1], end), max(merged[-1][2], end - start)]
        else:
            merged.append([start, end, end - start])
    return [tuple(piece) for piece in merged]
