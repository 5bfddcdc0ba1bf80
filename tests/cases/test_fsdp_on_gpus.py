"""FSDP2-shaped steps on several GPUs: per-layer overlap, waits and causes, right by the numbers that made them.

A step of three units: the root "", layers.0, layers.1. Forward gathers each and computes 100 us a layer; backward runs
layers.1 and layers.0 with a reduce-scatter each. Gathers and reductions have a stream of their own.
"""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from gpu import COMPUTE_STREAM, ERAS, GATHER_STREAM, REDUCE_STREAM, Rank

import tracekit
from tracekit.analyzers.breakdown import breakdown
from tracekit.analyzers.causes.advice import ADVICE
from tracekit.analyzers.causes.exposure import exposure, ideal
from tracekit.analyzers.groups import concurrency
from tracekit.analyzers.overlap import overlap
from tracekit.analyzers.skew import skew, stragglers
from tracekit.model.run import Run

LAYERS = ("layers.0", "layers.1")
GATHER, COMPUTE, REDUCE = 40, 100, 60


def forward(rank: Rank, start: float, *, prefetch: bool, late: float = 0, early: float = 0) -> float:
    """Gather and compute each layer; returns when the last compute ends.

    Without prefetch a gather starts when the compute before it ends, with it when that compute starts. `early`: this
    rank enters each gather so much before the others. `late`: the CPU issues everything so much too late.
    """
    at = start
    issue = start - 50
    for number, layer in enumerate(LAYERS):
        gather_at = at if number == 0 or not prefetch else at - COMPUTE
        gather_at += late
        issued = (issue + 1 if not late else gather_at - 4) - early
        rank.annotate(f"FSDP::pre_forward ({layer})", issued - 1, 8)
        rank.annotate(f"FSDP::all_gather ({layer})", issued, 6)
        call = {"issued": issued, "stream": GATHER_STREAM, "shard": 1000, "seq": number}
        rank.collective("all_gather", gather_at - early, GATHER + early, **call)
        compute_at = max(at, gather_at + GATHER)
        launched = issue + 10 if not late else compute_at - 2
        rank.kernel("gemm", compute_at, COMPUTE, launched=launched)
        rank.annotate(f"FSDP::post_forward ({layer})", issue + 12, 2)
        at, issue = compute_at + COMPUTE, issue + 20
    return at


def opened(tmp_path: Path, ranks: list[Rank]) -> Run:
    for rank in ranks:
        rank.write(tmp_path)
    return tracekit.open(tmp_path)


def causes(run: Run, rank: int = 0) -> dict[tuple[str | None, str], int]:
    table = exposure(run).filter(pl.col("rank") == rank)
    return {(layer, cause): ns for layer, cause, ns in table.select("layer", "cause", "exposed_ns").iter_rows()}


def exposed(run: Run, rank: int = 0) -> dict[str | None, tuple[int, int]]:
    table = overlap(run, by=["rank", "layer"]).filter(pl.col("rank") == rank)
    return {layer: (o, e) for layer, o, e in table.select("layer", "overlapped_ns", "exposed_ns").iter_rows()}


def fsdp(tmp_path: Path, num_ranks: int, *, prefetch: bool, late: float = 0) -> Run:
    ranks = [Rank(r, num_ranks) for r in range(num_ranks)]
    for rank in ranks:
        rank.step(3, 0, 1000)
        end = forward(rank, 100, prefetch=prefetch, late=late)
        # Something of the same step follows, so that the last gather is not the end of it.
        rank.kernel("head", end, 10, launched=end - 200)
    return opened(tmp_path, ranks)


@pytest.mark.parametrize("num_ranks", [2, 3, 8])
def test_without_prefetch_every_gather_is_exposed(tmp_path: Path, num_ranks: int) -> None:
    run = fsdp(tmp_path, num_ranks, prefetch=False)
    for rank in range(num_ranks):
        assert exposed(run, rank) == {"layers.0": (0, 40_000), "layers.1": (0, 40_000)}
        assert causes(run, rank) == {("layers.0", "first use"): 40_000, ("layers.1", "no prefetch"): 40_000}


def test_with_prefetch_the_second_gather_is_hidden(tmp_path: Path) -> None:
    run = fsdp(tmp_path, 2, prefetch=True)
    assert exposed(run) == {"layers.0": (0, 40_000), "layers.1": (40_000, 0)}
    assert causes(run) == {("layers.0", "first use"): 40_000}


