"""Small undamaged traces for the fuzzer, each with the place of every event in its text."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any, NamedTuple

SAMPLE = Path(__file__).parents[2] / "traces" / "fsdp2" / "rank0.json.gz"
_ODD_NAMES = [
    'operator"" _s<int>', r"torch\cuda\__init__.py(219)", "Schritt Ψ ✓", 'x}, {"ph": "X", "name": "no event"}',
    "loss: nan, inf", "a\nb\tc", "[memory", "]}", "",
]  # fmt: skip


class Fixture(NamedTuple):
    """`spans`: start and end of each event in `text`, in file order."""

    name: str
    text: bytes
    spans: list[tuple[int, int]]


def fixtures() -> list[Fixture]:
    """Every kind of event in every layout of text, and the beginning of a recorded run."""
    base = {"schemaVersion": 1, "baseTimeNanoseconds": 1_790_857_026_000_000_000}
    told = {"distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 2}, "deviceProperties": [{"id": 0}]}
    made = [
        _fixture("relative", {**base, **told}, _events(0, 0.125), {"traceName": "t"}, indent=None),
        _fixture("indented", {**told}, _events(4_458_677_000_000, 0.5), {"displayTimeUnit": "ms"}, indent=2),
        _fixture("absolute", {**told}, _absolute(), {"baseTimeNanoseconds": 0, "host_name": "h"}, indent=1),
        _fixture("list", None, _events(7, 0), {}, indent=None),
    ]
    return [*made, *([_recorded()] if SAMPLE.is_file() else [])]


def _fixture(
    name: str, head: dict[str, Any] | None, events: list[Any], tail: dict[str, Any], indent: int | None
) -> Fixture:
    """Written part by part, so that the places are known without searching."""
    gap = b"" if indent is None else b"\n" + b" " * indent
    start = (
        b"["
        if head is None
        else json.dumps(head, indent=indent)[:-1].rstrip().encode() + b"," + gap + b'"traceEvents": ['
    )
    text, spans = bytearray(start), []
    for number, event in enumerate(events):
        text += (b"," if number else b"") + gap
        one = event if isinstance(event, bytes) else json.dumps(event, indent=indent, ensure_ascii=False).encode()
        spans.append((len(text), len(text) + len(one)))
        text += one
    text += gap + b"]"
    if head is not None:
        text += (b"," + json.dumps(tail, indent=indent).encode()[1:]) if tail else b"}"
    return Fixture(name, bytes(text), spans)


def _recorded() -> Fixture:
    document = json.loads(gzip.decompress(SAMPLE.read_bytes()))
    events = document.pop("traceEvents")
    step = max(1, len(events) // 90)
    return _fixture("recorded", document, events[::step], {"traceName": "t"}, indent=2)


def _absolute() -> list[Any]:
    """Absolute microseconds with decimals, which no float holds: written as text, so that no float is in between."""
    rows = _events(0, 0.0)
    for number, row in enumerate(rows):
        if "ts" in row:
            row["ts"] = f"@{1699236267071058 + number}.{number:03d}@"
    return [json.dumps(row, indent=1, ensure_ascii=False).replace('"@', "").replace('@"', "").encode() for row in rows]


def _events(start: float, part: float) -> list[Any]:
    rows: list[Any] = [
        {"ph": "M", "name": "process_name", "ts": start, "pid": 1, "tid": 0, "args": {"name": "python"}},
        _span("Trace", "PyTorch Profiler (0)", start, 900) | {"pid": "Spans", "tid": "PyTorch Profiler"},
        _span("user_annotation", "ProfilerStep#3", start + 1, 500),
        _span("user_annotation", "ProfilerStep#4", start + 501, 300),
    ]  # fmt: skip
    for n in range(14):
        at = start + 10 * n + part
        gpu = {"device": 0, "stream": 7}
        shapes = {"Input Dims": [[n, 4], []], "Input type": ["float", ""], "Concrete Inputs": ["", "[5, 768]"]}
        rows += [
            _span("cpu_op", f"aten::op{n}", at, 5 + part, {"External id": n, "Sequence number": n, **shapes}),
            _span("cuda_runtime", "cudaLaunchKernel", at + 1, 1.25, {"correlation": 100 + n, "External id": n}),
            _span("kernel", f"k{n}<float, {{}}>(int)", at + 2, 3 + n, {**gpu, "correlation": 100 + n}, pid=0, tid=7),
            {"ph": "s", "id": n, "pid": 1, "tid": 100, "ts": at, "cat": "fwdbwd", "name": "fwdbwd"},
            {"ph": "f", "id": n, "pid": 1, "tid": 100, "ts": at + 4, "cat": "fwdbwd", "name": "fwdbwd", "bp": "e"},
        ]  # fmt: skip
    rows += [
        _span("python_function", name, start + 200 + n, 1 + part, {"Python id": n}) for n, name in enumerate(_ODD_NAMES)
    ]
    for n in range(5):
        at = start + 300 + 10 * n
        args = {
            "Collective name": "allreduce",
            "In msg nelems": 64,
            "Out msg nelems": 64,
            "Group size": 2,
            "dtype": "Float",
        }
        device = {"device": 0, "stream": 20, "correlation": 200 + n, "memory bandwidth (GB/s)": 1.5}
        rows += [
            _span("cpu_op", "record_param_comms", at, 4, {**args, "Process Group Name": "0", "Seq": n}),
            _span("kernel", "ncclDevKernel_AllReduce", at + 2, 6.5, {**device, **args}, pid=0, tid=20),
            _span("gpu_memcpy", "Memcpy DtoH", at + 3, 0.001, {**device, "bytes": 4096}, pid=0, tid=21),
            {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 1, "tid": 100, "ts": at + 5,
             "args": {"Total Reserved": 0, "Total Allocated": 64 * n, "Bytes": 64, "Addr": 2**63 + n, "Device Id": 0,
                      "Device Type": 1}},
        ]  # fmt: skip
    return rows


def _span(
    cat: str, name: str, ts: float, dur: float, args: dict[str, Any] | None = None, *, pid: int = 1, tid: int = 100
) -> dict[str, Any]:
    row: dict[str, Any] = {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur}
    return row if args is None else {**row, "args": args}
