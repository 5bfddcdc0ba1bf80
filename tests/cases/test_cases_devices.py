"""Devices, lanes and backends: what was once assumed of a whole thread, stream or backend and is tested on its rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from cases import rows
from kineto import COMMON, GLOO, MAIN, kernel, mark, span, step, write

import tracekit
from tracekit.analyzers.breakdown import breakdown
from tracekit.analyzers.overlap import overlap
from tracekit.model.run import Run
from tracekit.report.description import summary
from tracekit.report.drawing.chart_rows import breakdown_rows
from tracekit.report.sentences import sentences

US = 1_000
PARTS = ("device", "step_ns", "compute_ns", "exposed_comm_ns", "exposed_copy_ns", "idle_ns")


def opened(folder: Path, events: list[dict[str, Any]], **facts: Any) -> Run:
    return tracekit.open(write(folder / "rank0.json", events, **facts), cache=False)


def parts(run: Run) -> list[tuple[Any, ...]]:
    return [(device, *(ns / US for ns in times)) for device, *times in breakdown(run).select(PARTS).rows()]


def hidden(run: Run) -> list[tuple[Any, ...]]:
    """Of each device: µs of communication, of it overlapped and exposed."""
    table = overlap(run, by=["rank", "device"]).drop_nulls("comm_ns").sort("device")
    times = table.select("device", "comm_ns", "overlapped_ns", "exposed_ns").rows()
    return [(device, *(ns / US for ns in found)) for device, *found in times]


# -- a span on the calling thread ------------------------------------------------------------------------------------

CALL = span("c10d::send", 1100, 10)
SEND = mark("gloo:send", 1105, 400)
MM = span("aten::mm", 1200, 100)
WORKER = mark("gloo:all_reduce", 1105, 400, tid=GLOO)
OLD = [span("ProfilerStep#5", 1000, 1000), span("aten::mm", 1010, 200)]
CALLERS: list[tuple[Any, ...]] = [
    ("an asynchronous send", [CALL, SEND, MM], 100, 400, 100),
    ("all of torch 1.9", [*OLD, span("gloo:all_reduce", 1250, 400), span("aten::mm", 1300, 300)], 500, 400, 300),
    ("nothing but a span's time", [CALL, SEND, span("aten::mm", 1110, 390)], 390, 400, 390),
    ("send and recv open at once", [CALL, SEND, mark("gloo:recv", 1110, 500), MM], 100, 505, 100),
    ("compute across its end", [CALL, SEND, span("aten::mm", 1450, 100)], 100, 400, 55),
    ("the backend's thread", [CALL, WORKER, span("aten::copy_", 1200, 100, tid=GLOO), MM], 100, 400, 100),
    ("only the backend's thread", [CALL, WORKER, span("aten::copy_", 1200, 100, tid=GLOO)], 0, 400, 0),
    ("a thread that also trains", [CALL, WORKER, span("aten::mm", 1490, 100, tid=GLOO)], 100, 400, 15),
]  # fmt: skip


@pytest.mark.parametrize(("events", "compute", "comm", "overlapped"), rows(CALLERS))
def test_a_thread_loses_its_operators_only_where_it_is_the_backends(
    tmp_path: Path, events: list[Any], compute: float, comm: float, overlapped: float
) -> None:
    marks = [] if any("ProfilerStep" in event["name"] for event in events) else [step(5, 1000, 1000)]
    run = opened(tmp_path, [*marks, *events])
    assert breakdown(run)["compute_ns"].to_list() == [compute * US]
    assert hidden(run) == [("cpu", comm, overlapped, comm - overlapped)]
    assert (run.table("hidden-by")["hidden_ns"].sum() > 0) == (overlapped > 0)


# -- a stream that is not serial -------------------------------------------------------------------------------------

GATHER = "ncclDevKernel_AllGather_RING_LL"


def on(stream: int, name: str, ts: float, dur: float, ident: int) -> list[dict[str, Any]]:
    return kernel(name, ts, dur, stream=stream, correlation=ident)


def node(name: str, ts: float, dur: float, number: int, original: int | None = None) -> dict[str, Any]:
    """A kernel of a graph that is drawn on one logical lane."""
    own = {} if original is None else {"original_stream": original}
    row = on(60, name, ts, dur, 77)[1]
    row["args"] |= {"graph id": 3, "graph node id": number, **own}
    return row


GRAPH = span("cudaGraphLaunch", 1005, 4, cat="cuda_runtime", correlation=77)
GEMMS = [(1010, 150), (1160, 150), (1310, 150)]
COPY = "Memcpy HtoD (Host -> Device)"


def copies(stream: int) -> list[dict[str, Any]]:
    return [
        *kernel(COPY, 1020, 600, stream=stream, correlation=2, cat="gpu_memcpy"),
        *kernel(COPY, 1150, 50, stream=stream, correlation=3, cat="gpu_memcpy"),
    ]


LANES: list[tuple[Any, ...]] = [
    ("a graph with its streams", [GRAPH, *(node("gemm", at, dur, n, 19) for n, (at, dur) in enumerate(GEMMS)),
                                  node(GATHER, 1050, 400, 9, 23)], (450, 450, 0, 0), (400, 400)),
    ("a graph without them", [GRAPH, *(node("gemm", at, dur, n) for n, (at, dur) in enumerate(GEMMS)),
                              node(GATHER, 1050, 400, 9)], (450, 450, 0, 0), (400, 400)),
    ("a graph's short nodes", [GRAPH, node("gemm", 1010, 60, 1), node(GATHER, 1020, 30, 2)],
     (60, 60, 0, 0), (30, 30)),
    ("a graph's compute in compute", [GRAPH, node("a", 1010, 400, 1), node("b", 1020, 100, 2)],
     (400, 400, 0, 0), None),
    ("a graph of an older torch", [GRAPH, *(on(7, name, ts, dur, 77)[1] for name, ts, dur in
                                            (("a", 1010, 400), ("b", 1020, 100)))], (400, 400, 0, 0), None),
    ("copies that all say stream 0", [*on(7, "gemm", 1010, 500, 1), *copies(0)], (610, 500, 0, 110), None),
    ("copies beside compute", [*on(7, "gemm", 1010, 500, 1), *copies(7)], (610, 500, 0, 110), None),
    ("two streams on one queue", [*on(7, GATHER, 1010, 500, 1), *on(7, "gemm", 1100, 200, 2)],
     (500, 200, 300, 0), (500, 200)),
    ("many streams on one queue", [e for n in range(4) for at in (1010 + 500 * n,) for e in
                                   (*on(7, "a", at, 400, 2 * n + 1), *on(7, "b", at + 50, 200, 2 * n + 2))],
     (1900, 1600, 0, 0), None),
]  # fmt: skip


@pytest.mark.parametrize(("events", "times", "comm"), rows(LANES))
def test_nothing_is_cut_on_a_lane_that_is_not_serial(
    tmp_path: Path, events: list[Any], times: tuple[float, ...], comm: tuple[float, float] | None
) -> None:
    run = opened(tmp_path, [step(5, 1000, 3000), *events])
    assert breakdown(run).select(pl.col(PARTS[1:5]) // US).rows() == [times]
    assert run.work["overrun_ns"].null_count() == run.work.height
    assert [row[1:3] for row in hidden(run)] == ([comm] if comm else [])
    for lane in run.work.sort("start_ns").partition_by("lane"):
        ends = lane["start_ns"] + lane["dur_ns"]
        assert (lane["start_ns"][1:] >= ends[:-1]).all()


def test_a_wrong_end_is_cut_still_and_the_copies_after_it_change_nothing(tmp_path: Path) -> None:
    events = [*on(7, "long", 1010, 3_400_000, 1), *on(7, "next", 1200, 100, 2)]
    events += kernel(COPY, 1350, 50, stream=7, correlation=3, cat="gpu_memcpy")
    run = opened(tmp_path, [step(5, 1000, 700), *events])
    assert run.work.select("name", "dur_ns").rows() == [
        ("long", 190 * US), ("next", 100 * US), (COPY, 50 * US)
    ]  # fmt: skip


# -- a backend that drives devices, and what devices are called -------------------------------------------------------


def launched(runtime: str, name: str, ts: float, dur: float, ident: int, device: int = 0, **more: Any) -> list[Any]:
    row = span(name, ts, dur, cat="kernel", pid=device, tid=64, device=device, correlation=ident, **more)
    return [span("launch", more.get("launch", ts - 5), 2, cat=runtime, correlation=ident), row]


def xccl(backend: str, kernel_id: int | None) -> list[dict[str, Any]]:
    """An all-reduce whose span on the CPU encloses the launch, or that the kernel names by its id."""
    told = {"Collective_name": "allreduce", "In_msg_nelems": 1000, "Out_msg_nelems": 1000, "dtype": "Float"}
    call = span("record_param_comms", 1030, 14, External_id=11, Group_size=2, Process_Group_Name="0", **told)
    inside = 1035 if kernel_id is None else 1050
    own = {} if kernel_id is None else {"External_id": kernel_id}
    row = span("oneccl_reduce<float>", 1060, 100, cat="kernel", pid=0, tid=65, device=0, correlation=2, **own)
    at = span("launch", inside, 2, cat="xpu_runtime", correlation=2)
    return [call, mark(f"{backend}:all_reduce", 1032, 10), at, row]


ENQUEUES: list[tuple[Any, ...]] = [
    ("xccl launches inside its span", xccl("xccl", None), [("xpu:0", 100, 50, 50)]),
    ("xccl by the id of the call", xccl("xccl", 11), [("xpu:0", 100, 50, 50)]),
    ("ucc on GPUs", xccl("ucc", None), [("xpu:0", 100, 50, 50)]),
    ("gloo beside the device", [*xccl("xccl", None), mark("gloo:all_gather", 1100, 90, tid=GLOO)],
     [("cpu", 90, 0, 90), ("xpu:0", 100, 50, 50)]),
    ("ucc on the CPU beside the device", [*xccl("xccl", None), mark("ucc:all_gather", 1100, 90, tid=GLOO)],
     [("cpu", 90, 0, 90), ("xpu:0", 100, 50, 50)]),
]  # fmt: skip


@pytest.mark.parametrize(("events", "times"), rows(ENQUEUES))
def test_a_span_that_only_enqueues_is_no_work(tmp_path: Path, events: list[Any], times: list[Any]) -> None:
    run = opened(tmp_path, [step(5, 1000, 200), *launched("xpu_runtime", "gemm_kernel", 1010, 100, 1), *events])
    assert hidden(run) == times
    assert run.collectives.height == len(times)
    assert run.table("volume").filter(kind="all_reduce")["coverage"].to_list() == [1.0]


def instant(device_type: int, device_id: int) -> dict[str, Any]:
    told = {"Bytes": 512, "Addr": 7, "Total Allocated": 512, "Total Reserved": 1024}
    where = {"Device Type": device_type, "Device Id": device_id}
    return {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": MAIN, "ts": 1020, "s": "t",
            "args": {**told, **where}}  # fmt: skip


NAMES: list[tuple[Any, ...]] = [
    ("cuda", launched("cuda_runtime", "gemm", 1010, 100, 1), instant(1, 0), "cuda:0"),
    ("the driver of cuda", launched("cuda_driver", "gemm", 1010, 100, 1, 3), instant(1, 3), "cuda:3"),
    ("hip is cuda to torch", launched("hip_runtime", "gemm", 1010, 100, 1), instant(6, 0), "cuda:0"),
    ("2021", launched("Runtime", "gemm", 1010, 100, 1), instant(1, 0), "cuda:0"),
    ("xpu", launched("xpu_runtime", "gemm", 1010, 100, 1, 1), instant(12, 1), "xpu:1"),
    ("mtia", launched("mtia_runtime", "gemm", 1010, 100, 1, 17), instant(19, 17), "mtia:17"),
    ("mtia by its rows", [span("fi", 1010, 100, cat="mtia_ccp_events", pid=17, tid=4)], instant(19, 17), "mtia:17"),
    ("hpu", launched("hpu_runtime", "gemm", 1010, 100, 1), instant(15, 0), "hpu:0"),
    ("hpu by its rows", [span("node", 1010, 100, cat="hpu_op", pid=0, device=0, stream=3)], instant(15, 0), "hpu:0"),
    ("a private backend", launched("privateuse1_runtime", "gemm", 1010, 100, 1), instant(20, 0), "privateuse1:0"),
]  # fmt: skip


@pytest.mark.parametrize(("events", "allocated", "device"), rows(NAMES))
def test_memory_and_kernels_of_one_device_have_one_name(
    tmp_path: Path, events: list[Any], allocated: dict[str, Any], device: str
) -> None:
    run = opened(tmp_path, [step(5, 1000, 200), *events, allocated])
    assert run.work["device"].to_list() == [device]
    assert run.allocations["device"].to_list() == [device]


# -- several devices of one process ----------------------------------------------------------------------------------


def of(device: int, name: str, ts: float, dur: float, ident: int, at: float) -> list[dict[str, Any]]:
    row = kernel(name, ts, dur, stream=7 + 6 * name.startswith("nccl"), correlation=ident, launch=at)
    row[1] |= {"pid": device}
    row[1]["args"]["device"] = device
    return row


SEND_ALL = "ncclDevKernel_Broadcast_RING_LL"
DEVICES: list[tuple[Any, ...]] = [
    ("two GPUs", [*of(1, "gemm", 1010, 190, 1, 1005), *of(0, SEND_ALL, 1060, 100, 2, 1055),
                  *of(1, SEND_ALL, 1060, 100, 3, 1055)],
     [("cuda:0", 100, 0, 100, 0, 0), ("cuda:1", 190, 190, 0, 0, 0)],
     [("cuda:0", 100, 0, 100), ("cuda:1", 100, 100, 0)]),
    ("one does nothing else", [*of(0, "gemm", 1010, 100, 1, 1005), *of(1, SEND_ALL, 1010, 100, 2, 1005)],
     [("cuda:0", 100, 100, 0, 0, 0), ("cuda:1", 100, 0, 100, 0, 0)], [("cuda:1", 100, 0, 100)]),
    ("one waits", [*of(0, "gemm", 1010, 10, 1, 1005), *of(1, "gemm", 1010, 10, 2, 1005),
                   *of(1, "gemm", 1110, 10, 3, 1100)],
     [("cuda:0", 10, 10, 0, 0, 0), ("cuda:1", 110, 20, 0, 0, 90)], []),
]  # fmt: skip


@pytest.mark.parametrize(("events", "times", "comm"), rows(DEVICES))
def test_each_device_has_a_step_of_its_own(
    tmp_path: Path, events: list[Any], times: list[Any], comm: list[Any]
) -> None:
    run = opened(tmp_path, [step(5, 1000, 300), *events])
    assert parts(run) == times
    assert hidden(run) == comm
    assert run.table("ideal").select("device", "step_ns").rows() == [(row[0], row[1] * US) for row in times]


# -- communication by name -------------------------------------------------------------------------------------------

COMM, COMPUTE, LISTED = "comm", "compute", "compute and listed"
KERNELS: list[tuple[Any, ...]] = [
    (name, name, right)
    for right, found in {
        COMM: (
            "void (anonymous namespace)::userbuffers_fp16_sum_inplace_gpu_rw_ag<8>(int, int, int)",
            "kuserbuffers_pushsend(int*, int*, int4*)",
            "kuserbuffers_pushrecv(int, int, int)",
            "userbuffers_fp16_sum_inplace_gpu_rr_rs_oop<4>(int)",
            "void flashinfer::trtllm_mnnvl_allreduce::oneshotAllreduceFusionKernel<8, float, true>(int)",
            "void tensorrt_llm::kernels::twoshotAllreduceKernel<8, __nv_bfloat16>(int)",
            "c10d::nvshmem_extension::allToAllV_2d(void*, void*, long*)",
            "mori::moe::EpDispatchIntraNodeKernel<__hip_bfloat16>(mori::moe::EpDispatchCombineArgs)",
            "mori::moe::EpCombineInterNodeKernel<float>(int)",
        ),
        COMPUTE: (
            "triton_poi_fused_all_gather_into_tensor_wait_tensor_0",
            "triton_red_fused__to_copy_two_shot_all_reduce_1",
            "ampere_sgemm_128x64",
            "broadcast_tensors",
        ),
        LISTED: (
            "my_ring_allgather_copy", "fused_moe_a2a_kernel", "symm::p2p_put<4>",
        ),
    }.items()
    for name in found
]  # fmt: skip


@pytest.mark.parametrize(("name", "right"), rows(KERNELS))
def test_kernels_whose_names_speak_of_communication(tmp_path: Path, name: str, right: str) -> None:
    run = opened(tmp_path, [step(5, 1000, 200), *kernel(name, 1010, 50, stream=20, correlation=1)])
    listed = run.table("unclassified").filter(what="compute whose name speaks of communication")
    assert run.work["class"].to_list() == [right.split(maxsplit=1)[0]]
    assert listed["name"].to_list() == ([name] if right == LISTED else [])


def test_a_pattern_is_the_way_out_for_fused_kernels_too(tmp_path: Path) -> None:
    path = write(tmp_path / "rank0.json", [*COMMON, *kernel("triton_mine_0", 1120, 30, stream=9, correlation=9)])
    (tmp_path / "tracekit-patterns.toml").write_text('[[communication]]\nname = "^triton_mine"\nkind = "all_reduce"\n')
    assert tracekit.open(path, cache=False).work["class"].to_list() == ["compute", "comm", "comm"]


def test_one_device_of_the_common_kind(tmp_path: Path) -> None:
    assert parts(opened(tmp_path, COMMON)) == [("cuda:0", 150, 100, 50, 0, 0)]


# -- begins and ends -------------------------------------------------------------------------------------------------


def halves(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of devices as a begin with the arguments and an end."""
    found: list[dict[str, Any]] = []
    for event in events:
        if event["cat"] == "kernel":
            begin = {**event, "ph": "B"}
            end = {key: event[key] for key in ("cat", "name", "pid", "tid")}
            found += [begin, {**end, "ph": "E", "ts": event["ts"] + begin.pop("dur")}]
        else:
            found.append(event)
    return found


