"""The facts about a wrapped model that a framework's own state tells."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from tracekit.record.names import PARAMETRIZED, clean_name, dtype_name

Unit = tuple[str, bool | int | None]
# Units in wrap order, each with the names of its modules.
Units = list[tuple[Unit, list[str]]]
Mesh = list[tuple[str, int]]
# Tensors by component, or the bytes of what a framework keeps below Python.
Held = Callable[[], Mapping[str, Iterable[torch.Tensor] | int]]
UNKNOWN = "unknown"


@dataclass(frozen=True)
class Precision:
    """dtypes in torch's spelling without the module ("bfloat16"); None where the strategy leaves it."""

    param_dtype: str | None = None
    reduce_dtype: str | None = None
    buffer_dtype: str | None = None
    storage_dtype: str | None = None


@dataclass
class Found:
    """A model as its framework has it.

    `strategy` is one of the registry's, or UNKNOWN where none of them is what was found (`why` tells); `framework` is
    None where nothing that the recorder knows wraps the model. `wrapped` says in a sentence what does. `names_units`:
    the framework writes the units' names into the trace by itself. `axes`: the names in `mesh` by those that the
    parameters' placements have. `held` and `learned` are the Recorder's arguments.
    `is_readable` is False where the framework's state is one that the recorder does not know, so that only the whole
    of it could be told.
    `synced` tells whether the micro-batch at hand ends with its gradients reduced; asked when `synced_at` begins.
    """

    strategy: str = UNKNOWN
    framework: str | None = None
    wrapped: str = "no wrapper that the recorder knows is around the model"
    why: str | None = None
    is_readable: bool = True
    units: Units = field(default_factory=list)
    mesh: Mesh = field(default_factory=list)
    axes: dict[str, str] = field(default_factory=dict)
    precision: Precision = Precision()
    unit_precision: dict[str, Precision] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    micro_batches: int | None = None
    names_units: bool = False
    held: Held | None = None
    learned: Callable[[], dict[str, Any]] | None = None
    synced: Callable[[], bool] | None = None
    synced_at: Literal["forward", "backward"] = "forward"


def storage_dtype(model: torch.nn.Module) -> str | None:
    """The dtype that most of the parameters' elements have."""
    sizes: dict[torch.dtype, int] = {}
    for parameter in model.parameters():
        sizes[parameter.dtype] = sizes.get(parameter.dtype, 0) + parameter.numel()
    return dtype_name(max(sizes, key=lambda dtype: sizes[dtype])) if sizes else None


def axis_names(mesh: Any) -> list[str]:
    """The names of a DeviceMesh's axes; numbers where it has none."""
    return list(mesh.mesh_dim_names or [f"axis{index}" for index in range(mesh.ndim)])


def in_words(mesh: Mesh) -> str:
    """A mesh in a sentence: "dp_replicate=2, dp_shard=4"."""
    return ", ".join(f"{axis}={size}" for axis, size in mesh)


def blocks(model: torch.nn.Module) -> Units:
    """Units of a model without wrapping of its parts: the elements of its outermost ModuleLists, and the root."""
    return [((name, None), [name]) for name in [*_blocks("", model), ""]]


def with_root(units: Units) -> Units:
    """The units, and a root unit behind them where none of them holds the whole model."""
    return units if any("" in names for _, names in units) else [*units, (("", None), [""])]


def _blocks(prefix: str, module: torch.nn.Module) -> list[str]:
    found: list[str] = []
    for name, child in module.named_children():
        full = f"{prefix}.{name}" if prefix else name
        if name == PARAMETRIZED:
            # A parametrized weight is a list of modules, too.
            continue
        found += [clean_name(full)] if isinstance(module, torch.nn.ModuleList) else _blocks(full, child)
    return found
