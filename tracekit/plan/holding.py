"""Bytes of model state that a strategy holds, and what the strategies' files share to count them.

The optimizer is Adam: two moments a parameter, and a step counter of 4 bytes for each of its tensors. Where weights
are 16-bit, DeepSpeed keeps an fp32 master copy.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from tracekit.plan.schema import item_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tracekit.manifest import Parameter

MOMENTS, MASTER_BYTES, STEP_BYTES = 2, 4, 4
# DeepSpeed's master copy and both moments are fp32.
DEEPSPEED_STATE_BYTES = MASTER_BYTES + 8


class Holding(NamedTuple):
    """Bytes by component: `peak_gradients`, `unsharded` and `collective_buffers` inside a step, the others always."""

    parameters: int
    optimizer_state: int
    gradients: int
    peak_gradients: int
    unsharded: int
    collective_buffers: int
    always_buffers: int = 0


def stored_bytes(parameters: Iterable[Parameter]) -> int:
    """Bytes of whole parameters in their stored type."""
    return sum(parameter.numel * item_size(parameter.dtype) for parameter in parameters)


def adam_bytes(parameters: Sequence[Parameter]) -> int:
    """Bytes of Adam's state for whole parameters, in their own type."""
    return MOMENTS * stored_bytes(parameters) + STEP_BYTES * len(parameters)


def shard_numel(shape: list[int], ranks: int, rank: int) -> int:
    """Elements of a rank's shard of dim 0, without padding."""
    if not shape:
        return 1
    each = -(-shape[0] // ranks)
    return max(0, min(each, shape[0] - rank * each)) * math.prod(shape[1:])


def most_unsharded(gathered: dict[str, int], kept: list[str], ahead: int) -> int:
    """Most bytes of gathered units at once: those kept, and the current one with those gathered `ahead` of it."""
    passing = [size for name, size in gathered.items() if name not in kept]
    windows = [sum(passing[place : place + ahead + 1]) for place in range(len(passing))]
    return sum(gathered[name] for name in kept) + max(windows, default=0)