HALF = {"ph": "B", "cat": "kernel", "name": "half", "pid": 0, "tid": 7, "ts": 1120, "args": {"device": 0, "stream": 7}}
PAIRS: list[tuple[Any, ...]] = [
    ("all rows of devices", halves(COMMON), 0),
    ("the end first in the file", halves(COMMON)[::-1], 0),
    ("some rows", [*COMMON[:3], *halves(COMMON[3:])], 0),
    ("rows that follow at once", halves([*COMMON, *on(9, "a", 1110, 10, 8), *on(9, "b", 1120, 10, 9)]), 0),
    ("a begin without an end", [*halves(COMMON), HALF], 1),
    ("an end without a begin", [*halves(COMMON), {**HALF, "ph": "E", "tid": 9}], 1),
]  # fmt: skip


@pytest.mark.parametrize(("events", "alone"), rows(PAIRS))
def test_begins_and_ends_are_complete_rows(tmp_path: Path, events: list[Any], alone: int) -> None:
    run = opened(tmp_path, events)
    follow = [event for event in events if event["name"] in ("a", "b")]
    assert breakdown(run).select(pl.col(PARTS[1:]) // US).rows() == [
        (150, 120, 30, 0, 0) if follow else (150, 100, 50, 0, 0)
    ]
    assert run.repairs.select("what", "count").rows() == (
        [("begins without an end, or ends without a begin", alone)] if alone else []
    )


