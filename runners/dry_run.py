"""Runs torch's own sharding code for N ranks in one process and prints every collective that it calls, as JSON.

python runners/dry_run.py --strategy fsdp2 --mesh dp_shard=8 --model tiny

The process group is torch's fake one, tensors have shapes and no data: wrapping, forward, backward and optimizer step
are the real code of torch and of the training program, and nothing is sent. tracekit.plan.proof starts this and
compares the calls with the plan's.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import re
import runpy
import sys
from collections.abc import Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

if __package__ in (None, ""):
    runpy.run_path(str(Path(__file__).with_name("by_path.py")))["join_package"]()

import torch
import torch.distributed as dist
import torch.distributed.device_mesh as meshes
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from runners import train
from runners.models import Decoder
from runners.strategies import fsdp2
from runners.strategies.base import Setup, Strategy, checkpoint_blocks, freeze
from tracekit.record import RecordError
from tracekit.reference_models import SIZES, Size
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
    with _world(mesh), _fake_tensors():
        size = SIZES[args.model]
        runner, model = _wrapped(strategy, args, size)
        shape = (args.batch_size, min(args.seq_len, size.max_seq_len) + 1)
        tokens = [torch.zeros(shape, dtype=torch.long) for _ in range(args.micro_batches)]
        runner.make_optimizer(1e-3)
        with record:
            runner.step(tokens)
        del model
    return record.calls


def _wrapped(strategy: type[Strategy], args: argparse.Namespace, size: Size) -> tuple[Strategy, torch.nn.Module]:
    """The strategy around a model of this size, as `runners/train.py` makes them."""
    runner = strategy(Setup(args, torch.device("cpu"), 0, dist.get_world_size()))
    with _kept_as_made(), unset_fake_temporarily():
        # Sharded on the meta device, as train.py does with large models: cutting is cheap there.
        with torch.device("meta"):
            model = Decoder(size)
        freeze(model, args.freeze or ())
        if args.activation_checkpointing:
            checkpoint_blocks(model)
        model.to_empty = lambda **_: model  # pyright: ignore[reportAttributeAccessIssue]
        wrapped = runner.wrap(model)
    torch.nn.Module.to_empty(wrapped, device="cpu")  # pyright: ignore[reportArgumentType] - a string is taken, too
    return runner, wrapped


@contextmanager
def _kept_as_made() -> Generator[None]:
    """Weights need no values here."""
    made = fsdp2.initialize
    fsdp2.initialize = lambda *_, **__: None
    try:
        yield
    finally:
        fsdp2.initialize = made


@contextmanager
def _world(mesh: Mapping[str, int]) -> Generator[None]:
    """A process group of that many ranks in which nothing is sent; this process is rank 0."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=math.prod(mesh.values()))
    try:
        yield
    finally:
        dist.destroy_process_group()


@contextmanager
def _fake_tensors() -> Generator[None]:
    """Tensors without data, but for those that describe the mesh: torch reads their values."""

    def real(function: Any) -> Any:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with unset_fake_temporarily():
                return function(*args, **kwargs)

        return call

    with ExitStack() as undo:
        for owner, name in _mesh_makers():
            undo.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, real(getattr(owner, name)))
        undo.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        yield


def _mesh_makers() -> Iterator[tuple[Any, str]]:
    """Places that make or cut a device mesh: its methods, and the maker's name in every strategy that imported it."""
    modules = dict(sys.modules)
    for module in [meshes, *(found for name, found in modules.items() if name.startswith("runners.strategies."))]:
        if hasattr(module, "init_device_mesh"):
            yield module, "init_device_mesh"
    for name, module in modules.items():
        # Resharding to an integer makes a mesh of its own.
        if name.startswith("torch.distributed.fsdp._fully_shard.") and hasattr(module, "_get_post_forward_mesh_info"):
            yield module, "_get_post_forward_mesh_info"
    for method in ("__init__", "__getitem__", "_flatten", "_unflatten"):
        if hasattr(meshes.DeviceMesh, method):
            yield meshes.DeviceMesh, method


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