def test_a_late_launch_is_the_cpus(tmp_path: Path) -> None:
    run = fsdp(tmp_path, 2, prefetch=False, late=30)
    assert causes(run) == {("layers.0", "first use"): 40_000, ("layers.1", "launched late"): 40_000}


def test_a_late_rank_is_the_cause_of_the_waiting_and_only_for_that(tmp_path: Path) -> None:
    ranks = [Rank(r, 3) for r in range(3)]
    for rank in ranks:
        rank.step(3, 0, 1000)
        end = forward(rank, 100, prefetch=False, early=[25, 10, 0][rank.rank])
        rank.kernel("head", end, 10, launched=end - 200)
    run = opened(tmp_path, ranks)
    assert causes(run, 0) == {
        ("layers.0", "late rank"): 25_000,
        ("layers.0", "first use"): 40_000,
        # The early part of the second gather still ran under the first layer's compute.
        ("layers.1", "link"): 40_000,
    }
    assert causes(run, 2) == {("layers.0", "first use"): 40_000, ("layers.1", "no prefetch"): 40_000}
    table = skew(run)
    assert table["last_rank"].unique().to_list() == [2]
    assert table.filter(pl.col("rank") == 1).select("transfer_ns", "wait_ns").rows() == [(40_000, 10_000)] * 2
    assert stragglers(run).select("rank", "num_last", "waited_ns", "made_others_wait_ns").rows() == [
        (0, 0, 50_000, 0),
        (1, 0, 20_000, 0),
        (2, 2, 0, 50_000),
    ]


def backward(tmp_path: Path, *, reduce: float, one_stream: bool = False) -> Run:
    """Two layers of backward compute at 100..200 and 200..300, their reductions after each, one gather beside."""
    ranks = [Rank(r, 2) for r in range(2)]
    stream = GATHER_STREAM if one_stream else REDUCE_STREAM
    for rank in ranks:
        rank.step(3, 0, 1000)
        rank.kernel("bwd1", 100, 100, launched=50)
        rank.kernel("bwd0", 200, 100, launched=60)
        rank.annotate("FSDP::post_backward_reduce (layers.1)", 69, 15)
        rank.collective("reduce_scatter", 200, reduce, issued=70, stream=stream, shard=500, seq=1)
        rank.annotate("FSDP::post_backward_reduce (layers.0)", 89, 15)
        second = max(300, 200 + reduce) if stream == GATHER_STREAM else 300
        rank.collective("reduce_scatter", second, reduce, issued=90, stream=stream, shard=500, seq=2)
        rank.annotate("Optimizer.step#AdamW.step", 400, 20)
        rank.kernel("adam", 600, 10, launched=405)
    return opened(tmp_path, ranks)


def test_the_last_reduction_has_nothing_left_to_hide_under(tmp_path: Path) -> None:
    run = backward(tmp_path, reduce=60)
    assert exposed(run) == {"layers.1": (60_000, 0), "layers.0": (0, 60_000)}
    assert causes(run) == {("layers.0", "end of step"): 60_000}


def test_what_outlasts_the_compute_beside_it_is_the_link(tmp_path: Path) -> None:
    run = backward(tmp_path, reduce=150)
    # 200..350 outlasts the compute that ends at 300; of the second, 300..450, what comes after 350 is its own.
    assert causes(run) == {("layers.1", "link"): 50_000, ("layers.0", "end of step"): 100_000}


def test_causes_add_up_to_the_exposed_time_and_every_cause_has_advice(tmp_path: Path) -> None:
    run = backward(tmp_path, reduce=150)
    total = overlap(run, by=["rank"]).select("rank", "exposed_ns").sort("rank").rows()
    table = exposure(run)
    assert table.group_by("rank").agg(pl.col("exposed_ns").sum()).sort("rank").rows() == total
    assert set(table["cause"]) <= set(ADVICE)
    assert table["advice"].null_count() == 0


