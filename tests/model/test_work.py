from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kineto import AG, BACKWARD, COMMON, GEMM, GLOO, flow, kernel, mark, span, step, write

import tracekit
from tracekit.model import names


def classes(tmp_path: Path, events: list[dict[str, Any]]) -> list[tuple[str, str]]:
    run = tracekit.open(write(tmp_path / "r.json", [step(5, 1000, 500), *events]))
    return run.work.select("name", "class").rows()


def test_common_fixture(tmp_path: Path) -> None:
    run = tracekit.open(write(tmp_path / "r.json", COMMON))
    assert run.work.select("class", "device", "lane", "start_ns", "dur_ns", "launched_ns").rows() == [
        ("compute", "cuda:0", "stream 7", 1_010_000, 100_000, 1_005_000),
        ("comm", "cuda:0", "stream 20", 1_060_000, 100_000, 1_055_000),
    ]
    assert run.collectives.select("kind", "kind_from", "overlapped_ns", "exposed_ns", "payload_bytes").rows() == [
        ("all_gather", "name", 50_000, 50_000, None)
    ]


@pytest.mark.parametrize(
    "name",
    [
        "ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)",
        "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "nccldevkernel_allgather_ring_ll",
        "ncclSymkDevKernel_AllGather_LL",
        "rcclGenericKernel",
        "oneccl_allreduce",
        "void vllm::cross_device_reduce_2stage<__nv_bfloat16, 8>(RankData*)",
        "two_shot_all_reduce_kernel",
        "multimem_all_gather_kernel",
        "void deep_ep::intranode::dispatch<4>(int4*)",
        "mscclKernel_Sum_half_LL_Simple",
        "hcom_allReduce_",
        "void trtllm::allreduce_fusion::kernel<4>",
        "ncclBroadcastRingLLKernel_copy_i8(ncclColl)",
    ],
)
def test_names_of_communication_kernels(tmp_path: Path, name: str) -> None:
    assert classes(tmp_path, kernel(name, 1010, 10, stream=20, correlation=1)) == [(name, "comm")]


@pytest.mark.parametrize(
    "name",
    [
        "ampere_sgemm_128x64",
        "triton_poi_fused_padmask_0",
        "reduce_kernel<512, 1>",
        "void at::native::sync_thing",
        "broadcast_tensors",
    ],
)
def test_names_of_compute_kernels(tmp_path: Path, name: str) -> None:
    assert classes(tmp_path, kernel(name, 1010, 10, stream=7, correlation=1)) == [(name, "compute")]


def test_sync_rows_and_gpu_annotations_are_no_work(tmp_path: Path) -> None:
    wait = span("Stream Wait Event", 1110, 50, cat="cuda_sync", tid=7, pid=0, device=0, stream=7, correlation=9)
    drawn = span("FSDP::all_gather", 1060, 100, cat="gpu_user_annotation", tid=20, pid=0)
    run = tracekit.open(write(tmp_path / "r.json", [*COMMON, wait, drawn]))
    assert run.work.height == 2
    assert run.collectives["overlapped_ns"].item() == 50_000


def test_peer_copy_inside_a_collective_call_is_communication(tmp_path: Path) -> None:
    call = span(
        "record_param_comms",
        1040,
        40,
        Collective_name="allgather",
        dtype="Float",
        In_msg_nelems=10,
        Out_msg_nelems=40,
    )
    copy = kernel("Memcpy PtoP (Device -> Device)", 1060, 100, stream=20, correlation=2, cat="gpu_memcpy")
    alone = kernel("Memcpy PtoP (Device -> Device)", 1300, 10, stream=21, correlation=3, cat="gpu_memcpy")
    run = tracekit.open(write(tmp_path / "r.json", [step(5, 1000, 500), *GEMM, call, *copy, *alone]))
    assert run.work["class"].to_list() == ["compute", "comm", "copy"]
    assert run.collectives.select("kind", "payload_bytes", "overlapped_ns").rows() == [("all_gather", 160, 50_000)]


