"""Small Kineto traces, written from a few lines; times in microseconds as Kineto has them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

CPU, MAIN, BACKWARD, GLOO = 1, 100, 101, 200


def span(
    name: str, ts: float, dur: float, *, cat: str = "cpu_op", tid: int = MAIN, pid: int = CPU, **args: Any
) -> dict[str, Any]:
    """A complete event; keyword arguments become its args, `External_id` standing for "External id"."""
    named = {key.replace("_", " "): value for key, value in args.items()}
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": named}


def mark(name: str, ts: float, dur: float, *, tid: int = MAIN) -> dict[str, Any]:
    """A user annotation on the CPU."""
    return span(name, ts, dur, cat="user_annotation", tid=tid)


def step(number: int, ts: float, dur: float) -> dict[str, Any]:
    """A ProfilerStep mark on the main thread."""
    return mark(f"ProfilerStep#{number}", ts, dur)


def kernel(
    name: str, ts: float, dur: float, *, stream: int, correlation: int, launch: float | None = None,
    tid: int = MAIN, cat: str = "kernel", args: dict[str, Any] | None = None,
) -> list[dict[str, Any]]:  # fmt: skip
    """A device row and, unless `launch` is negative, the runtime event that launched it (by default 5 before)."""
    at = ts - 5 if launch is None else launch
    row = span(name, ts, dur, cat=cat, pid=0, tid=stream, device=0, stream=stream, correlation=correlation)
    row["args"] |= args or {}
    launched = span("cudaLaunchKernel", at, 2, cat="cuda_runtime", tid=tid, correlation=correlation)
    return [row] if at < 0 else [launched, row]


def memory(ts: float, delta: int, address: int, allocated: int) -> dict[str, Any]:
    """A [memory] instant of the CPU allocator."""
    args = {
        "Bytes": delta,
        "Addr": address,
        "Total Allocated": allocated,
        "Total Reserved": 0,
        "Device Type": 0,
        "Device Id": -1,
    }
    return {
        "ph": "i",
        "cat": "cpu_instant_event",
        "name": "[memory]",
        "pid": CPU,
        "tid": MAIN,
        "ts": ts,
        "s": "t",
        "args": args,
    }


def flow(ph: str, ident: int, ts: float, cat: str = "fwdbwd") -> dict[str, Any]:
    """One end of a flow."""
    return {"ph": ph, "id": ident, "pid": CPU, "tid": MAIN, "ts": ts, "cat": cat, "name": cat}


GEMM = kernel("ampere_sgemm_128x64", 1010, 100, stream=7, correlation=1)
AG = kernel("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 1060, 100, stream=20, correlation=2)
# One rank, one step: compute 1010..1110, all-gather 1060..1160, so 50 us of communication hidden and 50 exposed.
COMMON = [step(5, 1000, 200), *GEMM, *AG]


def document(
    events: list[dict[str, Any]], *, rank: int | None = 0, world_size: int = 1, **facts: Any
) -> dict[str, Any]:
    """A whole trace file."""
    told = {} if rank is None else {"distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world_size}}
    return {"schemaVersion": 1, **told, **facts, "traceEvents": events}


def write(path: Path, events: list[dict[str, Any]], **facts: Any) -> Path:
    """Write a trace file, gzipped where the name says so."""
    data = json.dumps(document(events, **facts)).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(data, 1) if path.suffix == ".gz" else data)
    return path
