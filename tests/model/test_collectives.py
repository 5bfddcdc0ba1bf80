from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from kineto import GLOO, document, kernel, mark, span, step, write

import tracekit
from tracekit.analyzers.breakdown import breakdown
from tracekit.analyzers.overlap import overlap
from tracekit.model.collectives.bucket_layers import _bucket_spans
from tracekit.model.collectives.buckets_among import buckets_among
from tracekit.model.collectives.calls import op_sizes


def collectives(tmp_path: Path, events: list[dict[str, Any]]) -> pl.DataFrame:
    return tracekit.open(write(tmp_path / "r.json", [step(1, 0, 1000), *events])).collectives


def nccl(name: str, numel: int | None, dtype: str | None, **more: Any) -> dict[str, Any]:
    args = {
        "Collective name": name,
        "In msg nelems": numel,
        "Out msg nelems": numel,
        "dtype": dtype,
        "Group size": 4,
    } | more
    return {k: v for k, v in args.items() if v is not None}


@pytest.mark.parametrize(
    ("args", "payload", "passes", "wire"),
    [
        (
            {
                "Collective name": "_allgather_base",
                "In msg nelems": 250,
                "Out msg nelems": 1000,
                "dtype": "Float",
            },
            4000,
            1,
            3000,
        ),
        (
            {
                "Collective name": "_reduce_scatter_base",
                "In msg nelems": 1000,
                "Out msg nelems": 250,
                "dtype": "Float",
            },
            4000,
            1,
            3000,
        ),
        (
            {"Collective name": "allreduce", "In msg nelems": 1000, "Out msg nelems": 1000, "dtype": "Float"},
            4000,
            2,
            6000,
        ),
        (
            {
                "Collective name": "allreduce",
                "In msg nelems": 1000,
                "Out msg nelems": 1000,
                "dtype": "Mystery",
            },
            None,
            2,
            None,
        ),
        (
            {"Collective name": "broadcast", "In msg nelems": 3, "Out msg nelems": 3, "dtype": "Long"},
            24,
            1,
            18,
        ),
    ],
)
def test_payload_passes_and_wire(tmp_path: Path, args: dict[str, Any], payload: int, passes: int, wire: int) -> None:
    row = kernel("ncclDevKernel_Generic", 10, 5, stream=20, correlation=1, args={**args, "Group size": 4})
    table = collectives(tmp_path, row)
    assert table.select("payload_bytes", "passes", "wire_bytes").rows() == [(payload, passes, wire)]


def test_three_nested_rows_and_a_kernel_are_one_collective(tmp_path: Path) -> None:
    events = [
        span("c10d::allreduce_", 100, 50, Input_Dims=[[], [], [], []], Input_type=["TensorList"]),
        span("record_param_comms", 105, 40, Input_Dims=[[], []], Input_type=["TensorList"]),
        mark("nccl:all_reduce", 110, 30) | {"args": {"Input Dims": [[394241]], "Input type": ["float"]}},
        *kernel("ncclKernel_AllReduce_RING_LL_Sum_float", 160, 30, stream=20, correlation=1, launch=120),
    ]
    table = collectives(tmp_path, events)
    assert table.select("kind", "payload_bytes", "bytes_from", "issued_ns", "start_ns", "dur_ns").rows() == [
        ("all_reduce", 1576964, "annotation", 120_000, 160_000, 30_000)
    ]


def test_waits_are_no_collectives(tmp_path: Path) -> None:
    wait = span(
        "record_param_comms",
        10,
        5,
        Collective_name="wait",
        dtype="Byte",
        In_msg_nelems=0,
        Out_msg_nelems=0,
        Group_size=1,
    )
    assert collectives(tmp_path, [wait]).height == 0


def test_a_call_without_work_has_no_times(tmp_path: Path) -> None:
    table = collectives(
        tmp_path, [span("c10d::allreduce_", 10, 5, Input_Dims=[[[7]], [], []], Input_type=["TensorList"])]
    )
    assert table.select("kind", "in_numel", "payload_bytes", "start_ns", "dur_ns", "exposed_ns").rows() == [
        ("all_reduce", 7, None, None, None, None)
    ]