def test_unknown_device_rows_are_other_and_kept(tmp_path: Path) -> None:
    odd = span("mystery", 1010, 10, cat="hpu_op", tid=3, pid=0, device=0, stream=3)
    ccp = span("mtia thing", 1030, 10, cat="mtia_ccp_events", tid=4, pid=0)
    assert classes(tmp_path, [odd, ccp]) == [("mystery", "other"), ("mtia thing", "other")]


def test_launches_of_all_threads_count(tmp_path: Path) -> None:
    events = [
        step(5, 1000, 100),
        *kernel("a", 1010, 5, stream=7, correlation=1),
        *kernel("b", 1090, 50, stream=7, correlation=2, tid=BACKWARD),
    ]
    run = tracekit.open(write(tmp_path / "r.json", events))
    assert run.work["step"].to_list() == [5, 5]


def test_no_launch_event_falls_back_to_time_and_says_so(tmp_path: Path) -> None:
    run = tracekit.open(
        write(
            tmp_path / "r.json",
            [step(5, 1000, 100), *kernel("k", 1050, 5, stream=7, correlation=1, launch=-1)],
        )
    )
    assert run.work.select("step", "linked_by", "launched_ns").rows() == [(5, "time", None)]


def test_operators_by_their_own_time_are_the_compute_of_a_cpu_run(tmp_path: Path) -> None:
    events = [
        step(1, 0, 100),
        span("aten::linear", 10, 50),
        span("aten::t", 12, 3),
        span("aten::mm", 20, 30),
        span("c10d::allreduce_", 70, 20, Input_Dims=[[[8]]]),
        span("aten::view", 91, 1, tid=GLOO),
        mark("gloo:all_reduce", 90, 9, tid=GLOO),
    ]
    run = tracekit.open(write(tmp_path / "r.json", events))
    assert run.work.select("name", "class", "start_ns", "dur_ns").rows() == [
        ("aten::linear", "compute", 10_000, 2_000),
        ("aten::t", "compute", 12_000, 3_000),
        ("aten::linear", "compute", 15_000, 5_000),
        ("aten::mm", "compute", 20_000, 30_000),
        ("aten::linear", "compute", 50_000, 10_000),
        ("c10d::allreduce_", "other", 70_000, 20_000),
        ("gloo:all_reduce", "comm", 90_000, 9_000),
    ]


def test_the_frames_of_autograd_are_no_work_and_what_runs_in_them_is(tmp_path: Path) -> None:
    events = [
        step(1, 0, 100),
        span("autograd::engine::evaluate_function: MmBackward0", 10, 50),
        span("MmBackward0", 12, 40),
        span("aten::mm", 20, 30),
        span("RegisterPostBackwardFunctionBackward", 70, 20),
    ]
    run = tracekit.open(write(tmp_path / "r.json", events))
    assert run.work.select("name", "start_ns", "dur_ns").rows() == [("aten::mm", 20_000, 30_000)]


def test_the_same_kernel_name_decides_kind_only_when_nothing_better_is_known(tmp_path: Path) -> None:
    args = {
        "Collective name": "allreduce",
        "In msg nelems": 5,
        "Out msg nelems": 5,
        "dtype": "BFloat16",
        "Group size": 4,
    }
    row = kernel("ncclDevKernel_SendRecv_RING", 1010, 10, stream=20, correlation=1, args=args)
    run = tracekit.open(write(tmp_path / "r.json", [step(5, 1000, 100), *row]))
    assert run.collectives.select("kind", "kind_from", "bytes_from", "payload_bytes", "wire_bytes").rows() == [
        ("all_reduce", "args", "args", 10, 15)
    ]


@pytest.mark.parametrize(
    ("spelling", "kind"),
    [
        ("_allgather_base", "all_gather"),
        ("nccl:_all_gather_base", "all_gather"),
        ("c10d::_allgather_base_", "all_gather"),
        ("gloo:all_gather", "all_gather"),
        ("c10d::_reduce_scatter_base_", "reduce_scatter"),
        ("allreduce", "all_reduce"),
        ("c10d::alltoall_base_", "all_to_all"),
        ("all_to_allv", "all_to_all"),
        ("ncclDevKernel_ReduceScatter_Sum_f32", "reduce_scatter"),
        ("ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)", None),
        ("wait", None),
        ("", None),
        (None, None),
    ],
)
def test_spellings_of_collectives(spelling: str | None, kind: str | None) -> None:
    assert names.kind_of(spelling) == kind


