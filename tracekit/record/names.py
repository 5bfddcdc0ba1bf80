"""Names of modules and parameters as the user wrote them, and the wrappers around a model that change them."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import torch

# Wrappers put these parts into the names of modules; the model's own names do not have them.
WRAPPER_PARTS = frozenset({"_fsdp_wrapped_module", "_orig_mod", "_checkpoint_wrapped_module"})
PARAMETRIZED = "parametrizations"
# Classes of modules around a whole model, by the attribute that holds it. Recognised by name, so that no package of a
# framework is imported for the question.
AROUND = {
    "DistributedDataParallel": "module",
    "DeepSpeedEngine": "module",
    "DeepSpeedHybridEngine": "module",
    "OptimizedModule": "_orig_mod",
    "_FabricModule": "_forward_module",
}
# Optimizers around an optimizer, likewise: those of Accelerate and Lightning.
AROUND_OPTIMIZERS = {
    "AcceleratedOptimizer": "optimizer",
    "DeepSpeedOptimizerWrapper": "optimizer",
    "FabricOptimizer": "_optimizer",
    "_FabricOptimizer": "_optimizer",
    "LightningOptimizer": "_optimizer",
}


def dtype_name(dtype: torch.dtype | None) -> str | None:
    """`torch.bfloat16` as "bfloat16"."""
    return str(dtype).removeprefix("torch.") if dtype is not None else None


def clean_name(name: str) -> str:
    """A module's or parameter's name without the parts that wrappers put in."""
    if PARAMETRIZED in name:
        # torch.nn.utils.parametrize moves "wq.weight" to "wq.parametrizations.weight.original".
        name = name.replace(f"{PARAMETRIZED}.", "").removesuffix(".original")
    return ".".join(part for part in name.split(".") if part not in WRAPPER_PARTS)


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


def wrappers(model: torch.nn.Module) -> list[torch.nn.Module]:
    """The modules around the user's model, outermost first, and the user's model last.

    Wrappers that were put around `model` itself and not handed over (a trainer keeps its own) are found, too.
    """
    outer = model
    while (found := _around(outer)) is not None:
        outer = found
    chain = [outer]
    while (held := AROUND.get(type(chain[-1]).__name__)) is not None:
        inner = getattr(chain[-1], held, None)
        if not isinstance(inner, torch.nn.Module):
            break
        chain.append(inner)
    return chain


def inner_optimizer(optimizer: Any) -> Any:
    """The optimizer inside those that trainers put around it."""
    while (held := AROUND_OPTIMIZERS.get(type(optimizer).__name__)) is not None and hasattr(optimizer, held):
        optimizer = getattr(optimizer, held)
    return optimizer


def _around(model: torch.nn.Module) -> torch.nn.Module | None:
    """The wrapper that holds `model`: the owner of a table of modules in which it stands under the wrapper's name."""
    tables = [one for one in gc.get_referrers(model) if isinstance(one, dict) and len(one) == 1]
    for table in tables:
        for owner in _owners(table):
            held = AROUND.get(type(owner).__name__)
            if held is not None and table.get(held) is model:
                return owner
    return None


def _owners(table: dict[Any, Any]) -> list[torch.nn.Module]:
    """The modules whose table of children this is; Python keeps attributes in the object or in a dict of its own."""
    referrers = gc.get_referrers(table)
    attributes = [one for one in referrers if isinstance(one, dict) and one.get("_modules") is table]
    found = [owner for one in attributes for owner in gc.get_referrers(one)]
    return [owner for owner in [*referrers, *found] if isinstance(owner, torch.nn.Module)]
