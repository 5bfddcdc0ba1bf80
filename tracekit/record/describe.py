"""The model as the manifest describes it: parameters by their full shapes, units, buffers, device and versions."""

from __future__ import annotations

import json
import math
import platform
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from tracekit.record.errors import RecordError
from tracekit.record.frameworks import fsdp1
from tracekit.record.frameworks.found import Found, Precision, Unit, axis_names
from tracekit.record.names import clean_name, dtype_name, named_modules


def model(module: torch.nn.Module, found: Found) -> dict[str, Any]:
    """The manifest's entries about the model and how it is sharded."""
    entries = parameters(module, found.units, found.axes)
    return {
        "strategy": found.strategy,
        "unknown_because": found.why,
        "options": json.loads(json.dumps(found.options)),
        "mesh": [{"axis": axis, "size": size} for axis, size in found.mesh],
        "versions": versions(),
        "precision": vars(found.precision),
        "psi": psi(entries),
        "psi_train": psi(entries, trainable=True),
        "parameters": entries,
        "units": unit_entries(module, found),
        "buffers": buffers(module),
    }


def is_compiled(module: torch.nn.Module) -> bool:
    """True where `Module.compile` was called on it: its hooks are then compiled with it."""
    return getattr(module, "_compiled_call_impl", None) is not None


def owner(name: str, units: Sequence[tuple[Unit, list[str]]]) -> str:
    """The name of the innermost unit that contains the parameter or module `name`; "" is the root."""
    best, unit_name = -1, ""
    for (unit, _), modules in units:
        for module in modules:
            inside = not module or name == module or name.startswith(f"{module}.")
            if inside and len(module) > best:
                best, unit_name = len(module), unit
    return unit_name


def parameters(
    model: torch.nn.Module, units: Sequence[tuple[Unit, list[str]]], axes: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    """One entry a parameter name, in registration order; a tied one names the first that it shares its tensor with.

    A DTensor's entry has its placements by mesh axis and the shape of this rank's shard, too; `axes` renames the axes.
    """
    first: dict[int, str] = {}
    shapes, entries = fsdp1.full_shapes(model), list[dict[str, Any]]()
    flat = _in_flat_parameters(model)
    for raw_name, parameter in model.named_parameters(remove_duplicate=False):
        if id(parameter) in flat:
            entries += [
                _entry(name, shape, parameter, units) | {"tied_to": tied}
                for name, shape, tied in flat[id(parameter)]
                if first.setdefault(id(parameter), raw_name) == raw_name
            ]
            continue
        name = clean_name(raw_name)
        tied_to = first.setdefault(id(parameter), name)
        # A DTensor's shape is the full one; DeepSpeed stage 3 keeps it aside, FSDP1 in its flat parameter.
        whole = shapes.get(id(parameter)) or getattr(parameter, "ds_shape", parameter.shape)
        shape = [int(size) for size in whole]
        tied = {"tied_to": None if tied_to == name else tied_to}
        entries.append(_entry(name, shape, parameter, units) | tied | placements(parameter, axes or {}))
    return entries


def _entry(
    name: str, shape: list[int], parameter: torch.nn.Parameter, units: Sequence[tuple[Unit, list[str]]]
) -> dict[str, Any]:
    return {
        "name": name,
        "shape": shape,
        "dtype": dtype_name(parameter.dtype),
        "numel": math.prod(shape),
        "requires_grad": parameter.requires_grad,
        "layer": owner(name, units),
    }


def _in_flat_parameters(model: torch.nn.Module) -> dict[int, list[tuple[str, list[int], str | None]]]:
    """Name, shape and tie of what each flat parameter holds, where FSDP1 shows only that (`use_orig_params=False`)."""
    found: dict[int, list[tuple[str, list[int], str | None]]] = {}
    for prefix, module in named_modules(model):
        inside = list(fsdp1.originals(module))
        if inside:
            handle: Any = getattr(module, "_handle")  # noqa: B009 - an attribute that torch's stubs do not have
            full = [(_join(prefix, name), shape, tied and _join(prefix, tied)) for name, shape, tied in inside]
            found[id(handle.flat_param)] = full
    return found


def _join(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name


def placements(parameter: Any, axes: Mapping[str, str]) -> dict[str, Any]:
    """`placements` of a DTensor, {"dp_shard": "Shard(0)", "tp": "Shard(1)"}, and its `local_shape`; {} for another.

    "StridedShard(0, 2)" is dim 0 split by a later axis first and then by this one, each of whose parts has 2 pieces.
    """
    if not hasattr(parameter, "placements"):
        return {}
    names = [axes.get(name, name) for name in axis_names(parameter.device_mesh)]
    by_axis = dict(zip(names, (_placement(placement) for placement in parameter.placements), strict=True))
    return {"placements": by_axis, "local_shape": [int(size) for size in parameter.to_local().shape]}


def _placement(placement: Any) -> str:
    split = getattr(placement, "split_factor", None)
    if split is not None:
        return f"StridedShard({placement.dim}, {split})"
    return f"Shard({placement.dim})" if hasattr(placement, "dim") else type(placement).__name__


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


def unit_entries(model: torch.nn.Module, found: Found) -> list[dict[str, Any]]:
    """The manifest's units; FSDP1's with the sizes of their flat parameters, and types where they are a unit's own."""
    modules = dict(named_modules(model))
    entries: list[dict[str, Any]] = []
    for (name, reshard), members in found.units:
        entry: dict[str, Any] = {"name": name, "reshard_after_forward": reshard}
        sizes = fsdp1.sizes(modules[members[0]]) if members[0] in modules else None
        own: Precision | None = found.unit_precision.get(name)
        entry |= {"flat": sizes} if sizes else {}
        entries.append(entry | ({"precision": vars(own)} if own else {}))
    return entries


def psi(entries: Sequence[Mapping[str, Any]], *, trainable: bool = False) -> int:
    """Ψ of `parameters`, or Ψ_train: tied parameters count once."""
    return sum(e["numel"] for e in entries if e["tied_to"] is None and (e["requires_grad"] or not trainable))


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


def as_json(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options as JSON gives them back. Raises RecordError on every rank, before the training starts."""
    try:
        return json.loads(json.dumps(dict(options), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise RecordError(
            f"the options cannot be written to the manifest ({error}); give text, numbers or lists"
        ) from error