def test_a_trace_of_one_kernel_and_one_of_none(tmp_path: Path) -> None:
    assert tracekit.open(write(tmp_path / "one.json", AG[1:])).work["class"].to_list() == ["comm"]
    none = tracekit.open(write(tmp_path / "none.json", [step(5, 0, 10)]))
    assert (none.work.height, none.collectives.height, none.allocations.height) == (0, 0, 0)


@pytest.mark.parametrize("category", ["cuda_driver", "xpu_runtime", "mtia_runtime", "hip_runtime", "Runtime"])
def test_launches_of_every_backend(tmp_path: Path, category: str) -> None:
    launch = span("launch", 1010, 2, cat=category, correlation=9)
    row = kernel("k", 1300, 5, stream=7, correlation=9, launch=-1)
    run = tracekit.open(write(tmp_path / "r.json", [step(5, 1000, 100), step(6, 1100, 900), launch, *row]))
    assert run.work.select("step", "linked_by").rows() == [(5, "correlation")]


@pytest.mark.parametrize("name", ["Memcpy DtoD (Device -> Device)", "CopyDeviceToDevice"])
def test_a_copy_with_the_collectives_own_id_is_the_collective(tmp_path: Path, name: str) -> None:
    args = {"Collective name": "_allgather_base", "In msg nelems": 10, "Out msg nelems": 40, "dtype": "Float"}
    call = span("record_param_comms", 1040, 40) | {"args": {**args, "External id": 31}}
    copy = kernel(name, 1060, 100, stream=20, correlation=2, cat="gpu_memcpy", args={"External id": 31})
    run = tracekit.open(write(tmp_path / "r.json", [step(5, 1000, 500), *GEMM, call, *copy]))
    assert run.work["class"].to_list() == ["compute", "comm"]
    assert run.collectives.select("kind", "payload_bytes", "overlapped_ns").rows() == [("all_gather", 160, 50_000)]


def test_a_row_with_a_stream_and_no_category_is_kept(tmp_path: Path) -> None:
    odd = span("mystery", 1010, 10, pid=0, tid=3, device=0, stream=3)
    del odd["cat"]
    assert classes(tmp_path, [odd]) == [("mystery", "other")]


@pytest.mark.parametrize(("start", "length"), [(1090, 50), (1005, 5), (1010, 30), (1050, 10)])
def test_legal_crossings_on_one_stream_are_kept(tmp_path: Path, start: float, length: float) -> None:
    events = [*kernel("a", 1005, 100, stream=7, correlation=1), *kernel("b", start, length, stream=7, correlation=2)]
    run = tracekit.open(write(tmp_path / "r.json", [step(5, 1000, 500), *events]))
    assert sorted(run.work["dur_ns"].to_list()) == sorted([100_000, int(length * 1000)])
    assert run.repairs.height == 0


@pytest.mark.parametrize("category", ["ac2g", "async", "async_cpu_to_gpu"])
def test_a_flow_links_a_row_whose_launch_has_no_event(tmp_path: Path, category: str) -> None:
    row = kernel("k", 1300, 5, stream=7, correlation=9, launch=-1)
    events = [step(5, 1000, 100), step(6, 1100, 900), flow("s", 9, 1050, cat=category), *row]
    run = tracekit.open(write(tmp_path / "r.json", events))
    assert run.work.select("step", "linked_by", "launched_ns").rows() == [(5, "flow", 1_050_000)]


def test_correlation_zero_is_nobodys_launch(tmp_path: Path) -> None:
    gemm = kernel("gemm", 1050, 10, stream=7, correlation=0, launch=-1)
    flow = {"ph": "s", "cat": "ac2g", "name": "ac2g", "id": 0, "pid": 1, "tid": 100, "ts": 1010}
    run = tracekit.open(write(tmp_path / "r.json", [step(5, 1000, 200), *gemm, flow]))
    assert run.work.select("launched_ns", "linked_by").rows() == [(None, "time")]
