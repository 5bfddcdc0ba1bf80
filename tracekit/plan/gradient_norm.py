"""The collectives of gradient clipping where gradients are DTensors.

Source: torch 2.13, torch/nn/utils/clip_grad.py (`_get_total_norm`): the norms of all gradients are stacked, each rank's
being a part of the whole; the stack is all-reduced, one element a parameter, over every axis that splits gradients.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.plan import shares as named
from tracekit.plan.inputs import SHARD, TENSOR, axis_size, option, own_parameters, with_gradient
from tracekit.plan.schema import Call

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tracekit.manifest import Manifest, Parameter


def norm_calls(manifest: Manifest, is_split: Callable[[Parameter], bool] | None = None) -> Iterator[Call]:
    """The all-reduces of the norm; parameters that `is_split` finds lie on tp too, and are summed over both axes."""
    if option(manifest, "clip_grad_norm", default=None) is None:
        return
    wanting = with_gradient(manifest, own_parameters(manifest))
    split = [parameter for parameter in wanting if is_split is not None and is_split(parameter)]
    for axis, count in ((SHARD, len(wanting) - len(split)), (SHARD, len(split)), (TENSOR, len(split))):
        ranks = axis_size(manifest, axis)
        if count and ranks > 1:
            place = (None, "optimizer", None, "all_reduce", axis, ranks, "float32")
            yield Call(*place, count, count, term=named.NORM)
