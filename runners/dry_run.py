"""Runs torch's own sharding code for N ranks in one process and prints every collective that it calls, as JSON.

python runners/dry_run.py --strategy fsdp2 --mesh dp_shard=8 --model tiny

The process group is torch's fake one, tensors have shapes and no data: wrapping, forward, backward and optimizer step
are the real code of torch and of the training program, and nothing is sent. tracekit.plan.proof starts this and
compares the calls with the plan's.
"""

from __future__ import annotations

import argparse
import json
import re
import runpy
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

if __package__ in (None, ""):
    runpy.run_path(str(Path(__file__).with_name("by_path.py")))["join_package"]()

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from runners import fake_world, train
from runners.strategies.base import Strategy
from tracekit.record import RecordError
from tracekit.reference_models import SIZES
from tracekit.training import ERROR_PREFIX

MARK = re.compile(r"^FSDP::(\w+)(?: for (.*)| \((.*)\))?$")
KINDS = {"allgather": "all_gather", "reduce_scatter": "reduce_scatter", "allreduce": "all_reduce"}


class Call(NamedTuple):
    """One collective as rank 0 issues it; the first columns of a plan."""

    layer: str | None
    phase: str
    micro_batch: int | None
    kind: str
    axis: str
    group_size: int
    dtype: str
    in_numel: int
    out_numel: int


def main(argv: list[str]) -> int:
    """Prints the calls, `{"calls": [[layer, phase, ...], ...]}`; returns 2 where the training program refuses."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--mesh", required=True)
    given, rest = parser.parse_known_args(argv)
    mesh = {axis: int(size) for axis, _, size in (part.partition("=") for part in given.mesh.split(","))}
    args, strategy = train.parse(rest)
    try:
        made = calls(strategy, args, mesh)
    except RecordError as error:
        print(f"{ERROR_PREFIX}{error}", file=sys.stderr, flush=True)
        return 2
    print(json.dumps({"calls": made}))
    return 0


def calls(strategy: type[Strategy], args: argparse.Namespace, mesh: Mapping[str, int]) -> list[Call]:
    """Every collective of one optimizer step as rank 0 issues it. Raises RecordError for options that do not fit."""
    record = Recording(mesh)
    with fake_world.world(mesh), fake_world.fake_tensors():
        size = SIZES[args.model]
        runner, model = fake_world.wrapped(strategy, args, size)
        shape = (args.batch_size, min(args.seq_len, size.max_seq_len) + 1)
        tokens = [torch.zeros(shape, dtype=torch.long) for _ in range(args.micro_batches)]
        runner.make_optimizer(1e-3)
        with record:
            runner.step(tokens)
        del model
    return record.calls


class Recording(TorchDispatchMode):
    """Every collective below autograd, those inside DTensor included, with unit and phase from FSDP2's annotations."""

    def __init__(self, mesh: Mapping[str, int]) -> None:
        super().__init__()
        self.mesh = mesh
        self.calls: list[Call] = []
        self.places = Places()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        name = str(func)
        if name.startswith("profiler._record_function_enter"):
            self.places.enter(str(args[0]))
        elif name.startswith("profiler._record_function_exit"):
            self.places.leave()
        result = func(*args, **(kwargs or {}))
        spelled = name.replace("all_gather", "allgather").replace("all_reduce", "allreduce")
        kind = next((kind for word, kind in KINDS.items() if word in spelled), None)
        if kind is not None and name.startswith(("c10d.", "_c10d_functional.")):
            self.calls.append(self.places.call(kind, *_sizes(name, kind, args, result), _group(args, self.mesh)))
        return result


def _sizes(name: str, kind: str, args: Any, result: Any) -> tuple[str, int, int]:
    """Type, and elements that go in and come out."""
    first = args[0][0] if isinstance(args[0], list) else args[0]
    if name.startswith("_c10d_functional."):
        ins, outs = first, result
    elif kind == "all_reduce":
        ins = outs = first
    else:
        ins, outs = args[1], first
    return str(ins.dtype).removeprefix("torch."), ins.numel(), outs.numel()


def _group(args: Any, mesh: Mapping[str, int]) -> tuple[str, int]:
    """Axis and size of the group that a call names, by its object or, in functional collectives, by its name."""
    names = [arg for arg in args if isinstance(arg, str)]
    if names:
        c10d: Any = dist.distributed_c10d
        group = c10d._resolve_process_group(names[-1])  # noqa: SLF001 - torch has no other way
    else:
        boxed = next(arg for arg in args if type(arg).__name__ == "ScriptObject" and "ProcessGroup" in str(arg._type()))  # noqa: SLF001
        group = dist.ProcessGroup.unbox(boxed)
    ranks = dist.get_process_group_ranks(group)
    step = ranks[1] - ranks[0] if len(ranks) > 1 else 0
    stride = 1
    for axis, size in reversed(list(mesh.items())):
        if size > 1 and step == stride:
            return axis, len(ranks)
        stride *= size
    return next(iter(mesh)), len(ranks)


class Places:
    """Unit, phase and micro-batch of the moment; told by the annotations as they open and close."""

    def __init__(self) -> None:
        self.open: list[str] = []
        self.units: list[str] = []
        self.phase = "forward"
        self.micro_batch = -1

    def enter(self, annotation: str) -> None:
        """An annotation opens: units enter and leave their forward, the root starts micro-batch and backward."""
        self.open.append(annotation)
        found = MARK.match(annotation)
        if annotation.startswith("Optimizer.step"):
            self.phase = "optimizer"
        if found is None:
            return
        mark, unit = found[1], found[2] or found[3] or ""
        if mark == "root_pre_forward" and not self.units:
            self.micro_batch, self.phase = self.micro_batch + 1, "forward"
        if mark in ("pre_forward", "pre_backward"):
            self.units.append(unit)
            self.phase = mark.removeprefix("pre_")
        elif mark == "post_forward" and unit in self.units:
            self.units.remove(unit)
        elif mark == "root_post_backward_callback":
            self.units.clear()

    def leave(self) -> None:
        """The innermost annotation closes; a unit's backward ends with its reduction."""
        found = MARK.match(self.open.pop())
        if found and found[1] == "root_post_backward_callback":
            self.phase = "optimizer"
        if found and found[1] == "post_backward_reduce":
            unit = found[2] or found[3] or ""
            self.units = [other for other in self.units if other != unit]

    def call(self, kind: str, dtype: str, ins: int, outs: int, group: tuple[str, int]) -> Call:
        """A collective that is issued now."""
        marks = [found for found in map(MARK.match, self.open) if found]
        named = [found for found in marks if found[1] in ("all_gather", "post_backward_reduce")]
        unit = (named[-1][2] or named[-1][3] or "") if named else self.units[-1] if self.units else None
        micro_batch = None if self.phase == "optimizer" else max(self.micro_batch, 0)
        return Call(unit, self.phase, micro_batch, kind, *group, dtype, ins, outs)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
