"""The oracle (helpers/brute_force.py) beside numbers found by hand, by two other readers, or told with the cases."""

from __future__ import annotations

import json
from typing import Any

import pytest
from brute_force import Answer, answer
from brute_force_inputs import needs_shared, right
from brute_force_rows import ns
from kineto import kernel, mark, span, step

# Microseconds of one step on one device.
TIMES: list[tuple[str, tuple[int, str, int], dict[str, int]]] = [
    ("cases2/c01-batch-p2p", (0, "cuda:0", 5), {"comm": 40, "overlapped": 10, "compute": 60, "step": 90}),
    ("cases2/c02-xccl", (1, "xpu:0", 5), {"comm": 100, "overlapped": 50, "exposed": 50}),
    ("cases2/c03-merged", (0, "cuda:0", 5), {"comm": 100, "exposed": 50}),
    ("cases2/c03-merged", (1, "cuda:0", 5), {"comm": 100, "exposed": 100}),
    ("cases2/c04-graph/one_logical_lane.json", (0, "cuda:0", 5), {"comm": 400, "overlapped": 400, "idle": 0}),
    ("cases2/c04-graph/hardware_streams.json", (0, "cuda:0", 5), {"comm": 400, "overlapped": 400, "idle": 0}),
    ("cases2/c05-two-gpus-one-process.json", (0, "cuda:0", 5), {"step": 100, "exposed": 100}),
    ("cases2/c05-two-gpus-one-process.json", (0, "cuda:1", 5), {"step": 190, "comm": 100, "exposed": 0}),
    ("cases2/c07-profile-n", (10, "cuda:0", 5), {"compute": 20, "exposed": 100, "idle": 30}),
    ("cases2/c09-seq", (0, "cuda:0", 5), {"step": 430, "comm": 260, "idle": 170}),
    ("cases2/c09-seq", (1, "cuda:0", 5), {"step": 330, "comm": 60, "idle": 270}),
    ("cases2/c13-begin-end.json", (0, "cuda:0", 5), {"comm": 100, "overlapped": 50, "exposed": 50}),
    ("cases2/c24-bubble", (0, "cuda:0", 5), {"compute": 860, "comm": 30}),
    ("cases2/c24-bubble", (1, "cuda:0", 5), {"comm": 880, "exposed": 880}),
    ("cases2/c28-tar", (0, "cuda:0", 5), {"comm": 100, "exposed": 50}),
    ("cases2/c28-tar", (1, "cuda:0", 5), {"comm": 100, "exposed": 100}),
    ("cases2/c30-rocm-copies-on-stream-0.json", (0, "cuda:0", 5), {"step": 610, "compute": 500, "exposed_copy": 110}),
    ("cases2/c42-comm-kernel-names.json", (0, "cuda:0", 5), {"comm": 450, "compute": 0}),
    ("cases2/c43-pp-stages", (3, "cuda:0", 5), {"comm": 200, "compute": 100}),
    ("cases2/c45-gloo-2021", (0, "cpu", 5), {"step": 1000, "compute": 500, "comm": 400, "overlapped": 300}),
    ("cases2/c57-nccl-and-gloo.json", (0, "cuda:0", 5), {"comm": 100, "overlapped": 50, "exposed": 50}),
    ("corpus/list-at-top-level-2021.pt.trace.json.gz", (0, "cuda:0", 5), {"step": 208_847}),
    ("corpus/torchrec-16rank-a100-rank0.json.gz", (0, "cuda:0", 550), {"step": 208_697, "idle": 136_260}),
]
# Recorded runs whose times are told in rounded milliseconds: so many ns to a unit.
ROUNDED: list[tuple[str, tuple[int, str, int], int, dict[str, int]]] = [
    ("cases2/c01r-ring-gloo", (0, "cpu", 2), 100_000, {"comm": 2411, "compute": 2182, "overlapped": 2048}),
    ("cases2/c01r-pp-gloo", (0, "cpu", 2), 10_000, {"compute": 87, "overlapped": 8}),
]
# Collectives and payload bytes of a rank by kind, of all its steps; and how many have no known size.
DLRM = ({"all_reduce": (3, 2_485_252), "all_to_all": (5, 49_152 + 192 + 15_104)}, 0)
UNEVEN = 384 * 8 + 2_846_720 * 4  # one of long and one of int beside those of uint8
MOVED: list[tuple[str, int, dict[str, tuple[int, int]], int]] = [
    *(("corpus/dlrm-ddp-8rank-v100", rank, *DLRM) for rank in range(8)),
    (
        "corpus/ddp-2rank-a100-full-args.json.gz",
        0,
        {"all_reduce": (15, 306_684_384), "broadcast": (6, 637_440 + 1_272)},
        0,
    ),
    (
        "corpus/torchrec-16rank-a100-rank0.json.gz",
        0,
        {
            "reduce_scatter": (10, 587_202_560),
            "all_gather": (10, 73_400_320 * 8),
            "all_reduce": (10, 8_965_794_640),
            "all_to_all": (45 + 10, 136_314_880 + 4_480 + 21_554_204),  # ten of nothing launched no kernel
        },
        5,
    ),
    (
        "corpus/two-of-128-ranks",
        0,
        {
            "all_to_all": (4, 838_860_800 + UNEVEN),
            "all_gather": (2, 33_554_432 * 64),
            "all_reduce": (4, 314_195_708),
        },
        0,
    ),
    (
        "corpus/two-of-128-ranks",
        1,
        {
            "all_to_all": (4, 733_812_480 + UNEVEN),
            "all_gather": (2, 33_554_432 * 64),
            "all_reduce": (4, 284_846_792),
        },
        0,
    ),
    ("corpus/vllm-tp8-b200-rank0.json.gz", 0, {"all_gather": (1, 402_176)}, 73),
    ("corpus/ddp-2rank-v100-memory.json.gz", 1, {}, 2020),
    ("cases2/c01-batch-p2p", 0, {"send": (1, 4096), "recv": (1, 4096)}, 0),
    ("cases2/c02-xccl", 0, {"all_reduce": (1, 4000)}, 0),
    ("cases2/c08-fp8-amd.json", 0, {"all_gather": (8, 8192 * (1 + 1 + 1 + 4 + 2 + 8 + 1 + 1))}, 0),
    ("cases2/c42-comm-kernel-names.json", 0, {}, 9),
    ("cases2/c43-pp-stages", 0, {"send": (4, 16_000)}, 0),
    ("cases2/c44-replicate-gloo", 0, {"all_reduce": (4, 2 * 65 * 1024)}, 0),
]