# -- rows without a category in a process that is labelled as a device -------------------------------------------------


def labelled(pid: int, name: str, label: str) -> list[dict[str, Any]]:
    """The metadata rows of a process, as Ascend's profiler and Kineto write them."""
    about = [("process_name", {"name": name}), ("process_labels", {"labels": label}), ("process_sort_index", {})]
    return [{"ph": "M", "name": what, "pid": pid, "tid": 0, "args": args} for what, args in about]


def bare(name: str, ts: float, dur: float, *, pid: int = 77, stream: int | None = 3, **args: Any) -> dict[str, Any]:
    """A row without category; Ascend's have their stream under a name of its own."""
    own = {} if stream is None else {"Stream Id": stream, "Task Type": "AI_CORE"}
    return {"ph": "X", "name": name, "pid": pid, "tid": stream or 0, "ts": ts, "dur": dur, "args": own | args}


def named_only(pid: int, name: str) -> list[dict[str, Any]]:
    """The metadata row of a process without labels."""
    return labelled(pid, name, "")[:1]


NPU = labelled(77, "Ascend Hardware", "NPU")
ON_CPU = [step(5, 1000, 200), span("aten::mm", 1000, 10), span("aten::add", 1020, 10)]
MATMUL, REDUCE = bare("MatMulV2", 1010, 100), bare("hcom_allReduce__1_0_1", 1060, 100, stream=4)
ALONE = bare("hcom_allReduce__1_0_1", 1060, 100, pid=79, stream=None)
OVERLAP = [
    *labelled(78, "Overlap Analysis", "NPU"),
    bare("Computing", 1010, 100, pid=78, stream=None),
    bare("Free", 1110, 50, pid=78, stream=None),
]
ASCEND: list[tuple[Any, ...]] = [
    ("a kernel and a collective", [*NPU, MATMUL, REDUCE], [("npu:0", 150, 100, 50, 0, 0)], 0),
    ("copies by their name", [*NPU, MATMUL, bare("MEMCPY_ASYNC", 1110, 30)], [("npu:0", 130, 100, 0, 30, 0)], 0),
    ("waits occupy nothing", [*NPU, MATMUL, bare("EVENT_WAIT", 1110, 30), bare("Cast", 1140, 10)],
     [("npu:0", 140, 110, 0, 0, 30)], 0),
    ("a number in the label", [*labelled(77, "Ascend Hardware", "NPU 5"), MATMUL], [("npu:5", 100, 100, 0, 0, 0)], 0),
    ("two devices", [*NPU, *labelled(90, "Ascend Hardware", "NPU"), MATMUL, bare("Add", 1010, 40, pid=90)],
     [("npu:0", 100, 100, 0, 0, 0), ("npu:1", 40, 40, 0, 0, 0)], 0),
    ("labels after the rows", [MATMUL, REDUCE, *NPU], [("npu:0", 150, 100, 50, 0, 0)], 0),
    ("rows drawn from others", [*NPU, MATMUL, REDUCE, *OVERLAP], [("npu:0", 150, 100, 50, 0, 0)], 2),
    ("a name instead of a label", [*named_only(77, "Ascend Hardware"), MATMUL, REDUCE],
     [("npu:0", 150, 100, 50, 0, 0)], 0),
    ("a label of the chip", [*labelled(77, "NPU", "DAVINCI 2"), MATMUL, REDUCE], [("npu:2", 150, 100, 50, 0, 0)], 0),
    ("collectives in a process of their own", [*NPU, MATMUL, *labelled(79, "Communication", "NPU"), ALONE],
     [("npu:0", 150, 100, 50, 0, 0)], 0),
    ("collectives in a process without a label", [*NPU, MATMUL, *named_only(79, "Communication"), ALONE],
     [("npu:0", 150, 100, 50, 0, 0)], 0),
    ("collectives drawn around those with streams",
     [*NPU, MATMUL, REDUCE, *labelled(79, "Communication", "NPU"), ALONE], [("npu:0", 150, 100, 50, 0, 0)], 1),
    ("a GPU by its label", [*labelled(77, "python", "GPU 1"), MATMUL], [("cuda:1", 100, 100, 0, 0, 0)], 0),
]  # fmt: skip


