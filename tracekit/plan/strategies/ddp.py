"""DDP: all-reduces gradients in buckets while backward runs; sends rank 0's buffers before forward.

Source: torch 2.13, torch/nn/parallel/distributed.py (`_pre_forward`, `_sync_buffers`, `_BucketSizes`) and
torch/csrc/distributed/c10d/reducer.cpp (`rebuild_buckets`).

- Buckets decide how many calls there are, never how much they carry. Those of the first iteration hold all gradients
  of one type; later ones follow the order in which gradients became ready.
- Gradients travel in the parameters' own type, unless a hook compresses them to `reduce_dtype`.
- Buffers are sent before each forward whose predecessor synchronized gradients, all of one type in one broadcast.
- With `find_unused_parameters` every gradient is sent, used or not, in the buckets of registration, and after them a
  map of used parameters, an int32 each (`all_reduce_local_used_map`); with `static_graph` every gradient is sent, too.
- Without synchronization (`no_sync`) a micro-batch sends nothing.
- Clipping needs no collective: every rank holds all gradients.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from tracekit.plan import shares as named
from tracekit.plan.gradient_buckets import MIB, bucket_layer, gradients, until_reached
from tracekit.plan.holding import Holding, adam_bytes, stored_bytes
from tracekit.plan.inputs import (
    gather_size,
    main_axis,
    option,
    own_parameters,
    reduce_dtype,
    synced_micro_batches,
    total,
    trainable,
    with_gradient,
)
from tracekit.plan.schema import Call, Term, item_size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracekit.manifest import Manifest, Parameter

BUCKET_MB = 25.0
_FIRST_BUCKET_BYTES = MIB


def collectives(manifest: Manifest) -> list[Call]:
    """Expected collectives of one step, in the order of issue."""
    synced = synced_micro_batches(manifest)
    calls: list[Call] = []
    for micro_batch in range(manifest.micro_batches):
        if micro_batch == 0 or micro_batch - 1 in synced:
            calls += _buffers(manifest, micro_batch)
        if micro_batch in synced:
            calls += _gradients(manifest, micro_batch, first=micro_batch == min(synced), once=2)
            calls += _used(manifest, micro_batch)
    return calls


def absent(manifest: Manifest) -> Iterator[Term]:
    """Parts of the closed form, 2Ψ, that these calls leave out."""
    yield from gradients_absent(manifest, once=2)


def gradient_calls(manifest: Manifest) -> list[Call]:
    """DDP's calls under an optimizer for which the ZeRO paper reduce-scatters: an all-reduce crosses once too often."""
    return [call._replace(once=1) for call in collectives(manifest)]


def gradients_absent(manifest: Manifest, *, once: int) -> Iterator[Term]:
    """Parameters whose gradients are not sent, counted `once` a pass."""
    sent = {parameter.name for parameter in gradients(manifest)}
    axis, _ = main_axis(manifest)
    for parameter in own_parameters(manifest):
        if parameter.name in sent:
            continue
        reason = named.NO_GRADIENT if parameter.requires_grad else named.FROZEN_UNSENT
        place = (parameter.layer, "backward", "all_reduce", axis, gradient_dtype(manifest, parameter))
        yield Term(reason, -once * parameter.numel, -parameter.numel * gather_size(manifest, parameter), *place)


def gradient_dtype(manifest: Manifest, parameter: Parameter) -> str:
    """The type that a gradient travels in: a hook compresses, it never widens."""
    asked = reduce_dtype(manifest, parameter)
    return asked if asked in ("bfloat16", "float16") and manifest.precision.reduce_dtype else parameter.dtype


def buckets(manifest: Manifest) -> list[list[Parameter]]:
    """Gradients as they are sent together after the first iteration."""
    limit = option(manifest, "bucket_mb", default=None)
    ready = gradients(manifest)
    if limit is not None:
        return until_reached(ready, int(limit * MIB))
    first = until_reached(ready, _FIRST_BUCKET_BYTES)[:1]
    held = {parameter.name for bucket in first for parameter in bucket}
    rest = [parameter for parameter in ready if parameter.name not in held]
    return [*first, *until_reached(rest, int(BUCKET_MB * MIB))]


def memory(manifest: Manifest, _rank: int) -> Holding:
    """Bytes of a rank: everything is whole."""
    return replicated(manifest, trainable(own_parameters(manifest)))


def replicated(manifest: Manifest, state: Sequence[Parameter]) -> Holding:
    """Bytes of whole parameters and gradients, with the optimizer's state of `state` alone.

    The reducer keeps a flat copy of the gradients for its buckets, and one in the compressed type under a hook.
    """
    parameters, sent = own_parameters(manifest), trainable(own_parameters(manifest))
    state = with_gradient(manifest, state)
    flat = stored_bytes(sent)
    compressed = sum(parameter.numel * item_size(gradient_dtype(manifest, parameter)) for parameter in sent)
    hooks = compressed if compressed != flat else 0
    return Holding(stored_bytes(parameters), adam_bytes(state), 0, flat, 0, flat + hooks, flat)


def _gradients(manifest: Manifest, micro_batch: int, *, first: bool, once: int) -> Iterator[Call]:
    axis, ranks = main_axis(manifest)
    for bucket in buckets(manifest):
        numel, dtype = total(bucket), gradient_dtype(manifest, bucket[0])
        own_bytes = sum(parameter.numel * gather_size(manifest, parameter) for parameter in bucket)
        place = (bucket_layer(bucket), "backward", micro_batch, "all_reduce", axis, ranks, dtype)
        yield Call(*place, numel, numel, numel, own_bytes, once, term=None if first else named.MICRO_BATCHES)


def _used(manifest: Manifest, micro_batch: int) -> Iterator[Call]:
    """The map of the parameters that were used, which a graph that is always the same does not need."""
    count = len(trainable(own_parameters(manifest)))
    static = option(manifest, "static_graph", default=False)
    if count and option(manifest, "find_unused_parameters", default=False) and not static:
        axis, ranks = main_axis(manifest)
        yield Call(None, "backward", micro_batch, "all_reduce", axis, ranks, "int32", count, count, term=named.USED)


def _buffers(manifest: Manifest, micro_batch: int) -> Iterator[Call]:
    if not option(manifest, "broadcast_buffers", default=True):
        return
    axis, ranks = main_axis(manifest)
    sizes: dict[str, int] = defaultdict(int)
    for buffer in manifest.buffers:
        sizes[buffer.dtype] += buffer.numel
    # Compiled as a whole, DDP's own forward runs inside the model's; else around it.
    place = ("" if option(manifest, "compile", default=None) == "model" else None, "forward")
    for dtype, numel in sizes.items():
        yield Call(*place, micro_batch, "broadcast", axis, ranks, dtype, numel, numel, term=named.BUFFERS)
