"""DistributedDataParallel, and ZeRO-1 as torch's ZeroRedundancyOptimizer over it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from tracekit.record.frameworks.found import UNKNOWN, Found, Precision, blocks, storage_dtype
from tracekit.record.names import clean_name

MIB = 1 << 20
# torch's own hooks by the type that they send; torch.distributed.algorithms.ddp_comm_hooks.default_hooks.
SENDS = {"fp16_compress_hook": "float16", "bf16_compress_hook": "bfloat16"}
PLAIN = ("allreduce_hook", "_allreduce_fut")


def look(replica: Any, model: torch.nn.Module, optimizer: Any) -> Found:
    """What a DistributedDataParallel around `model` is set to, and whether `optimizer` shards its state."""
    size, storage = int(replica.process_group.size()), storage_dtype(model)
    sharded = is_sharded(optimizer)
    hooks = [_name_of(hook) for hook, _ in replica._comm_hooks]  # noqa: SLF001 - torch lists them nowhere else
    odd = [hook for hook in hooks if hook not in SENDS and hook not in PLAIN]
    sends = next((SENDS[hook] for hook in hooks if hook in SENDS), storage)
    return Found(
        strategy=UNKNOWN if odd else "zero1" if sharded else "ddp",
        framework="torch DDP",
        wrapped=f"the model is wrapped by DistributedDataParallel over {size} ranks"
        + (" and its optimizer is a ZeroRedundancyOptimizer" if sharded else ""),
        why=f"what the hook {odd[0]} sends instead of gradients cannot be planned" if odd else None,
        units=blocks(model),
        mesh=[("dp_replicate", size)],
        precision=Precision(storage, sends, None, storage),
        options=_options(replica, hooks),
        held=lambda: _held(replica, optimizer if sharded else None),
        learned=lambda: _learned(replica, optimizer if sharded else None),
        synced=lambda: bool(replica.require_backward_grad_sync),
    )


def is_sharded(optimizer: Any) -> bool:
    """Whether it is a ZeroRedundancyOptimizer, by its class's name."""
    return type(optimizer).__name__ == "ZeroRedundancyOptimizer"


def _options(replica: Any, hooks: list[str]) -> dict[str, Any]:
    found = {
        "bucket_mb": replica.bucket_bytes_cap / MIB,
        # A model without buffers sends none, whatever the setting.
        "broadcast_buffers": bool(replica.broadcast_buffers),
        "find_unused_parameters": bool(replica.find_unused_parameters),
        "static_graph": bool(replica.static_graph),
    }
    return found | ({"comm_hook": hooks[0]} if hooks else {})


def _held(replica: Any, sharded: Any) -> dict[str, Iterable[torch.Tensor] | int]:
    """The reducer's buckets, whose tensors are below Python, and the state inside a sharded optimizer."""
    data: Mapping[str, Any] = replica._get_ddp_logging_data()  # noqa: SLF001 - torch tells its buckets nowhere else
    text = str(data.get("rebuilt_bucket_sizes") or data.get("bucket_sizes") or "")
    buckets = sum(int(size) for size in text.split(",") if size.strip())
    if replica.gradient_as_bucket_view:
        # Gradients that are there are views of the buckets, and are counted as gradients.
        storages = {
            p.grad.untyped_storage().data_ptr(): p.grad for p in replica.module.parameters() if p.grad is not None
        }
        buckets = max(buckets - sum(grad.untyped_storage().nbytes() for grad in storages.values()), 0)
    state = {} if sharded is None else {"optimizer_state": list(_tensors(sharded.optim.state))}
    return {"collective_buffers": buckets, **state}


def _name_of(hook: Any) -> str:
    return str(getattr(hook, "__name__", None) or type(hook).__name__)


def _learned(replica: Any, optimizer: Any) -> dict[str, Any]:
    """The buckets that the reducer made after the first backward; of a sharded optimizer, each parameter's owner."""
    named = {parameter: clean_name(name) for name, parameter in replica.module.named_parameters()}
    # In the order in which DDP registered them; those that it was told to ignore are not among them.
    ignored = set(getattr(replica, "parameters_to_ignore", ()))
    trained = [(n, p) for n, p in replica.module.named_parameters() if p.requires_grad and n not in ignored]
    data: Mapping[str, Any] = replica._get_ddp_logging_data()  # noqa: SLF001 - torch tells its buckets nowhere else
    text = data.get("rebuilt_per_bucket_param_indices") or data.get("initial_per_bucket_param_indices")
    groups = [[trained[index] for index in group] for group in _groups(text)]
    learned: dict[str, Any] = {
        "buckets": [
            {"numel": sum(p.numel() for _, p in group), "parameters": [clean_name(name) for name, _ in group]}
            for group in groups
        ]
    }
    if optimizer is not None:
        parts: Any = optimizer._partition_parameters()  # noqa: SLF001 - torch tells the owners nowhere else
        learned["owners"] = {
            named[parameter]: rank
            for rank, groups in enumerate(parts)
            for group in groups
            for parameter in group["params"]
        }
    return learned


def _groups(text: object) -> list[list[int]]:
    """The text of indices that torch gives, "0 1, 2 3", as lists."""
    return [[int(index) for index in group.split()] for group in str(text or "").split(",") if group.strip()]


def _tensors(state: Mapping[Any, Any]) -> Iterator[torch.Tensor]:
    for values in state.values():
        yield from (value for value in values.values() if isinstance(value, torch.Tensor))
