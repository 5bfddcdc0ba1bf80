"""Random GPU steps against a calculator that looks at every microsecond: overlap, breakdown and exposure."""

from __future__ import annotations

import tempfile
from pathlib import Path

import polars as pl
from gpu import Rank
from hypothesis import given, settings
from hypothesis import strategies as st

import tracekit
from tracekit.analyzers.breakdown import breakdown
from tracekit.analyzers.causes.exposure import exposure
from tracekit.analyzers.overlap import overlap

END = 120
Piece = tuple[str, int, int, int]  # what, stream, start, duration


@st.composite
def steps(draw: st.DrawFn) -> list[Piece]:
    """Work on four streams, serial on each of them."""
    pieces: list[Piece] = []
    for stream, whats in ((7, ["gemm"]), (8, ["gemm"]), (20, ["all_gather", "all_reduce"]), (24, ["reduce_scatter"])):
        at = 0
        while draw(st.booleans()):
            start = at + draw(st.integers(0, 15))
            length = draw(st.integers(0, 25))
            if start + length > END:
                break
            pieces.append((draw(st.sampled_from(whats)), stream, start, length))
            at = start + length
    return pieces


@settings(max_examples=60, deadline=None)
@given(steps(), st.integers(1, 60))
def test_every_microsecond(pieces: list[Piece], lead: int) -> None:
    rank = Rank(0, 1)
    rank.step(1, 0, 5000)
    for number, (what, stream, start, length) in enumerate(pieces):
        at = 3000 + start
        if what == "gemm":
            rank.kernel("gemm", at, length, launched=at - lead, stream=stream)
        else:
            rank.collective(what, at, length, issued=10 * number, stream=stream, shard=4)
    with tempfile.TemporaryDirectory() as folder:
        rank.write(Path(folder))
        run = tracekit.open(folder)
    compute = {t for what, _, s, d in pieces if what == "gemm" for t in range(s, s + d)}
    comm = {t for what, _, s, d in pieces if what != "gemm" for t in range(s, s + d)}
    first = min((s for _, _, s, _ in pieces), default=0)
    last = max((s + d for _, _, s, d in pieces), default=0)

    hidden = overlap(run, by=["rank"]).select("overlapped_ns", "exposed_ns").rows()
    if any(what != "gemm" for what, *_ in pieces):
        assert hidden == [(1000 * len(comm & compute), 1000 * len(comm - compute))]
    else:
        assert hidden == []
    if pieces:
        idle = last - first - len(comm | compute)
        parts = breakdown(run).select("step_ns", "compute_ns", "exposed_comm_ns", "idle_ns", "residual_ns")
        counts = (last - first, len(compute), len(comm - compute), idle, 0)
        assert parts.rows() == [tuple(1000 * n for n in counts)]
    assert exposure(run).select(pl.col("exposed_ns").sum()).item() == 1000 * len(comm - compute)
    own = run.collectives.select((pl.col("overlapped_ns") + pl.col("exposed_ns") - pl.col("dur_ns")).abs().sum())
    assert own.item() == 0
