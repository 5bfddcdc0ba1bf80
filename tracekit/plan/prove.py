"""Runs torch's own sharding code for N ranks in one process and records every collective that it calls.

The process group is torch's fake one, tensors have shapes and no data: wrapping, forward, backward and optimizer step
are the real code of torch and of the runner, and nothing is sent. Torch is imported here and nowhere else in the
package.
"""

from __future__ import annotations

import functools
import re
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import polars as pl

from tracekit.errors import UsageError
from tracekit.plan.schema import PLAN_SCHEMA, Call, plan_frame

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping, Sequence

    from tracekit.manifest import Manifest
    from tracekit.reference_models import Size

PROVABLE = ("fsdp2", "zero2-fsdp2", "hsdp", "fsdp2-tp")

_MARK = re.compile(r"^FSDP::(\w+)(?: for (.*)| \((.*)\))?$")
_KINDS = {"allgather": "all_gather", "reduce_scatter": "reduce_scatter", "allreduce": "all_reduce"}
_COMPARED = [name for name in PLAN_SCHEMA.names() if name not in ("payload_numel", "payload_bytes", "passes")]


def prove(strategy: str, size: Size, mesh: Mapping[str, int], args: Sequence[str] = ()) -> pl.DataFrame:
    """Every collective of one optimizer step as rank 0 issues it, with PLAN_SCHEMA.

    `args` are options of the runner. Only strategies of PROVABLE run without data.

    Raises:
        UsageError: the strategy cannot be proved, or the runner refuses an option.
    """
    if strategy not in PROVABLE:
        raise UsageError(f"--prove {strategy} is not possible: only {', '.join(PROVABLE)} run without data")
    from runners import strategies

    strategies.load(strategy)
    with _world(mesh), _fake_tensors(), _recording(mesh) as record:
        runner, model = _wrapped(strategy, size, args)
        tokens = _batches(runner.setup.args, size)
        runner.make_optimizer(1e-3)
        with record:
            runner.step(tokens)
        del model
    return plan_frame(record.calls)


def arguments(manifest: Manifest, model: str) -> list[str]:
    """The runner's options that make the run of this manifest."""
    sizes = {axis.axis: axis.size for axis in manifest.mesh}
    precision = manifest.precision
    args = ["--model", model, "--micro-batches", str(manifest.micro_batches)]
    for flag, value in (("--param-dtype", precision.param_dtype), ("--reduce-dtype", precision.reduce_dtype)):
        args += [flag, value] if value is not None else []
    if manifest.strategy in ("fsdp2", "hsdp", "fsdp2-tp"):
        for unit in manifest.units:
            setting = unit.reshard_after_forward
            told = str(setting).lower() if isinstance(setting, bool) else setting
            args += ["--reshard", f"{unit.name or 'root'}={told}"] if setting is not None else []
    args += ["--dp-replicate", str(sizes["dp_replicate"])] if manifest.strategy == "hsdp" else []
    args += ["--tp", str(sizes["tp"])] if manifest.strategy == "fsdp2-tp" else []
    for name, value in manifest.options.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            default = name in ("sync_every_micro_batch", "all_reduce_every_micro_batch")
            args += [f"--{'' if value else 'no-'}{flag}"] if value is not default else []
        elif value is not None:
            args += [f"--{flag}", str(value)]
    return args


def differences(planned: pl.DataFrame, proved: pl.DataFrame) -> pl.DataFrame:
    """Calls that plan and proof do not share: place (number of the call), side (plan or proof), and the call.

    Calls are compared one by one in their order; an empty frame means that they agree.
    """
    columns = _COMPARED
    sides = [
        frame.select(columns).with_row_index("place").with_columns(pl.lit(side).alias("side"))
        for side, frame in (("plan", planned), ("proof", proved))
    ]
    both = pl.concat(sides, how="vertical_relaxed")
    alone = pl.struct("place", *columns).is_duplicated().not_()
    return both.filter(alone).select("place", "side", *columns).sort("place", "side")


def _wrapped(strategy: str, size: Size, args: Sequence[str]) -> tuple[Any, Any]:
    """The runner's strategy around a model of this size, as `runners/train.py` makes them."""
    import torch
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    from runners import train
    from runners.models import Decoder
    from runners.strategies.base import Setup, checkpoint_blocks, freeze
    from tracekit.record import RecordError

    try:
        parsed, kind = train.parse(["--strategy", strategy, *args])
        runner = kind(Setup(parsed, torch.device("cpu"), 0, torch.distributed.get_world_size()))
        with _kept_as_made(), unset_fake_temporarily():
            # Sharded on the meta device, as the runner does with large models: cutting is cheap there.
            with torch.device("meta"):
                model = Decoder(size)
            freeze(model, parsed.freeze or ())
            if parsed.activation_checkpointing:
                checkpoint_blocks(model)
            model.to_empty = lambda **_: model  # pyright: ignore[reportAttributeAccessIssue]
            model = runner.wrap(model)
        torch.nn.Module.to_empty(model, device="cpu")
    except (RecordError, SystemExit) as error:
        raise UsageError(f"--prove {strategy} {' '.join(args)} is refused by the runner: {error}") from None
    return runner, model


