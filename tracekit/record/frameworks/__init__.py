"""The framework around a model, recognised by what it leaves on modules and optimizers: one module a framework.

`look` asks each in turn. Nothing here imports a framework: classes are recognised by their names and states by their
methods, so that a bare process does not pay for torch.distributed.fsdp or DeepSpeed.
"""

from __future__ import annotations

from typing import Any

import torch

from tracekit.record.frameworks import ddp, deepspeed, dtensor, fsdp1, fsdp2
from tracekit.record.frameworks.found import UNKNOWN, Found, Precision, blocks, storage_dtype
from tracekit.record.names import inner_optimizer, wrappers

ENGINES = ("DeepSpeedEngine", "DeepSpeedHybridEngine")


def look(model: torch.nn.Module, optimizer: Any, world_size: int) -> Found:
    """What wraps `model`; its `strategy` is UNKNOWN where nothing known does, or in a way that is not known."""
    chain = wrappers(model)
    inner, by_class = chain[-1], {type(module).__name__: module for module in chain}
    optimizer = inner_optimizer(optimizer)
    for engine in ENGINES:
        if engine in by_class:
            return deepspeed.look(by_class[engine], inner)
    sharded = fsdp2.look(inner) or fsdp1.look(inner)
    replica = by_class.get("DistributedDataParallel")
    if sharded is not None:
        return sharded if replica is None else _both(sharded)
    if replica is not None:
        return ddp.look(replica, inner, optimizer)
    return dtensor.look(inner) or _alone(inner, world_size)


def _alone(model: torch.nn.Module, world_size: int) -> Found:
    """A model that nothing wraps: on one rank there is nothing to send, on several the loop does it by itself."""
    storage = storage_dtype(model)
    return Found(
        strategy="ddp" if world_size == 1 else UNKNOWN,
        why=None
        if world_size == 1
        else "no wrapper was found around the model, so the loop's own calls cannot be planned",
        units=blocks(model),
        mesh=[("dp_replicate", world_size)],
        precision=Precision(storage, storage, None, storage),
    )


def _both(sharded: Found) -> Found:
    sharded.strategy = UNKNOWN
    sharded.why = "there is no plan for DistributedDataParallel around a sharded model"
    return sharded
