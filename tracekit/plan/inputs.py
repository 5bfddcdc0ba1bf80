"""Parameters, units, mesh, types and options of a manifest, as the plans read them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from tracekit.plan.schema import is_floating, item_size

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tracekit.manifest import Manifest, Parameter, Precision

SHARD, REPLICATE, TENSOR = "dp_shard", "dp_replicate", "tp"


def own_parameters(manifest: Manifest) -> list[Parameter]:
    """Parameters in registration order, tied ones once."""
    return [parameter for parameter in manifest.parameters if parameter.tied_to is None]


def trainable(parameters: Iterable[Parameter]) -> list[Parameter]:
    """Parameters with a gradient."""
    return [parameter for parameter in parameters if parameter.requires_grad]


def with_gradient(manifest: Manifest, parameters: Iterable[Parameter]) -> list[Parameter]:
    """Parameters that got a gradient, where that was seen; else all those that want one."""
    seen = set(manifest.grad_order or ())
    return [parameter for parameter in trainable(parameters) if not seen or parameter.name in seen]


def total(parameters: Iterable[Parameter]) -> int:
    """Elements of all parameters."""
    return sum(parameter.numel for parameter in parameters)


def axis_size(manifest: Manifest, axis: str = SHARD) -> int:
    """Ranks along a mesh axis: the whole world where the manifest has no mesh, 1 where its mesh has no such axis."""
    if not manifest.mesh:
        return manifest.world_size if axis == SHARD else 1
    return next((entry.size for entry in manifest.mesh if entry.axis == axis), 1)


def main_axis(manifest: Manifest) -> tuple[str, int]:
    """The only data-parallel axis of a strategy without a second one, and its size."""
    if not manifest.mesh:
        return SHARD, manifest.world_size
    return manifest.mesh[0].axis, manifest.mesh[0].size


def option(manifest: Manifest, name: str, *, default: Any) -> Any:
    """An option's value; the default where it is absent or null."""
    value = manifest.options.get(name)
    return default if value is None else value


def is_older(manifest: Manifest, package: str, release: tuple[int, int]) -> bool:
    """True where the run was recorded with an older release of torch or deepspeed than `release` (major, minor).

    A run that names none is planned as of the newest.
    """
    found = re.match(r"(\d+)\.(\d+)", manifest.versions.get(package) or "")
    return found is not None and (int(found[1]), int(found[2])) < release


def checkpointing(manifest: Manifest) -> str:
    """How activations are recomputed: a mode of `tracekit.strategies.CHECKPOINTING`; a bare true means whole blocks."""
    value = option(manifest, "activation_checkpointing", default=False)
    return value if isinstance(value, str) else "full" if value else "none"


def precision(manifest: Manifest, parameter: Parameter) -> Precision:
    """The types of the unit that owns a parameter: its own, or those of all."""
    own = (unit.precision for unit in manifest.units if unit.precision and unit.name == parameter.layer)
    return next(own, manifest.precision)


def gather_dtype(manifest: Manifest, parameter: Parameter) -> str:
    """The type that a parameter is computed, and therefore gathered, in."""
    cast = precision(manifest, parameter).param_dtype
    return cast if cast is not None and is_floating(parameter.dtype) else parameter.dtype


def reduce_dtype(manifest: Manifest, parameter: Parameter) -> str:
    """The type that its gradient is reduced in."""
    return precision(manifest, parameter).reduce_dtype or gather_dtype(manifest, parameter)


def gather_size(manifest: Manifest, parameter: Parameter) -> int:
    """Bytes of one gathered element: what the closed form takes every pass of that parameter for."""
    return item_size(gather_dtype(manifest, parameter))


def unit_parameters(manifest: Manifest, parameters: Iterable[Parameter]) -> dict[str, list[Parameter]]:
    """Parameters of each unit that owns any, root first: the order of forward."""
    names = sorted((unit.name for unit in manifest.units), key=bool)
    owned: dict[str, list[Parameter]] = {name: [] for name in ("", *names)}
    for parameter in parameters:
        owned.setdefault(parameter.layer, []).append(parameter)
    return {name: members for name, members in owned.items() if members}


def synced_micro_batches(manifest: Manifest) -> set[int]:
    """The micro-batches whose backward reduces gradients: all, or the last one."""
    every = option(manifest, "sync_every_micro_batch", default=True)
    return set(range(manifest.micro_batches)) if every else {manifest.micro_batches - 1}
