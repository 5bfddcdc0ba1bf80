"""The model as the manifest describes it: parameters by their full shapes, wrap units, mesh, precision, versions."""

from __future__ import annotations

import math
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from tracekit.record import flat

Unit = tuple[str, bool | int | None]
# Wrappers put these parts into the names of modules; the model's own names do not have them.
WRAPPER_PARTS = frozenset({"_fsdp_wrapped_module", "_orig_mod", "_checkpoint_wrapped_module"})
PARAMETRIZED = "parametrizations"


@dataclass(frozen=True)
class Precision:
    """dtypes in torch's spelling without the module ("bfloat16"); None where the strategy leaves it."""

    param_dtype: str | None = None
    reduce_dtype: str | None = None
    buffer_dtype: str | None = None
    storage_dtype: str | None = None


def dtype_name(dtype: torch.dtype | None) -> str | None:
    """`torch.bfloat16` as "bfloat16"."""
    return str(dtype).removeprefix("torch.") if dtype is not None else None


def clean_name(name: str) -> str:
    """A module's or parameter's name without the parts that wrappers put in."""
    if PARAMETRIZED in name:
        # torch.nn.utils.parametrize moves "wq.weight" to "wq.parametrizations.weight.original".
        name = name.replace(f"{PARAMETRIZED}.", "").removesuffix(".original")
    return ".".join(part for part in name.split(".") if part not in WRAPPER_PARTS)


def without_replicas(model: torch.nn.Module) -> torch.nn.Module:
    """The user's model inside DistributedDataParallel or a DeepSpeed engine, which put `module.` before every name."""
    while type(model).__name__ in ("DistributedDataParallel", "DeepSpeedEngine"):
        model = model.get_submodule("module")
    return model


