"""Small inputs from public reports (kinds of work, overlap and steps, waiting) with their right answers.

The threads are named where they were told; each test is one member of a kind.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from gpu import Rank
from kineto import BACKWARD, COMMON, GEMM, kernel, span, step, write

import tracekit
from tracekit.analyzers import hta
from tracekit.analyzers.breakdown import breakdown
from tracekit.analyzers.groups import groups
from tracekit.analyzers.overlap import overlap
from tracekit.analyzers.skew import mismatches, skew
from tracekit.analyzers.volume import volume
from tracekit.model.run import Run

AG = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
ARGS = {
    "Collective name": "_allgather_base",
    "In msg nelems": 10,
    "Out msg nelems": 40,
    "Group size": 4,
    "dtype": "Float",
}


def opened(tmp_path: Path, events: list[dict[str, Any]]) -> Run:
    return tracekit.open(write(tmp_path / "rank0.json", events))


def test_collective_without_metadata_lowers_the_coverage(tmp_path: Path) -> None:
    """mlcommons/chakra#178, pytorch/pytorch#131462."""
    args = [ARGS, None, ARGS]
    rows = [
        row for n, a in enumerate(args) for row in kernel(AG, 1010 + 20 * n, 9, stream=20, correlation=n + 1, args=a)
    ]
    row = volume(opened(tmp_path, [step(5, 1000, 200), *rows]))
    assert row.select("num_collectives", "payload_bytes", "coverage").rows() == [(3, 320, 2 / 3)]


def test_a_group_of_one_spelling_tells_nothing_of_the_collective(tmp_path: Path) -> None:
    """NVIDIA/nccl#739, ROCm/roctracer#101: RCCL shows one generic kernel for everything."""
    told = kernel("ncclDevKernel_Generic(args)", 1010, 9, stream=20, correlation=1, args=ARGS)
    bare = kernel("ncclDevKernel_Generic(args)", 1030, 9, stream=20, correlation=2)
    run = opened(tmp_path, [step(5, 1000, 200), *told, *bare])
    assert run.collectives.select("kind", "kind_from").rows() == [("all_gather", "args"), ("other", None)]


def test_two_communication_streams_at_once(tmp_path: Path) -> None:
    """facebookresearch/HolisticTraceAnalysis#4: 120 us of union, 70 exposed, 41.67 % of the union hidden."""
    scatter = kernel("ncclDevKernel_ReduceScatter_Sum_f32", 1080, 100, stream=24, correlation=3)
    run = opened(tmp_path, [*COMMON, *scatter])
    row = overlap(run, by=["step"]).select("comm_ns", "overlapped_ns", "exposed_ns", "overlap_ratio").row(0)
    assert row == (120_000, 50_000, 70_000, pytest.approx(50 / 120))
    assert run.collectives["dur_ns"].sum() == 200_000
    assert hta.comm_comp_overlap(run)["overlap_percent"].item() == 41.67


def test_back_to_back_on_one_stream_is_no_overlap(tmp_path: Path) -> None:
    rows = [*kernel("gemm", 1010, 50, stream=7, correlation=1), *kernel(AG, 1060, 50, stream=7, correlation=2)]
    assert overlap(opened(tmp_path, [step(5, 1000, 200), *rows]))["overlapped_ns"].to_list() == [0]


def test_a_tiny_kernel_inside_a_collective_hides_its_own_length(tmp_path: Path) -> None:
    rows = [*kernel("gemm", 1040, 3, stream=7, correlation=1), *kernel(AG, 1010, 90, stream=20, correlation=2)]
    assert overlap(opened(tmp_path, [step(5, 1000, 200), *rows]))["overlapped_ns"].to_list() == [3_000]


def test_no_step_marks_make_one_window_and_no_step(tmp_path: Path) -> None:
    """facebookresearch/HolisticTraceAnalysis#238."""
    run = opened(tmp_path, COMMON[1:])
    assert run.steps["step"].to_list() == [None]
    assert breakdown(run).select("step", "compute_ns", "exposed_comm_ns").rows() == [(None, 100_000, 50_000)]


def test_the_last_step_counts(tmp_path: Path) -> None:
    """HTA trims the last step: with the all-reduce in it, communication was gone."""
    reduce = kernel("ncclDevKernel_AllReduce_Sum_f32", 1220, 30, stream=20, correlation=9)
    run = opened(tmp_path, [step(5, 1000, 200), *GEMM, step(6, 1200, 200), *reduce])
    assert overlap(run).select("step", "kind", "exposed_ns").rows() == [(6, "all_reduce", 30_000)]


def test_the_gpu_mark_of_a_step_is_not_its_extent(tmp_path: Path) -> None:
    """pytorch/kineto#1022: in backward it covered the first kernel only, launched from another thread."""
    early = kernel("fwd", 1010, 5, stream=7, correlation=1)
    late = kernel("bwd", 1150, 20, stream=7, correlation=2, tid=BACKWARD)
    drawn = span("ProfilerStep#5", 1010, 5, cat="gpu_user_annotation", tid=7, pid=0)
    run = opened(tmp_path, [step(5, 1000, 200), *early, *late, drawn])
    assert run.work["step"].to_list() == [5, 5]
    assert breakdown(run).select("step_ns", "compute_ns", "idle_ns").rows() == [(160_000, 25_000, 135_000)]


def test_waiting_is_not_transfer(tmp_path: Path) -> None:
    """vllm-project/vllm#52777: starts 0, 100, 200, 900, all end at 930."""
    for number, start in enumerate([0, 100, 200, 900]):
        rank = Rank(number, 4)
        rank.step(1, 0, 3000)
        rank.collective("all_reduce", 1000 + start, 930 - start, issued=50, stream=24, shard=8)
        rank.write(tmp_path)
    table = skew(tracekit.open(tmp_path)).sort("rank")
    assert table.select("transfer_ns", "wait_ns", "last_rank").rows() == [
        (30_000, 900_000, 3),
        (30_000, 800_000, 3),
        (30_000, 700_000, 3),
        (30_000, 0, 3),
    ]


def test_groups_are_matched_apart_and_one_extra_is_counted(tmp_path: Path) -> None:
    """AMD-AGI/TraceLens#60: two tensor-parallel groups, ids that differ by rank, one rank with one more collective."""
    for number in range(4):
        rows = [step(1, 0, 3000)]
        calls = [f"tp{number // 2}"] * (3 if number == 1 else 2) + [f"dp{number % 2}"]
        for place, name in enumerate(calls):
            args = {**ARGS, "Group size": 2, "Process Group Name": name, "External id": 1000 * number + place + 1}
            rows += kernel(AG, 100 + 50 * place, 20 + number, stream=20, correlation=place + 1, args=args)
        write(tmp_path / f"rank{number}.json", rows, rank=number, world_size=4)
    run = tracekit.open(tmp_path)
    by_group = run.collectives.group_by("group").agg(pl.col("wait_ns").null_count(), pl.len()).sort("group")
    # tp0 has the extra one: nobody can tell which it is, so it tells no waits; the others are certain.
    assert by_group.rows() == [("dp0", 0, 2), ("dp1", 0, 2), ("tp0", 5, 5), ("tp1", 0, 4)]
    assert mismatches(run).select("group", "num_collectives", "num_elsewhere").rows() == [("tp0", 3, 2)]
    assert groups(run).select("group", "num_ranks", "num_collectives").rows() == [
        ("dp0", 2, 2),
        ("dp1", 2, 2),
        ("tp0", 2, 5),
        ("tp1", 2, 4),
    ]
