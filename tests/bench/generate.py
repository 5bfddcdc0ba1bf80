"""A large trace, written in a stream: what a GPU training run with Python stacks, shapes and memory leaves."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path

_STEP_EVENTS = 2000
_STEP_US = 2500.0
_SHAPES = (
    '"Record function id": 0, "Concrete Inputs": ["", "[8, 4096]", "", "False", "None"], '
    '"Input type": ["c10::BFloat16", "c10::BFloat16", "c10::BFloat16", "Scalar", ""], '
    '"Input Strides": [[16777216, 4096, 1], [1, 4096], [1], [], []]'
)
_COMM = (
    '"Collective name": "allreduce", "In msg nelems": 65536, "Out msg nelems": 65536, "Group size": 8, '
    '"dtype": "BFloat16", "Process Group Name": "0", "Process Group Description": "default_pg"'
)


def write(path: Path, num_events: int, rank: int = 0, world_size: int = 8) -> int:
    """Write a gzipped Kineto trace with so many events (rounded up to whole steps); return the bytes of its JSON."""
    size = 0
    with gzip.open(path, "wb", compresslevel=1) as file:
        for text in texts(num_events, rank, world_size):
            data = text.encode()
            size += len(data)
            file.write(data)
    return size


def texts(num_events: int, rank: int = 0, world_size: int = 8) -> Iterator[str]:
    """Yield the JSON step by step."""
    yield '{\n  "schemaVersion": 1,\n  "baseTimeNanoseconds": 1790857026000000000,\n'
    yield f'  "distributedInfo": {{"backend": "nccl", "rank": {rank}, "world_size": {world_size}}},\n'
    yield '  "traceEvents": [\n'
    steps = -(-num_events // _STEP_EVENTS)
    for step in range(steps):
        yield ",\n".join(_step(step)) + (",\n" if step + 1 < steps else "\n")
    yield '  ],\n  "traceName": "generated"\n}\n'


def _step(step: int) -> list[str]:
    """One step of _STEP_EVENTS events: a mark, and groups of ten of which each launches one kernel."""
    start = 4458677000.0 + step * _STEP_US
    rows = [_row("user_annotation", f"ProfilerStep#{step}", start, _STEP_US - 1, f'"External id": {step}')]
    for group in range(_STEP_EVENTS // 10):
        rows += _group(step * _STEP_EVENTS + group, start + 10 * group, is_comm=group % 20 == 19)
    return rows[:_STEP_EVENTS]


def _group(n: int, at: float, *, is_comm: bool) -> list[str]:
    dims = f'"Input Dims": [[8, {n % 4096}, 4096], [4096, 4096], [4096], [], []]'
    args = f'"External id": {n}, {_SHAPES}, {dims}, "Ev Idx": {n}'
    comm = f", {_COMM}" if is_comm else ""
    device = f'"device": 0, "context": 1, "stream": {20 if is_comm else 7}, "correlation": {n}, "External id": {n}'
    grid = '"queued": 0, "registers per thread": 168, "shared memory": 49152, "grid": [32, 4, 1], "block": [256, 1, 1]'
    kernel = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL" if is_comm else f"gemm_{n % 37}<bf16>"
    flow = f'"id": {n}, "pid": 1, "tid": 100, "cat": "ac2g", "name": "ac2g"'
    size = f'"Total Reserved": 1048576, "Total Allocated": {n % 4096}, "Bytes": {512 - 1024 * (n % 2)}, "Addr": {n}'
    instant = '"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 1, "tid": 100'
    return [
        _row("python_function", f"torch/nn/modules/module.py({n % 997}): _call_impl", at, 9.5, _python(n)),
        _row("python_function", "<built-in method linear of type object at 0x7f1c>", at + 0.2, 9.0, _python(n + 1)),
        _row("python_function", f"transformer/model.py({n % 211}): forward", at + 0.3, 8.5, _python(n + 2)),
        _row("cpu_op", "aten::linear", at + 0.5, 8.0, args),
        _row("cpu_op", "record_param_comms" if is_comm else f"aten::op{n % 61}", at + 1, 6.0, args + comm),
        _row("cuda_runtime", "cudaLaunchKernel", at + 2, 2.0, f'"cbid": 211, "correlation": {n}, "External id": {n}'),
        _row("kernel", kernel, at + 5, 8.0, f"{device}, {grid}{comm}", pid=0, tid=20 if is_comm else 7),
        f'  {{\n    "ph": "s", {flow}, "ts": {at + 2:.3f}\n  }}',
        f'  {{\n    "ph": "f", {flow}, "ts": {at + 5:.3f}, "bp": "e"\n  }}',
        f'  {{\n    {instant}, "ts": {at + 3:.3f},\n    "args": {{{size}, "Device Id": 0, "Device Type": 1}}\n  }}',
    ]


def _python(n: int) -> str:
    return f'"Python parent id": {n}, "Python id": {n + 1}, "Ev Idx": {n}'


def _row(cat: str, name: str, ts: float, dur: float, args: str, *, pid: int = 1, tid: int = 100) -> str:
    spread = args.replace(', "', ',\n          "')
    return (
        f'  {{\n    "ph": "X", "cat": "{cat}", "name": "{name}", "pid": {pid}, "tid": {tid},\n'
        f'    "ts": {ts:.3f}, "dur": {dur:.3f},\n    "args": {{\n      {spread}\n    }}\n  }}'
    )