def named_modules(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """Every module once, children before parents (the order in which units are wrapped); the root last as ""."""

    def walk(prefix: str, module: torch.nn.Module, seen: set[int]) -> Iterator[tuple[str, torch.nn.Module]]:
        if id(module) in seen:
            return
        seen.add(id(module))
        for name, child in module.named_children():
            yield from walk(f"{prefix}.{name}" if prefix else name, child, seen)
        yield clean_name(prefix), module

    return walk("", model, set())


def has_fsdp2_units(model: torch.nn.Module) -> bool:
    """True where `fully_shard` was called on any module: torch then names the units in the trace by itself."""
    return any(_fsdp_state(module) is not None for _, module in named_modules(model))


def is_compiled(module: torch.nn.Module) -> bool:
    """True where `Module.compile` was called on it: its hooks are then compiled with it."""
    return getattr(module, "_compiled_call_impl", None) is not None


def find_units(model: torch.nn.Module) -> list[tuple[Unit, list[str]]]:
    """The units in wrap order, each with the names of its modules; the root unit "" is last.

    With FSDP2 they are what was given to `fully_shard`, and the setting is None where torch decides (it frees every
    unit after forward but the root); several modules wrapped as one are one unit, named as in torch's annotations.
    With FSDP1 they are what it wraps, and None is FULL_SHARD, which does the same. Without wrapping they are the
    blocks: the elements of the outermost ModuleLists.
    """
    flat_units = [(name, flat.state(module)) for name, module in named_modules(model) if flat.state(module)]
    if flat_units:
        units: list[tuple[Unit, list[str]]] = [((n, flat.reshard_setting(wrapped)), [n]) for n, wrapped in flat_units]
        return units if units[-1][1] == [""] else [*units, (("", None), [""])]
    if not has_fsdp2_units(model):
        return [((name, None), [name]) for name in [*_blocks("", model), ""]]
    members: dict[int, list[str]] = {}
    settings: dict[int, bool | int | None] = {}
    for name, module in named_modules(model):
        state = _fsdp_state(module)
        if state is not None:
            members.setdefault(id(state), []).append(name)
            settings[id(state)] = _reshard_setting(state)
    units = [((", ".join(names), settings[key]), names) for key, names in members.items()]
    return units if any("" in names for _, names in units) else [*units, (("", None), [""])]


def owner(name: str, units: Sequence[tuple[Unit, list[str]]]) -> str:
    """The name of the innermost unit that contains the parameter or module `name`; "" is the root."""
    best, unit_name = -1, ""
    for (unit, _), modules in units:
        for module in modules:
            inside = not module or name == module or name.startswith(f"{module}.")
            if inside and len(module) > best:
                best, unit_name = len(module), unit
    return unit_name


def parameters(model: torch.nn.Module, units: Sequence[tuple[Unit, list[str]]]) -> list[dict[str, Any]]:
    """One entry a parameter name, in registration order; a tied one names the first that it shares its tensor with.

    A DTensor's entry has its placements by mesh axis and the shape of this rank's shard, too.
    """
    first: dict[int, str] = {}
    shapes = flat.full_shapes(model)
    entries: list[dict[str, Any]] = []
    for raw_name, parameter in model.named_parameters(remove_duplicate=False):
        name = clean_name(raw_name)
        tied_to = first.setdefault(id(parameter), name)
        # A DTensor's shape is the full one; DeepSpeed stage 3 keeps it aside, FSDP1 in its flat parameter.
        whole = shapes.get(id(parameter)) or getattr(parameter, "ds_shape", parameter.shape)
        shape = [int(size) for size in whole]
        entries.append(
            {
                "name": name,
                "shape": shape,
                "dtype": dtype_name(parameter.dtype),
                "numel": math.prod(shape),
                "requires_grad": parameter.requires_grad,
                "layer": owner(name, units),
                "tied_to": None if tied_to == name else tied_to,
            }
            | placements(parameter)
        )
    return entries


def placements(parameter: Any) -> dict[str, Any]:
    """`placements` of a DTensor, {"dp_shard": "Shard(0)", "tp": "Shard(1)"}, and its `local_shape`; {} for another.

    "StridedShard(0, 2)" is dim 0 split by a later axis first and then by this one, each of whose parts has 2 pieces.
    """
    if not hasattr(parameter, "placements"):
        return {}
    names = _axis_names(parameter.device_mesh)
    by_axis = dict(zip(names, (_placement(placement) for placement in parameter.placements), strict=True))
    return {"placements": by_axis, "local_shape": [int(size) for size in parameter.to_local().shape]}


def _placement(placement: Any) -> str:
    split = getattr(placement, "split_factor", None)
    if split is not None:
        return f"StridedShard({placement.dim}, {split})"
    return f"Shard({placement.dim})" if hasattr(placement, "dim") else type(placement).__name__


def _axis_names(mesh: Any) -> list[str]:
    return list(mesh.mesh_dim_names or [f"axis{index}" for index in range(mesh.ndim)])


def buffers(model: torch.nn.Module) -> list[dict[str, Any]]:
    """One entry a buffer: DDP sends rank 0's before every forward."""
    return [
        {
            "name": clean_name(name),
            "shape": [int(size) for size in buffer.shape],
            "dtype": dtype_name(buffer.dtype),
            "numel": buffer.numel(),
        }
        for name, buffer in model.named_buffers()
    ]


def unit_entries(model: torch.nn.Module, units: Sequence[tuple[Unit, list[str]]]) -> list[dict[str, Any]]:
    """The manifest's units; those of FSDP1 with the sizes of their flat parameters."""
    modules = dict(named_modules(model))
    entries: list[dict[str, Any]] = []
    for (name, reshard), members in units:
        entry: dict[str, Any] = {"name": name, "reshard_after_forward": reshard}
        sizes = flat.sizes(modules[members[0]]) if members[0] in modules else None
        entries.append(entry | ({"flat": sizes} if sizes else {}))
    return entries


def psi(entries: Sequence[Mapping[str, Any]], *, trainable: bool = False) -> int:
    """Ψ of `parameters`, or Ψ_train: tied parameters count once."""
    return sum(e["numel"] for e in entries if e["tied_to"] is None and (e["requires_grad"] or not trainable))


def find_mesh(model: torch.nn.Module, world_size: int) -> list[tuple[str, int]]:
    """The mesh's axes by torchtitan's names; one shard axis over all ranks with FSDP1, one replicate axis with none."""
    for _, module in named_modules(model):
        for group in getattr(_fsdp_state(module), "_fsdp_param_groups", ()):
            info = group.mesh_info
            names = list(info.mesh.mesh_dim_names or [""] * info.mesh.ndim)
            for axis, dim in (("dp_replicate", "replicate_mesh_dim"), ("dp_shard", "shard_mesh_dim")):
                if getattr(info, dim, None) is not None:
                    names[getattr(info, dim)] = axis
            axes = [(name, int(size)) for name, size in zip(names, info.mesh.shape, strict=True)]
            return axes + _other_axes(model, {name for name, _ in axes})
    sharded = any(flat.state(module) is not None for _, module in named_modules(model))
    return [("dp_shard" if sharded else "dp_replicate", world_size)]


def _other_axes(model: torch.nn.Module, known: set[str]) -> list[tuple[str, int]]:
    """Axes of parameters' meshes that FSDP2 does not use, as `tp`."""
    parameters: list[Any] = list(model.parameters())
    meshes = [parameter.device_mesh for parameter in parameters if hasattr(parameter, "device_mesh")]
    axes = {
        name: int(size)
        for mesh in meshes
        for name, size in zip(_axis_names(mesh), mesh.shape, strict=True)
        if name not in known
    }
    return list(axes.items())


def find_precision(model: torch.nn.Module) -> Precision:
    """Storage by the most common parameter dtype, the rest by FSDP's policy where there is one."""
    sizes: dict[torch.dtype, int] = {}
    for parameter in model.parameters():
        sizes[parameter.dtype] = sizes.get(parameter.dtype, 0) + parameter.numel()
    storage = max(sizes, key=lambda dtype: sizes[dtype]) if sizes else None
    states = [_fsdp_state(module) for _, module in named_modules(model)]
    policy: Any = next((state._mp_policy for state in states if state is not None), None)  # noqa: SLF001 - see _fsdp_state
    policy = policy or next((flat.mixed_precision(m) for _, m in named_modules(model) if flat.state(m)), None)
    param = getattr(policy, "param_dtype", None) or storage
    reduce = getattr(policy, "reduce_dtype", None) or param
    return Precision(dtype_name(param), dtype_name(reduce), None, dtype_name(storage))


def versions() -> dict[str, str | None]:
    """Versions of what decides a trace's contents; DeepSpeed's only where this process uses it."""
    nccl: Any = torch.cuda.nccl.version() if torch.cuda.is_available() else None  # pyright: ignore[reportAttributeAccessIssue]
    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "nccl": ".".join(str(part) for part in nccl) if isinstance(nccl, tuple) else nccl,
        "deepspeed": metadata.version("deepspeed") if "deepspeed" in sys.modules else None,
    }


