"""Bytes that a rank holds between two steps, by component."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from tracekit.record.frameworks.found import Held

COMPONENTS = ("parameters", "gradients", "optimizer_state", "buffers", "collective_buffers")


def held_bytes(model: torch.nn.Module, optimizer: Any, extra: Held | None = None) -> dict[str, int]:
    """Bytes of the distinct local storages of each of COMPONENTS.

    A sharded tensor counts with its local shard (and its padding), views of one storage once, a storage that two
    components share for the first of them. `extra` names tensors that a framework keeps outside the model and the
    optimizer's state, by component, or their bytes where Python does not see them.
    """
    found: dict[str, list[torch.Tensor]] = {
        "parameters": list(model.parameters()),
        "gradients": [p.grad for p in model.parameters() if p.grad is not None],
        "optimizer_state": list(_tensors(getattr(optimizer, "state", {}))),
        "buffers": list(model.buffers()),
        "collective_buffers": [],
    }
    unseen: Counter[str] = Counter()
    for component, more in (extra() if extra else {}).items():
        if isinstance(more, int):
            unseen[component] += more
        else:
            found.setdefault(component, []).extend(more)
    seen: set[tuple[str, int]] = set()
    return {component: sum(_new_storages(tensors, seen)) + unseen[component] for component, tensors in found.items()}


def _new_storages(tensors: Iterable[torch.Tensor], seen: set[tuple[str, int]]) -> Iterator[int]:
    for tensor in tensors:
        if tensor.is_meta:
            continue
        storage = _local(tensor).untyped_storage()
        key = (str(storage.device), storage.data_ptr())
        if storage.nbytes() and key not in seen:
            seen.add(key)
            yield storage.nbytes()


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """The local shard of a DTensor, recognised by its method so that torch.distributed.tensor is not imported."""
    to_local = getattr(tensor.detach(), "to_local", None)
    return to_local() if to_local else tensor


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
