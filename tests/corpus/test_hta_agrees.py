"""HTA as a second opinion on every public trace that it can digest, fed by our frames, in integer nanoseconds.

HTA sees our classification (names are opaque to it), so what is compared is its arithmetic of intervals with ours.
"""

from __future__ import annotations

import os
from pathlib import Path

import polars as pl
import pytest

import tracekit
from tracekit import intervals
from tracekit.analyzers import hta
from tracekit.analyzers.overlap import overlap

CORPUS = Path(os.environ.get("TRACEKIT_CORPUS", Path(__file__).parents[3] / "shared" / "corpus"))
pytestmark = [
    pytest.mark.corpus,
    pytest.mark.skipif(not CORPUS.is_dir(), reason=f"no public traces at {CORPUS} (set TRACEKIT_CORPUS)"),
]
TRACES = [
    "dlrm-ddp-8rank-v100",
    "two-of-128-ranks",
    "ddp-2rank-a100-full-args.json.gz",
    "ddp-2rank-v100-memory.json.gz",
    "torchrec-16rank-a100-rank0.json.gz",
    "vllm-tp8-b200-rank0.json.gz",
    "rank-34.gloo-ddp-300rank.pt.trace.json.gz",
    "h100-memory-modules.json.gz",
    "hip-graph-replay.json.gz",
    "cuda-event-sync.json.gz",
    "gpu-user-annotation.json.gz",
    "triton-rocm-small.json.gz",
    "list-at-top-level-2021.pt.trace.json.gz",
]
WITHOUT_COMMUNICATION = {
    "h100-memory-modules.json.gz",
    "hip-graph-replay.json.gz",
    "cuda-event-sync.json.gz",
    "gpu-user-annotation.json.gz",
    "triton-rocm-small.json.gz",
    "list-at-top-level-2021.pt.trace.json.gz",
}


def unions(run: tracekit.Run, kind: str) -> dict[int, int]:
    """Length of the union of all work of a class, by rank."""
    rows = run.work.filter(pl.col("class") == kind)
    return {
        rank: intervals.length(intervals.union(part["start_ns"], part["start_ns"] + part["dur_ns"]))
        for (rank,), part in rows.group_by("rank")
    }


@pytest.mark.parametrize("name", TRACES)
def test_compute_time_agrees_to_the_nanosecond(name: str) -> None:
    run = tracekit.open(CORPUS / name)
    table = hta.temporal_breakdown(run)
    assert dict(table.select("rank", "compute_ns").iter_rows()) == unions(run, "compute")


@pytest.mark.parametrize("name", [name for name in TRACES if name not in WITHOUT_COMMUNICATION])
def test_overlap_agrees(name: str) -> None:
    run = tracekit.open(CORPUS / name)
    ours = overlap(run, by=["rank"]).select("rank", "comm_ns", "overlapped_ns")
    theirs = hta.comm_comp_overlap(run)
    both = ours.join(theirs, on="rank")
    assert both.height == ours.height
    for row in both.iter_rows(named=True):
        # HTA prints a percentage of two digits.
        assert row["overlap_percent"] == pytest.approx(100 * row["overlapped_ns"] / row["comm_ns"], abs=0.0051)