@pytest.mark.parametrize(("events", "expected", "unknown"), rows(ASCEND))
def test_rows_without_category_of_a_labelled_process_are_its_devices(
    tmp_path: Path, events: list[Any], expected: list[Any], unknown: int
) -> None:
    run = opened(tmp_path, [*labelled(1, "python", "CPU"), *ON_CPU, *events])
    assert parts(run) == expected
    assert run.steps["complete"].to_list() == [True]
    told = run.repairs.filter(pl.col("what").str.contains("without category and stream"))
    assert told["count"].sum() == unknown


NO_RUN: list[tuple[Any, ...]] = [
    ("only rows that are not understood", OVERLAP, "2 rows of a labelled device that are not understood"),
    ("calls of xccl", [mark("xccl:all_reduce", 1030, 50)], "1 calls of XCCL"),
    ("calls of hccl as operators", [span("hccl:allReduce", 1030, 50)] * 2, "2 calls of HCCL"),
    ("calls of nccl", [mark("nccl:all_reduce", 1030, 50)], "1 calls of NCCL"),
]


@pytest.mark.parametrize(("events", "why"), rows(NO_RUN))
def test_a_rank_with_a_device_that_was_not_recorded_is_no_cpu_run(tmp_path: Path, events: list[Any], why: str) -> None:
    run = opened(tmp_path, [*ON_CPU, *events])
    assert run.work.is_empty()
    assert run.steps["complete"].to_list() == [False]
    assert run.steps["reason"].to_list() == [f"no activity of the device was recorded for {why}"]