def gloo(name: str, ts: float, dur: float, numel: int, dtype: str = "float") -> dict[str, Any]:
    return mark(f"gloo:{name}", ts, dur, tid=GLOO) | {"args": {"Input Dims": [[numel]], "Input type": [dtype]}}


def test_gloo_runs_a_reduce_scatter_as_all_reduce_and_both_are_told(tmp_path: Path) -> None:
    call = span("c10d::_reduce_scatter_base_", 10, 5, Input_Dims=[[50], [100], [], []], Input_type=["float", "float"])
    compute = span("aten::mm", 20, 10)
    table = collectives(tmp_path, [call, compute, gloo("all_reduce", 22, 20, 100)])
    assert table.select(
        "kind", "backend_kind", "passes", "payload_bytes", "group_size", "overlapped_ns", "exposed_ns"
    ).rows() == [("reduce_scatter", "all_reduce", 1, 400, 2, 8_000, 12_000)]


def test_gloo_spans_find_their_calls_by_kind_size_and_order(tmp_path: Path) -> None:
    sizes = [100, 60, 100]
    calls = [span("c10d::allreduce_", 10 * (i + 1), 2, Input_Dims=[[[n]], []]) for i, n in enumerate(sizes)]
    spans = [gloo("all_reduce", 50, 10, 60), gloo("all_reduce", 61, 10, 100), gloo("all_reduce", 72, 10, 100)]
    table = collectives(tmp_path, [*calls, *spans]).sort("issued_ns")
    assert table.select("issued_ns", "start_ns", "in_numel").rows() == [
        (10_000, 61_000, 100),
        (20_000, 50_000, 60),
        (30_000, 72_000, 100),
    ]


def test_a_gloo_span_from_before_the_window_belongs_to_no_call(tmp_path: Path) -> None:
    call = span("c10d::allreduce_", 30, 2, Input_Dims=[[[100]], []])
    table = collectives(tmp_path, [gloo("all_reduce", 5, 10, 100), call, gloo("all_reduce", 40, 10, 100)])
    assert table.select("issued_ns", "start_ns", "kind").rows() == [
        (None, 5_000, "all_reduce"),
        (30_000, 40_000, "all_reduce"),
    ]


def test_gloo_spans_of_calls_without_shapes_match_by_order(tmp_path: Path) -> None:
    table = collectives(tmp_path, [span("c10d::allreduce_", 10, 2), gloo("all_reduce", 20, 10, 321)])
    assert table.select("issued_ns", "in_numel", "dtype", "payload_bytes").rows() == [(10_000, 321, "float32", 1284)]


@pytest.mark.parametrize(
    ("kind", "dims", "sizes"),
    [
        ("all_gather", "[[512],[256],[],[]]", (256, 512)),
        ("reduce_scatter", "[[8192,384],[65536,384],[]]", (25165824, 3145728)),
        ("all_reduce", "[[[256000]],[],[]]", (256000, 256000)),
        ("all_reduce", "[[[3,4],[5]],[]]", (17, 17)),
        ("all_reduce", "[[[]],[]]", (1, 1)),
        ("all_reduce", "[[],[]]", (None, None)),
        ("all_gather", "[[[4],[4]],[[2],[2]]]", (4, 8)),
        ("all_to_all", "[[6144],[6144]]", (6144, 6144)),
        ("broadcast", "[]", (None, None)),
        ("broadcast", "not json", (None, None)),
        ("broadcast", '{"a": 1}', (None, None)),
    ],
)
def test_sizes_from_operator_shapes(kind: str, dims: str, sizes: tuple[int | None, int | None]) -> None:
    assert op_sizes(kind, dims) == sizes


@pytest.mark.parametrize(
    ("buckets", "spans"),
    [
        ([5, 7], ["layers.1", "layers.0"]),
        ([8, 4], ["layers.1..layers.0", "layers.0"]),
        ([12], ["layers.1..layers.0"]),
        ([12, 12], ["layers.1..layers.0", "layers.1..layers.0"]),
        ([6, 6], None),
        ([5], None),
        ([], []),
    ],
)
def test_buckets_are_read_only_where_the_sums_meet(buckets: list[int], spans: list[str] | None) -> None:
    gradients = [(2, "layers.1"), (3, "layers.1"), (3, "layers.0"), (4, "layers.0")]
    assert _bucket_spans(buckets, gradients) == spans