def device_of(model: torch.nn.Module) -> tuple[str, str]:
    """The device of this rank ("cpu", "cuda:0") and its product name."""
    device = next((p.device for p in model.parameters() if p.device.type != "meta"), torch.device("cpu"))
    if device.type == "cuda":
        return str(device), torch.cuda.get_device_name(device)
    return device.type, _cpu_name()


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine() or "cpu"


def _fsdp_state(module: torch.nn.Module) -> Any:
    # torch 2.13 has no public way to ask for a unit's settings. By the method, so that a bare process does not import
    # torch.distributed.fsdp for the question.
    get = getattr(module, "_get_fsdp_state", None)
    return get() if get else None


def _reshard_setting(state: Any) -> bool | int | None:
    if state._auto_reshard_after_forward:  # noqa: SLF001 - see _fsdp_state
        return None
    for group in state._fsdp_param_groups:  # noqa: SLF001
        after = group.post_forward_mesh_info
        if after is None:
            return False
        if after is not group.mesh_info:
            return int(after.shard_mesh_size)
    return True


def _blocks(prefix: str, module: torch.nn.Module) -> Iterator[str]:
    for name, child in module.named_children():
        full = f"{prefix}.{name}" if prefix else name
        if name == PARAMETRIZED:
            # A parametrized weight is a list of modules, too.
            continue
        if isinstance(module, torch.nn.ModuleList):
            yield clean_name(full)
        else:
            yield from _blocks(full, child)