def parts_of(found: Answer, key: tuple[int, str, int]) -> dict[str, int]:
    return {**found.windows[key]._asdict(), **(found.comm[key]._asdict() if key in found.comm else {})}


@needs_shared
@pytest.mark.corpus
@pytest.mark.parametrize(("name", "key", "expected"), TIMES)
def test_oracle_times(name: str, key: tuple[int, str, int], expected: dict[str, int]) -> None:
    parts = parts_of(right(name), key)
    assert {part: parts[part] for part in expected} == {part: us * 1000 for part, us in expected.items()}


@needs_shared
@pytest.mark.corpus
@pytest.mark.parametrize(("name", "key", "unit", "expected"), ROUNDED)
def test_oracle_recorded_times(name: str, key: tuple[int, str, int], unit: int, expected: dict[str, int]) -> None:
    parts = parts_of(right(name), key)
    assert {part: round(parts[part] / unit) for part in expected} == expected


@needs_shared
@pytest.mark.corpus
@pytest.mark.parametrize(("name", "rank", "expected", "unknown"), MOVED)
def test_oracle_bytes(name: str, rank: int, expected: dict[str, tuple[int, int]], unknown: int) -> None:
    moved = right(name).moved
    sums: dict[str, tuple[int, int]] = {}
    for (at, _, kind), (count, payload, _) in moved.known.items():
        if at == rank:
            before = sums.get(kind, (0, 0))
            sums[kind] = before[0] + count, before[1] + payload
    assert (sums, moved.unknown.get(rank, 0)) == (expected, unknown)