def _batches(args: Any, size: Size) -> list[Any]:
    import torch

    shape = (args.batch_size, min(args.seq_len, size.max_seq_len) + 1)
    return [torch.zeros(shape, dtype=torch.long) for _ in range(args.micro_batches)]


@contextmanager
def _kept_as_made() -> Generator[None]:
    """Weights need no values here."""
    from runners.strategies import fsdp2

    made = fsdp2.initialize
    fsdp2.initialize = lambda *_, **__: None
    try:
        yield
    finally:
        fsdp2.initialize = made


@contextmanager
def _world(mesh: Mapping[str, int]) -> Generator[None]:
    """A process group of that many ranks in which nothing is sent; this process is rank 0."""
    import math

    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if dist.is_initialized():
        raise UsageError("--prove needs a process of its own: a process group is open here")
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=math.prod(mesh.values()))
    try:
        yield
    finally:
        dist.destroy_process_group()


@contextmanager
def _fake_tensors() -> Generator[None]:
    """Tensors without data, but for those that describe the mesh: torch reads their values."""
    import sys

    import torch.distributed.device_mesh as meshes
    from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily

    def real(function: Any) -> Any:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with unset_fake_temporarily():
                return function(*args, **kwargs)

        return call

    with ExitStack() as undo:
        for owner, name in _mesh_makers(meshes, sys.modules):
            undo.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, real(getattr(owner, name)))
        undo.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        yield


def _mesh_makers(meshes: Any, modules: Mapping[str, Any]) -> Iterator[tuple[Any, str]]:
    """Where a device mesh is made or cut: its methods, and the maker's name in every runner that imported it."""
    for module in [meshes, *(found for name, found in list(modules.items()) if name.startswith("runners.strategies."))]:
        if hasattr(module, "init_device_mesh"):
            yield module, "init_device_mesh"
    for name, module in list(modules.items()):
        # Resharding to an integer makes a mesh of its own.
        if name.startswith("torch.distributed.fsdp._fully_shard.") and hasattr(module, "_get_post_forward_mesh_info"):
            yield module, "_get_post_forward_mesh_info"
    for method in ("__init__", "__getitem__", "_flatten", "_unflatten"):
        if hasattr(meshes.DeviceMesh, method):
            yield meshes.DeviceMesh, method


@contextmanager
def _recording(mesh: Mapping[str, int]) -> Generator[Any]:
    """A dispatch mode with the calls that it saw, each with unit and phase from FSDP2's own annotations."""
    import torch
    import torch.distributed as dist
    from torch.distributed.tensor import DTensor
    from torch.utils._python_dispatch import TorchDispatchMode

    class Recording(TorchDispatchMode):
        """Sees every operator below autograd, those inside DTensor included."""

        def __init__(self) -> None:
            super().__init__()
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
            kind = next((kind for word, kind in _KINDS.items() if word in spelled), None)
            if kind is not None and name.startswith(("c10d.", "_c10d_functional.")):
                self.calls.append(self.places.call(kind, *_sizes(name, kind, args, result), _group(args, dist, mesh)))
            return result

    def _sizes(name: str, kind: str, args: Any, result: Any) -> tuple[str, int, int]:
        first = args[0][0] if isinstance(args[0], list) else args[0]
        if name.startswith("_c10d_functional."):
            ins, outs = first, result
        elif kind == "all_reduce":
            ins = outs = first
        else:
            ins, outs = args[1], first
        return str(ins.dtype).removeprefix("torch."), ins.numel(), outs.numel()

    del torch
    yield Recording()


def _group(args: Any, dist: Any, mesh: Mapping[str, int]) -> tuple[str, int]:
    """Axis and size of the group that a call names, by its object or, in functional collectives, by its name."""
    names = [arg for arg in args if isinstance(arg, str)]
    if names:
        group = dist.distributed_c10d._resolve_process_group(names[-1])  # noqa: SLF001 - torch has no other way
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
    """Which unit, phase and micro-batch a moment belongs to; told by the annotations as they open and close."""

    def __init__(self) -> None:
        self.open: list[str] = []
        self.units: list[str] = []
        self.phase = "forward"
        self.micro_batch = -1

    def enter(self, annotation: str) -> None:
        """An annotation opens: units enter and leave their forward, the root starts micro-batch and backward."""
        self.open.append(annotation)
        found = _MARK.match(annotation)
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
        found = _MARK.match(self.open.pop())
        if found and found[1] == "root_post_backward_callback":
            self.phase = "optimizer"
        if found and found[1] == "post_backward_reduce":
            unit = found[2] or found[3] or ""
            self.units = [other for other in self.units if other != unit]

    def call(self, kind: str, dtype: str, ins: int, outs: int, group: tuple[str, int]) -> Call:
        """A collective that is issued now."""
        marks = [found for found in map(_MARK.match, self.open) if found]
        named = [found for found in marks if found[1] in ("all_gather", "post_backward_reduce")]
        unit = (named[-1][2] or named[-1][3] or "") if named else self.units[-1] if self.units else None
        micro_batch = None if self.phase == "optimizer" else max(self.micro_batch, 0)
        return Call(unit, self.phase, micro_batch, kind, *group, dtype, ins, outs)
