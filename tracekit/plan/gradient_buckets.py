"""Gradients in buckets: their order, how DDP and DeepSpeed fill buckets, and the layer of a bucket."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.layer_names import gradient_order, span
from tracekit.plan.inputs import own_parameters, trainable
from tracekit.plan.schema import item_size

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tracekit.manifest import Manifest, Parameter

MIB = 1 << 20


def gradients(manifest: Manifest) -> list[Parameter]:
    """Parameters in the order in which their gradients are ready.

    The order that the recorder saw, else the reverse of registration, as a plain chain of layers gives.
    """
    wanting = trainable(own_parameters(manifest))
    order = gradient_order(manifest)
    if order is None:
        return wanting[::-1]
    by_name = {parameter.name: parameter for parameter in wanting}
    return [by_name[name] for name in order if name in by_name]


def until_reached(parameters: Iterable[Parameter], limit_bytes: int) -> list[list[Parameter]]:
    """Buckets as DDP fills them: each is closed once it holds `limit_bytes` or more. Types do not mix.

    Source: torch/csrc/distributed/c10d/reducer.cpp, `compute_bucket_assignment_by_size`; the first bucket's own limit
    is left out, as it is the general one where a bucket size is given.
    """
    done: list[list[Parameter]] = []
    filling: dict[str, list[Parameter]] = {}
    for parameter in parameters:
        bucket = filling.setdefault(parameter.dtype, [])
        bucket.append(parameter)
        if sum(member.numel for member in bucket) * item_size(parameter.dtype) >= limit_bytes:
            done.append(filling.pop(parameter.dtype))
    return [*done, *filling.values()]


def before_overflow(parameters: Iterable[Parameter], limit: int) -> list[list[Parameter]]:
    """Buckets as DeepSpeed fills them: one goes when the next gradient would take it over `limit` elements."""
    filled: list[list[Parameter]] = []
    room = -1
    for parameter in parameters:
        if not filled or parameter.numel > room:
            filled.append([])
            room = limit
        filled[-1].append(parameter)
        room -= parameter.numel
    return filled


def bucket_layer(bucket: Iterable[Parameter]) -> str:
    """The layer of a bucket: its only one, else the span `first..last` in the order of its gradients."""
    return span(list(dict.fromkeys(parameter.layer for parameter in bucket)))