UNSURE: list[tuple[Any, ...]] = [
    ("a backend's call alone", [mark("mccl:all_reduce", 1030, 50)]),
    ("rows that are not understood", [*NPU, MATMUL, *OVERLAP]),
]


@pytest.mark.parametrize("events", [case[1] for case in UNSURE], ids=[case[0] for case in UNSURE])
def test_communication_is_not_said_to_be_absent_where_not_all_was_recorded(tmp_path: Path, events: list[Any]) -> None:
    texts = sentences(opened(tmp_path, [*ON_CPU, *events]))
    assert not any(text.startswith("No communication was recorded") for text in texts)
    assert any(text.startswith("No communication was recognised, and not all of what") for text in texts)


def test_operators_of_a_backend_are_no_compute(tmp_path: Path) -> None:
    run = opened(tmp_path, [*ON_CPU, span("oneccl_bindings_for_pytorch::allreduce", 1040, 50)])
    assert breakdown(run)["compute_ns"].to_list() == [20 * US]


STILL_CPU: list[tuple[Any, ...]] = [
    ("a process labelled CPU", [*labelled(1, "python", "CPU"), span("aten::mm", 1050, 10)]),
    ("rows of the CPU without category", [*labelled(1, "python", "CPU"), bare("x", 1050, 10, pid=1, stream=None)]),
    ("gloo", [mark("gloo:all_reduce", 1030, 50, tid=GLOO)]),
]