B, OUT = True, False


@pytest.mark.parametrize(
    ("numels", "inside", "kept"),
    [
        # A metric of 5 numbers after backward, before it, in between, and as large as a gradient.
        ([800, 400, 5], [B, B, OUT], [0, 1]),
        ([5, 800, 400], [OUT, B, B], [1, 2]),
        ([800, 5, 400, 5], [B, OUT, B, OUT], [0, 2]),
        ([800, 400, 200], [B, B, OUT], [0, 1]),
        # The last bucket is sent after the last operator of backward.
        ([800, 400, 5], [B, OUT, OUT], [0, 1]),
        ([800, 5, 400], [B, OUT, OUT], [0, 2]),
        # Two passes, a metric after each; a small call in backward, as batch norm's.
        ([1200, 5, 1200, 5], [B, OUT, B, OUT], [0, 2]),
        ([800, 12, 400], [B, B, B], [0, 2]),
        # A large call in backward that is no gradient, a pass that is cut, metrics alone, nothing.
        ([800, 100, 400], [B, B, B], None),
        ([800, 5], [B, OUT], None),
        ([5, 5], [OUT, OUT], None),
        ([], [], None),
    ],
)
def test_buckets_are_found_among_what_the_loop_sends_itself(numels, inside, kept) -> None:
    assert buckets_among(numels, inside, [200, 300, 300, 400]) == kept


def comms(ts: float, numel: int, ident: int, *, name: str = "_allgather_base", dtype: str = "Float") -> dict[str, Any]:
    args = {
        "Collective name": name,
        "In msg nelems": numel,
        "Out msg nelems": 4 * numel,
        "Group size": 4,
        "dtype": dtype,
    }
    return span("record_param_comms", ts, 5) | {"args": {**args, "External id": ident}}


@pytest.mark.parametrize(
    "outer", [span("c10d::allgather_into_tensor_coalesced_", 100, 30), mark("nccl:coalesced", 100, 30)]
)
def test_coalesced_collectives_are_added(tmp_path: Path, outer: dict[str, Any]) -> None:
    own = {"External id": 13, "Collective name": "_allgather_base", "In msg nelems": 300, "Out msg nelems": 1200}
    row = kernel(
        "ncclDevKernel_AllGather", 150, 50, stream=20, correlation=2, launch=121, args=own | {"dtype": "Float"}
    )
    table = collectives(tmp_path, [outer, comms(101, 100, 11), comms(107, 200, 12), comms(113, 300, 13), *row])
    assert table.select("kind", "out_numel", "payload_bytes", "dur_ns").rows() == [("all_gather", 2400, 9600, 50_000)]


def test_coalesced_collectives_of_two_dtypes_are_unknown_and_not_one_of_them(tmp_path: Path) -> None:
    rows = [mark("nccl:coalesced", 100, 30), comms(101, 100, 11), comms(107, 200, 12, dtype="BFloat16")]
    assert collectives(tmp_path, rows).select("kind", "out_numel", "payload_bytes").rows() == [
        ("all_gather", None, None)
    ]


def test_a_call_of_two_kernels_is_one_collective_whose_pause_hides_nothing(tmp_path: Path) -> None:
    events = [
        comms(50, 100, 77) | {"dur": 20},
        *kernel("ncclDevKernel_AllGather", 60, 10, stream=20, correlation=2, launch=55),
        *kernel("gemm", 80, 50, stream=7, correlation=1, launch=5),
        *kernel("ncclDevKernel_AllGather", 150, 10, stream=20, correlation=3, launch=56),
    ]
    run = tracekit.open(write(tmp_path / "r.json", [step(1, 0, 1000), *events]))
    assert run.collectives.select("start_ns", "dur_ns", "overlapped_ns", "exposed_ns").rows() == [
        (60_000, 100_000, 0, 20_000)
    ]
    times = overlap(run).select("num_collectives", "comm_ns", "overlapped_ns", "exposed_ns").rows()
    assert times == [(1, 20_000, 0, 20_000)]


