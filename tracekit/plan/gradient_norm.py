"""The collectives of gradient clipping where gradients are DTensors.

Source: torch 2.13, torch/nn/utils/clip_grad.py (`_get_total_norm`): the norms of all gradients are stacked, each rank's
being a part of the whole; the stack is all-reduced, one element a parameter, over every axis that splits gradients.

Before torch 2.10 the norm of the stack was taken first, each rank's being a part of the whole again, and only that was
all-reduced: one element. torch/distributed/tensor/_ops/_math_ops.py, `common_reduction_strategy`, takes a part as it is
there, and in later releases only where its `reduce_op` is that of the reduction, which that of a norm is not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.plan import shares as named
from tracekit.plan.inputs import SHARD, TENSOR, axis_size, is_older, option, own_parameters, with_gradient
from tracekit.plan.schema import Call

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tracekit.manifest import Manifest, Parameter

NORMS_ARE_STACKED = (2, 10)


def norm_calls(manifest: Manifest, is_split: Callable[[Parameter], bool] | None = None) -> Iterator[Call]:
    """The all-reduces of the norm; parameters that `is_split` finds lie on tp too, and are summed over both axes."""
    if option(manifest, "clip_grad_norm", default=None) is None:
        return
    wanting = with_gradient(manifest, own_parameters(manifest))
    split = [parameter for parameter in wanting if is_split is not None and is_split(parameter)]
    is_one = is_older(manifest, "torch", NORMS_ARE_STACKED)
    for axis, count in ((SHARD, len(wanting) - len(split)), (SHARD, len(split)), (TENSOR, len(split))):
        ranks = axis_size(manifest, axis)
        if count and ranks > 1:
            place = (None, "optimizer", None, "all_reduce", axis, ranks, "float32")
            numel = 1 if is_one else count
            yield Call(*place, numel, numel, term=named.NORM)