@pytest.mark.parametrize("events", [case[1] for case in STILL_CPU], ids=[case[0] for case in STILL_CPU])
def test_a_cpu_run_stays_one(tmp_path: Path, events: list[Any]) -> None:
    run = opened(tmp_path, [*ON_CPU, *events])
    assert run.table("breakdown")["device"].to_list() == ["cpu"]
    assert run.steps["complete"].to_list() == [True]


# -- rows of unknown kind, lanes that were parted, several devices: what is said of them -----------------------------


def said(run: Run, start: str) -> str | None:
    return next((text for text in sentences(run) if text.startswith(start)), None)


def other(ts: float, *, device: int = 17, number: int = 3) -> dict[str, Any]:
    args = {"device": device, "stream": 2, "correlation": number}
    return {
        "ph": "X",
        "cat": "mtia_ccp_events",
        "name": "op",
        "pid": device,
        "tid": 2,
        "ts": ts,
        "dur": 20,
        "args": args,
    }


UNKNOWN_KIND: list[tuple[Any, ...]] = [
    ("one device", [other(1010), other(1040)], "All 2 rows of mtia:17 are of unknown kind"),
    ("one row", [other(1010)], "All 1 row of mtia:17 is of unknown kind"),
    ("two devices", [other(1010), other(1040, device=18)], "All 2 rows of mtia:17, mtia:18 are of unknown kind"),
    ("beside known rows", [other(1010), *on(7, "gemm", 1040, 20, 5)], "All 1 row of mtia:17 is of unknown kind"),
    ("known rows alone", on(7, "gemm", 1040, 20, 5), None),
]