def test_kernels_of_one_call_side_by_side_count_once(tmp_path: Path) -> None:
    events = [
        comms(50, 100, 77) | {"dur": 20},
        *kernel("ncclDevKernel_AllGather", 200, 100, stream=20, correlation=2, launch=55),
        *kernel("ncclDevKernel_AllGather", 210, 100, stream=21, correlation=3, launch=56),
    ]
    run = tracekit.open(write(tmp_path / "r.json", [step(1, 0, 1000), *events]))
    assert run.collectives.select("dur_ns", "overlapped_ns", "exposed_ns").rows() == [(110_000, 0, 110_000)]
    assert overlap(run).select("comm_ns", "exposed_ns").rows() == [(110_000, 110_000)]


def test_a_crossing_on_one_lane_is_no_overlap_in_any_table(tmp_path: Path) -> None:
    events = [
        *kernel("gemm", 10, 100, stream=7, correlation=1),
        *kernel("ncclDevKernel_AllGather", 60, 100, stream=7, correlation=2),
    ]
    run = tracekit.open(write(tmp_path / "r.json", [step(1, 0, 1000), *events]))
    assert run.collectives.select("overlapped_ns", "exposed_ns").rows() == [(0, 100_000)]
    assert overlap(run).select("overlapped_ns", "exposed_ns").rows() == [(0, 100_000)]
    parts = breakdown(run).select("step_ns", "compute_ns", "exposed_comm_ns", "residual_ns").rows()
    assert parts == [(150_000, 50_000, 100_000, 0)]


@pytest.mark.parametrize(("sent", "received"), [(-1, -4), (2**61, 2**62), (2**40, 2**62)])
def test_impossible_sizes_are_unknown(tmp_path: Path, sent: int, received: int) -> None:
    args = {"Collective name": "_allgather_base", "In msg nelems": sent, "Out msg nelems": received, "dtype": "Float"}
    row = kernel(
        "ncclDevKernel_AllGather", 60, 10, stream=20, correlation=2, args={**args, "Group size": 5_000_000_000}
    )
    table = collectives(tmp_path, row)
    assert table.select("payload_bytes", "wire_bytes", "group_size").rows() == [(None, None, None)]


def test_an_all_gather_that_tells_only_its_input_is_filled_from_the_group(tmp_path: Path) -> None:
    args = {"Collective name": "_allgather_base", "In msg nelems": 100, "Group size": 4, "dtype": "Float"}
    row = kernel("ncclDevKernel_AllGather", 60, 10, stream=20, correlation=2, args=args)
    assert collectives(tmp_path, row).select("out_numel", "payload_bytes").rows() == [(400, 1600)]


def test_an_external_id_of_0_links_nothing(tmp_path: Path) -> None:
    events = [
        comms(50, 100, 0),
        *kernel("gemm", 60, 10, stream=7, correlation=2, launch=20, args={"External id": 0}),
    ]
    run = tracekit.open(write(tmp_path / "r.json", [step(1, 0, 1000), *events]))
    assert run.work["class"].to_list() == ["compute"]


@pytest.mark.parametrize("indent", [None, 1, 4])
def test_layout_of_the_json_costs_no_dtype(tmp_path: Path, indent: int | None) -> None:
    args = {"Input Dims": [[1000]], "Input type": ["float"]}
    events = [step(1, 0, 1000), mark("gloo:all_reduce", 15, 100, tid=GLOO) | {"args": args}]
    path = tmp_path / "r.json"
    path.write_text(json.dumps(document(events), indent=indent))
    found = tracekit.open(path).collectives
    assert found.select("dtype", "payload_numel", "payload_bytes").rows() == [("float32", 1000, 4000)]


@pytest.mark.parametrize("category", ["user_annotation", "cpu_op", "Operator"])
def test_a_backends_span_is_communication_in_any_category(tmp_path: Path, category: str) -> None:
    spans = [mark("gloo:all_reduce", 15, 100, tid=GLOO) | {"cat": category}, span("aten::mm", 20, 40)]
    run = tracekit.open(write(tmp_path / "r.json", [step(1, 0, 1000), *spans]))
    assert sorted(run.work.select("class", "name").rows()) == [("comm", "gloo:all_reduce"), ("compute", "aten::mm")]
