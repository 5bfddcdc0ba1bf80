"""FSDP1's flat parameters: the parameters in them with their full shapes, and the padding."""

from __future__ import annotations

from typing import Any

import torch


def state(module: torch.nn.Module) -> Any:
    """The module itself if FSDP1 wraps it, else None; recognised by the class name, which needs no import."""
    return module if type(module).__name__ == "FullyShardedDataParallel" else None


def reshard_setting(wrapped: Any) -> bool | None:
    """None where units but the root are freed after forward (FULL_SHARD), False where they stay (SHARD_GRAD_OP)."""
    # FULL_SHARD and HYBRID_SHARD free units, SHARD_GRAD_OP and _HYBRID_SHARD_ZERO2 do not.
    return None if wrapped.sharding_strategy.name in ("FULL_SHARD", "HYBRID_SHARD") else False


def full_shapes(model: torch.nn.Module) -> dict[int, list[int]]:
    """Shapes before flattening, by the identity of each parameter (FSDP1 with `use_orig_params=True` keeps them)."""
    shapes: dict[int, list[int]] = {}
    flats: list[Any] = [_flat_parameter(module) for module in model.modules()]
    for flat in flats:
        if flat is None or flat._params is None:  # noqa: SLF001 - torch has no public way to ask
            continue
        for parameter, shape in zip(flat._params, flat._shapes, strict=True):  # noqa: SLF001 - see above
            shapes[id(parameter)] = [int(size) for size in shape]
    return shapes


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
    numel = shard * int(handle.world_size)
    return {
        "numel": numel,
        "shard_numel": shard,
        "padding_numel": numel - int(plain),
        "align_padding_numel": int(aligned - plain),
    }


def mixed_precision(module: torch.nn.Module) -> Any:
    """The unit's MixedPrecision, None without one."""
    return getattr(module, "mixed_precision", None)


def _flat_parameter(module: torch.nn.Module) -> Any:
    handle = getattr(state(module), "_handle", None)
    return None if handle is None else handle.flat_param