@pytest.mark.parametrize(("events", "sentence"), rows(UNKNOWN_KIND))
def test_rows_of_unknown_kind_are_said_to_be_so_everywhere(
    tmp_path: Path, events: list[Any], sentence: str | None
) -> None:
    run = opened(tmp_path, [step(5, 1000, 200), *events])
    told = said(run, "All ")
    assert told is None if sentence is None else str(told).startswith(sentence)
    unknown = [f"mtia:{number}" for number in (17, 18)]
    table = breakdown(run).filter(pl.col("device").is_in(unknown))
    assert table["compute_ns"].sum() == table["exposed_comm_ns"].sum() == 0
    assert run.table("hta-breakdown").filter(pl.col("device").is_in(unknown)).is_empty()


def test_lanes_that_were_parted_are_named(tmp_path: Path) -> None:
    nodes = [node("gemm", 1000, 500, 1), node(GATHER, 1100, 300, 2)]
    assert said(opened(tmp_path, [step(5, 990, 600), *nodes]), "Rows on stream 60 of cuda:0 run inside one another")


def test_serial_lanes_are_not(tmp_path: Path) -> None:
    kernels = [*on(7, "gemm", 1000, 500, 1), *on(7, "gemm", 1500, 300, 2)]
    assert said(opened(tmp_path, [step(5, 990, 900), *kernels]), "Rows on") is None


