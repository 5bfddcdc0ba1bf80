"""FSDP1: units with a flat parameter each, whose parameters, full shapes and padding stand in its handle.

Recognised by the class name, which needs no import; torch/distributed/fsdp/_flat_param.py has no public way to ask.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from tracekit.record.frameworks.found import UNKNOWN, Found, Mesh, Precision, in_words, storage_dtype, with_root
from tracekit.record.names import clean_name, dtype_name, named_modules

FREES = ("FULL_SHARD", "HYBRID_SHARD")
HYBRID = ("HYBRID_SHARD", "_HYBRID_SHARD_ZERO2")


def look(model: torch.nn.Module) -> Found | None:
    """What FSDP1 wrapped; None where it wrapped nothing."""
    units: list[tuple[str, Any]] = [(name, module) for name, module in named_modules(model) if is_unit(module)]
    if not units:
        return None
    outer = units[-1][1]
    mesh = _mesh(outer)
    strategy, why = _strategy([unit for _, unit in units])
    common, by_unit = _precisions(model, units)
    return Found(
        strategy=strategy,
        framework="torch FSDP1",
        wrapped=f"FullyShardedDataParallel wraps {len(units)} of its modules over {in_words(mesh)}",
        why=why,
        units=with_root([((name, reshard_setting(unit)), [name]) for name, unit in units]),
        mesh=mesh,
        precision=common,
        unit_precision=by_unit,
        options=_options(outer),
        synced=lambda: all(unit._sync_gradients for _, unit in units),  # noqa: SLF001 - see above
    )


def _options(outer: Any) -> dict[str, Any]:
    """The settings of the outermost unit, by the names that the training programs have for them."""
    return {
        "sharding_strategy": outer.sharding_strategy.name,
        "use_orig_params": bool(outer._use_orig_params),  # noqa: SLF001 - torch has no public way to ask
        "forward_prefetch": int(bool(getattr(outer, "forward_prefetch", False))),
        "backward_prefetch": int(getattr(outer, "backward_prefetch", None) is not None),
    }


def is_unit(module: torch.nn.Module) -> bool:
    """Whether FSDP1 wraps the module."""
    return type(module).__name__ == "FullyShardedDataParallel"


def reshard_setting(wrapped: Any) -> bool | None:
    """None where units but the root are freed after forward (FULL_SHARD), False where they stay (SHARD_GRAD_OP)."""
    return None if wrapped.sharding_strategy.name in FREES else False


def full_shapes(model: torch.nn.Module) -> dict[int, list[int]]:
    """Shapes before flattening, by the identity of each parameter (FSDP1 with `use_orig_params=True` keeps them)."""
    shapes: dict[int, list[int]] = {}
    for module in model.modules():
        flat = _flat_parameter(module)
        if flat is not None and flat._params is not None:  # noqa: SLF001 - see above
            for parameter, shape in zip(flat._params, flat._shapes, strict=True):  # noqa: SLF001 - see above
                shapes[id(parameter)] = [int(size) for size in shape]
    return shapes


def originals(module: torch.nn.Module) -> Iterator[tuple[str, list[int], str | None]]:
    """Name inside the module, full shape, and the name that it is tied to, of the parameters in a flat one.

    Where FSDP1 keeps the parameters themselves (`use_orig_params=True`) there is nothing to tell.
    """
    flat = _flat_parameter(module)
    if flat is None or flat._params is not None:  # noqa: SLF001 - see above
        return
    for name, shape in zip(flat._fqns, flat._shapes, strict=True):  # noqa: SLF001 - see above
        yield clean_name(name), [int(size) for size in shape], None
    for shared in flat._shared_param_infos:  # noqa: SLF001 - see above
        own = f"{shared.module_name}.{shared.param_name}" if shared.module_name else shared.param_name
        first = f"{shared.prim_module_name}.{shared.prim_param_name}" if shared.prim_module_name else ""
        first = first or shared.prim_param_name
        at = [clean_name(name) for name in flat._fqns].index(clean_name(first))  # noqa: SLF001 - see above
        yield clean_name(own), [int(size) for size in flat._shapes[at]], clean_name(first)  # noqa: SLF001 - see above


def sizes(module: torch.nn.Module) -> dict[str, int] | None:
    """Elements of a unit's flat parameter; None without one.

    numel: as gathered, a multiple of the ranks. shard_numel: of one rank. padding_numel: numel without the elements of
    parameters; align_padding_numel: the part of it that torch adds to align parameters to 16 bytes and to divide the
    whole by the ranks.
    """
    flat: Any = _flat_parameter(module)
    if flat is None:
        return None
    handle: Any = getattr(module, "_handle")  # noqa: B009 - an attribute that torch's stubs do not have
    shard = int(flat._sharded_size.numel())  # noqa: SLF001 - torch has no public way to ask
    aligned, plain = sum(flat._numels_with_padding), sum(flat._numels)  # noqa: SLF001
    numel = shard * int(handle.world_size) if handle.uses_sharded_strategy else shard
    return {
        "numel": numel,
        "shard_numel": shard,
        "padding_numel": numel - int(plain),
        "align_padding_numel": int(aligned - plain),
    }


def _flat_parameter(module: torch.nn.Module) -> Any:
    handle = getattr(module, "_handle", None) if is_unit(module) else None
    return None if handle is None else handle.flat_param


def _mesh(outer: Any) -> Mesh:
    """The group that shards; before it, where hybrid, the one that replicates."""
    size = int(outer.process_group.size())
    if outer.sharding_strategy.name in HYBRID:
        return [("dp_replicate", int(outer._inter_node_pg.size())), ("dp_shard", size)]  # noqa: SLF001 - see above
    return [("dp_shard", size)]


def _strategy(units: list[Any]) -> tuple[str, str | None]:
    kinds = {unit.sharding_strategy.name for unit in units}
    if kinds <= set(FREES):
        return "fsdp1", None
    if kinds <= {"SHARD_GRAD_OP", "_HYBRID_SHARD_ZERO2"}:
        return "zero2-fsdp1", None
    if kinds == {"NO_SHARD"}:
        return "fsdp1", None
    return UNKNOWN, f"its units are sharded in different ways ({', '.join(sorted(kinds))})"


def _precisions(model: torch.nn.Module, units: list[tuple[str, Any]]) -> tuple[Precision, dict[str, Precision]]:
    """The precision of the units that hold most of the elements, and those of the units that differ from it."""
    storage, by_unit = storage_dtype(model), dict[str, Precision]()
    weights: dict[Precision, int] = {}
    for name, unit in units:
        policy = unit.mixed_precision
        param = dtype_name(policy.param_dtype) or storage
        one = Precision(param, dtype_name(policy.reduce_dtype) or param, dtype_name(policy.buffer_dtype), storage)
        by_unit[name] = one
        weights[one] = weights.get(one, 0) + (sizes(unit) or {"numel": 0})["numel"]
    common = max(weights, key=lambda one: weights[one])
    return common, {name: one for name, one in by_unit.items() if one != common}