@needs_shared
@pytest.mark.corpus
def test_oracle_wire_bytes_of_a_group_that_only_the_header_tells() -> None:
    known = right("cases2/c44-replicate-gloo").moved.known
    assert {key: wire for key, (_, _, wire) in known.items()} == {
        (rank, step, "all_reduce"): 66_560 for rank in (0, 1) for step in (2, 3)
    }


# -- small traces, in microseconds ---------------------------------------------------------------------------------


def found_in(*events: Any) -> Answer:
    flat = [one for event in events for one in (event if isinstance(event, list) else [event])]
    return answer([("rank0.json", json.dumps({"traceEvents": flat}).encode())])


def times(found: Answer, device: str, number: int = 1) -> dict[str, int]:
    """Parts of a step that are not 0, in microseconds."""
    return {part: time // 1000 for part, time in parts_of(found, (0, device, number)).items() if time}


def test_what_was_launched_before_the_recording_opens_no_step_and_still_hides() -> None:
    found = found_in(
        step(1, 100, 100),
        kernel("gemm", 90, 30, stream=7, correlation=1, launch=-1),
        kernel("gemm", 150, 10, stream=7, correlation=2, launch=101),
        kernel("ncclDevKernel_AllReduce", 110, 20, stream=20, correlation=3, launch=102),
    )
    shown = {"step": 50, "busy": 30, "compute": 20, "exposed_comm": 10, "idle": 20, "comm": 20, "overlapped": 10}
    assert times(found, "cuda:0") == {**shown, "exposed": 10}


def test_crossing_on_one_stream_hides_nothing() -> None:
    found = found_in(
        step(1, 0, 100),
        kernel("gemm", 10, 20, stream=7, correlation=1, launch=1),
        kernel("ncclDevKernel_AllReduce", 25, 20, stream=7, correlation=2, launch=2),
    )
    shown = {"step": 35, "busy": 35, "compute": 15, "exposed_comm": 20, "comm": 20, "exposed": 20}
    assert times(found, "cuda:0") == shown


def test_step_ends_where_the_next_one_works_and_the_last_one_with_its_own_work() -> None:
    found = found_in(
        step(1, 0, 50),
        step(2, 60, 40),
        kernel("gemm", 10, 80, stream=7, correlation=1, launch=1),
        kernel("gemm", 95, 30, stream=7, correlation=2, launch=61),
    )
    assert times(found, "cuda:0", 1) == {"step": 85, "busy": 80, "compute": 80, "idle": 5}
    assert times(found, "cuda:0", 2) == {"step": 30, "busy": 30, "compute": 30}


def test_own_time_on_a_cpu_leaves_frames_calls_and_waits_out() -> None:
    found = found_in(
        step(1, 0, 100),
        span("AddmmBackward0", 0, 50),
        span("aten::mm", 10, 20),
        span("aten::resolve_conj", 12, 2),
        span("c10d::allreduce_", 60, 10),
        mark("gloo:all_reduce", 20, 30, tid=200),
        span("aten::copy_", 25, 20, tid=200),
    )
    shown = {"step": 100, "busy": 40, "compute": 20, "exposed_comm": 20, "idle": 60}
    assert times(found, "cpu") == {**shown, "comm": 30, "overlapped": 10, "exposed": 20}


@pytest.mark.parametrize(
    ("written", "expected"),
    [("4458676422880.181", 4458676422880181), ("1711964646000000.007", 1711964646000000007), (5, 5000), (None, None)],
)
def test_every_written_digit_counts(written: object, expected: int | None) -> None:
    assert ns(written) == expected