def gpu(number: int, name: str, ts: float, dur: float, *, stream: int = 7) -> list[dict[str, Any]]:
    launch, row = kernel(name, ts, dur, stream=stream, correlation=int(ts) * 10 + number)
    row["args"]["device"] = row["pid"] = number
    return [launch, row]


def test_figures_of_several_devices_stand_apart(tmp_path: Path) -> None:
    first = [*gpu(0, "gemm", 1000, 100), *gpu(0, GATHER, 1100, 100, stream=20)]
    second = [*gpu(1, "gemm", 1001, 200), *gpu(1, GATHER, 1050, 100, stream=20)]
    run = opened(tmp_path, [step(5, 990, 400), *first, *second])
    assert said(run, "Exposed communication took") == (
        "Exposed communication took 100.0 µs of a step of 200.0 µs (50 %) on cuda:0, "
        "0.0 µs of a step of 200.0 µs (0 %) on cuda:1."
    )
    assert "0 % on cuda:0, 100 % on cuda:1 of its time was hidden" in sentences(run)[0]
    numbers = summary(run)
    assert [numbers[name] for name in ("step_ns", "exposed_comm_ns", "hidden_ratio")] == [None, None, None]
    labels = breakdown_rows(run).rows["row"].unique().sort().to_list()
    assert labels == ["rank 0 · cuda:0 · step 5", "rank 0 · cuda:1 · step 5"]


def test_many_devices_are_told_by_the_least_and_the_most(tmp_path: Path) -> None:
    events = [step(5, 990, 900)]
    for number in range(8):
        events += [
            *gpu(number, "gemm", 1000 + number, 100),
            *gpu(number, GATHER, 1100 + number, 10 + number, stream=20),
        ]
    told = str(said(opened(tmp_path, events), "Exposed communication took"))
    assert told.startswith("Exposed communication took from 10.0 µs of a step of 110.0 µs (9 %) on cuda:0 to 17.0 µs")
    assert told.endswith("on cuda:7.")
