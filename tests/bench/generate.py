"""A large trace, written in a stream: the mix of events that a GPU training run with Python stacks and memory leaves."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path

_STEP_EVENTS = 2000
_SHAPES = '"Input Strides": [[4096, 1], [1, 4096], []], "Input type": ["c10::BFloat16", "c10::BFloat16", ""]'


def write(path: Path, num_events: int) -> int:
    """Write a gzipped Kineto trace with so many events (rounded up to whole steps); return the bytes of its JSON."""
    size = 0
    with gzip.open(path, "wb", compresslevel=1) as file:
        for text in _texts(num_events):
            data = text.encode()
            size += len(data)
            file.write(data)
    return size


def _texts(num_events: int) -> Iterator[str]:
    yield '{\n"schemaVersion": 1,\n"baseTimeNanoseconds": 1790857026000000000,\n'
    yield '"distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 8},\n"traceEvents": [\n'
    steps = -(-num_events // _STEP_EVENTS)
    for step in range(steps):
        yield ",\n".join(_step(step)) + (",\n" if step + 1 < steps else "\n")
    yield '],\n"traceName": "generated"\n}\n'


def _step(step: int) -> list[str]:
    """One step of _STEP_EVENTS events: a mark, and groups of ten of which each issues one kernel."""
    start = 4458677000.0 + step * 2500.0
    rows = [_row("user_annotation", f"ProfilerStep#{step}", start, 2499.0, 100, f'"External id": {step}')]
    group = 0
    while len(rows) < _STEP_EVENTS:
        number = step * _STEP_EVENTS + group
        rows += _group(number, start + 10 * group, is_comm=group % 20 == 19)
        group += 1
    return rows[:_STEP_EVENTS]


def _group(n: int, at: float, *, is_comm: bool) -> list[str]:
    frame = f"torch/nn/modules/module.py({n % 997}): _call_impl"
    args = f'"External id": {n}, "Record function id": 0, {_SHAPES}, "Input Dims": [[8, {n % 4096}], [4096, 4096], []]'
    comm = '"Collective name": "allreduce", "In msg nelems": 65536, "Out msg nelems": 65536, "Group size": 8, "dtype": "BFloat16"'
    device = f'"device": 0, "context": 1, "stream": {20 if is_comm else 7}, "correlation": {n}, "External id": {n}'
    op = ("record_param_comms", f"{args}, {comm}") if is_comm else (f"aten::op{n % 61}", f'{args}, "Ev Idx": {n}')
    kernel = (
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", f"{device}, {comm}")
        if is_comm
        else (f"gemm_{n % 37}<bf16>", device)
    )
    memory = f'"Total Reserved": 1048576, "Total Allocated": {n % 4096}, "Bytes": {512 - 1024 * (n % 2)}, "Addr": {2**40 + n}, '
    flow = f'"id": {n}, "pid": 1, "tid": 100, "cat": "ac2g", "name": "ac2g"'
    return [
        _row("python_function", frame, at, 9.5, 100, f'"Python parent id": {n}, "Python id": {n + 1}, "Ev Idx": {n}'),
        _row("python_function", "<built-in method linear of type object>", at + 0.2, 9.0, 100, f'"Python id": {n}'),
        _row("python_function", f"model.py({n % 211}): forward", at + 0.3, 8.5, 100, f'"Python id": {n}'),
        _row("cpu_op", "aten::linear", at + 0.5, 8.0, 100, args),
        _row("cpu_op", op[0], at + 1, 6.0, 100, op[1]),
        _row("cuda_runtime", "cudaLaunchKernel", at + 2, 2.0, 100, f'"cbid": 211, "correlation": {n}, "External id": {n}'),
        _row("kernel", kernel[0], at + 5, 8.0, 7, kernel[1], pid=0),
        '{"ph": "s", ' + flow + f', "ts": {at + 2:.3f}}}',
        '{"ph": "f", ' + flow + f', "ts": {at + 5:.3f}, "bp": "e"}}',
        '{"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 1, "tid": 100, '
        f'"ts": {at + 3:.3f}, "args": {{{memory}"Device Id": 0, "Device Type": 1}}}}',
    ]  # fmt: skip


def _row(cat: str, name: str, ts: float, dur: float, tid: int, args: str, pid: int = 1) -> str:
    return (
        f'{{"ph": "X", "cat": "{cat}", "name": "{name}", "pid": {pid}, "tid": {tid},\n'
        f'"ts": {ts:.3f}, "dur": {dur:.3f}, "args": {{{args}}}}}'
    )