def test_queued_behind_another_on_its_stream(tmp_path: Path) -> None:
    ranks = [Rank(r, 2) for r in range(2)]
    for rank in ranks:
        rank.step(3, 0, 1000)
        rank.kernel("a", 100, 50, launched=50)
        rank.collective("all_gather", 120, 80, issued=60, stream=GATHER_STREAM, shard=10, seq=1)
        rank.collective("reduce_scatter", 201, 30, issued=70, stream=GATHER_STREAM, shard=10, seq=2)
        rank.kernel("b", 240, 50, launched=100)
    run = opened(tmp_path, ranks)
    # 120..200 is alone from 150 on; 201..231 had waited for it since 72.
    assert causes(run) == {(None, "link"): 50_000, (None, "serialised"): 30_000}


def test_bound_and_breakdown(tmp_path: Path) -> None:
    run = fsdp(tmp_path, 2, prefetch=False)
    # 100 gather 140 compute 240 gather 280 compute 380 head 390: 290 us, of which 80 exposed and 210 compute.
    row = breakdown(run).filter(pl.col("rank") == 0)
    assert row.select("step_ns", "compute_ns", "exposed_comm_ns", "idle_ns", "residual_ns").rows() == [
        (290_000, 210_000, 80_000, 0, 0)
    ]
    assert ideal(run).filter(pl.col("rank") == 0).select("exposed_ns", "hideable_ns", "ideal_ns").rows() == [
        (80_000, 80_000, 210_000)
    ]


def test_two_streams_in_flight_together(tmp_path: Path) -> None:
    rank = Rank(0, 1)
    rank.step(3, 0, 1000)
    rank.kernel("gemm", 10, 100, launched=5, stream=COMPUTE_STREAM)
    rank.collective("all_gather", 60, 100, issued=1, stream=GATHER_STREAM, shard=8)
    rank.collective("reduce_scatter", 80, 100, issued=20, stream=REDUCE_STREAM, shard=8)
    run = opened(tmp_path, [rank])
    total = overlap(run, by=["rank"]).select("comm_ns", "overlapped_ns", "exposed_ns").rows()
    assert total == [(120_000, 50_000, 70_000)]
    pair = concurrency(run).select("first_ns", "second_ns", "concurrent_ns").rows()
    # Both belong to one group, so it is its kinds that pair.
    assert pair == [(100_000, 100_000, 80_000)]


@pytest.mark.parametrize("era", ERAS)
def test_every_age_of_torch_tells_kind_size_layer_and_match(tmp_path: Path, era: str) -> None:
    ranks = [Rank(r, 2, era) for r in range(2)]
    for rank in ranks:
        rank.step(3, 0, 1000)
        rank.annotate("FSDP::all_gather (layers.0)", 95, 12)
        rank.collective(
            "all_gather", 200, 40 + rank.rank, issued=96, stream=GATHER_STREAM, shard=1000, seq=4, dtype="BFloat16"
        )
        rank.annotate("FSDP::post_backward_reduce (layers.0)", 295, 12)
        rank.collective("reduce_scatter", 400, 60, issued=296, stream=REDUCE_STREAM, shard=500, seq=5)
        rank.collective("all_reduce", 500, 10, issued=396, stream=REDUCE_STREAM, shard=50, seq=6)
    run = opened(tmp_path, ranks)
    first = run.collectives.filter(pl.col("rank") == 0)
    assert first.select("kind", "layer", "payload_bytes", "issued_ns").rows() == [
        ("all_gather", "layers.0", 4000, 98_000),
        ("reduce_scatter", "layers.0", 4000, 298_000),
        ("all_reduce", None, 400, 398_000),
    ]
    assert run.collectives["num_matched"].to_list() == [2] * 6
    if era != "1.13" and era != "2.0":
        assert first["group_size"].to_list() == [2, 2, 2]
        assert run.collectives.filter(pl.col("kind") == "all_gather").sort("rank").select(
            "transfer_ns", "wait_ns"
        ).rows() == [
            (40_000, 0),
            (40_000, 1_000),
        ]


def test_step_numbers_that_differ_by_one_between_ranks_are_the_same_steps(tmp_path: Path) -> None:
    ranks = [Rank(r, 2) for r in range(2)]
    for rank in ranks:
        for number in range(2):
            at = 1000 * number
            rank.step(2 + number + rank.rank, at, 1000)
            rank.collective("all_reduce", at + 200, 40 + rank.rank, issued=at + 96, stream=REDUCE_STREAM, shard=8)
    table = opened(tmp_path, ranks).collectives.sort("rank", "start_ns")
    assert table["num_matched"].to_list() == [2, 2, 2, 2]
    assert table["wait_ns"].to_list() == [0, 0, 1000, 1000]
