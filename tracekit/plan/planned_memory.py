"""Bytes that a strategy holds on one rank, by component: between two steps, and at most inside one.

The model state of the lesson and what it leaves out: unsharded parameters, and the buffers that collectives work in.
Activations are not planned. The optimizer is Adam: two moments a parameter and a step counter of 4 bytes each.

Sources as in the strategies' own modules; what a rank holds between two steps is what the recorder measures.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from tracekit.plan.inputs import (
    axis_size,
    gather_dtype,
    gather_size,
    main_axis,
    option,
    own_parameters,
    reduce_dtype,
    total,
    trainable,
    unit_parameters,
)
from tracekit.plan.schema import item_size
from tracekit.plan.strategies import ddp, fsdp1, fsdp2, fsdp2_tp, zero1, zero1_deepspeed, zero2, zero3_deepspeed
from tracekit.plan.strategies.fsdp2 import padded_numel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tracekit.manifest import Manifest, Parameter

MEMORY_SCHEMA = pl.Schema({"component": pl.String, "held_bytes": pl.Int64, "peak_bytes": pl.Int64})
_MOMENTS, _MASTER, _STEP_BYTES = 2, 4, 4


class Holding(NamedTuple):
    """Bytes by component; `peak` inside a step, the others always."""

    parameters: int
    optimizer_state: int
    gradients: int
    peak_gradients: int
    unsharded: int
    collective_buffers: int
    always_buffers: int = 0


def memory(manifest: Manifest | None, rank: int = 0) -> pl.DataFrame:
    """Expected bytes of a rank by component: MEMORY_SCHEMA, a row each for the components of the module's docstring.

    `held_bytes` between two steps, `peak_bytes` the most inside one. Empty without a manifest or a plan.
    """
    planner = _PLANNERS.get(manifest.strategy) if manifest is not None else None
    if manifest is None or planner is None:
        return pl.DataFrame(schema=MEMORY_SCHEMA)
    holds = planner(manifest, rank)
    buffers = sum(buffer.numel * item_size(buffer.dtype) for buffer in manifest.buffers)
    rows = [
        ("parameters", holds.parameters, holds.parameters),
        ("gradients", holds.gradients, holds.peak_gradients),
        ("optimizer_state", holds.optimizer_state, holds.optimizer_state),
        ("buffers", buffers, buffers),
        ("unsharded_parameters", 0, holds.unsharded),
        ("collective_buffers", holds.always_buffers, holds.collective_buffers),
    ]
    return pl.DataFrame(rows, schema=MEMORY_SCHEMA, orient="row")


def _stored(parameters: Iterable[Parameter]) -> int:
    return sum(parameter.numel * item_size(parameter.dtype) for parameter in parameters)


def _moments(parameters: Sequence[Parameter]) -> int:
    return _MOMENTS * _stored(parameters) + _STEP_BYTES * len(parameters)


def _replicated(manifest: Manifest, state: Sequence[Parameter]) -> Holding:
    """DDP: all is whole; the reducer keeps a flat copy of the gradients for its buckets."""
    parameters, sent = own_parameters(manifest), trainable(own_parameters(manifest))
    flat = _stored(sent)
    compressed = sum(parameter.numel * item_size(ddp.gradient_dtype(manifest, parameter)) for parameter in sent)
    hooks = compressed if compressed != flat else 0
    return Holding(_stored(parameters), _moments(state), 0, flat, 0, flat + hooks, flat)


def _ddp(manifest: Manifest, _rank: int) -> Holding:
    return _replicated(manifest, trainable(own_parameters(manifest)))


def _zero1(manifest: Manifest, rank: int) -> Holding:
    return _replicated(manifest, zero1.owners(manifest)[rank % main_axis(manifest)[1]])


def _deepspeed(manifest: Manifest, *, whole_gradients: bool) -> Holding:
    """Stages 1 and 2: whole parameters; fp32 master weights, moments and one counter of the rank's partition."""
    parameters, ranks = own_parameters(manifest), axis_size(manifest)
    size, part = item_size(zero2.model_dtype(manifest)), zero2.gathered_numel(manifest) // ranks
    accumulated = item_size(option(manifest, "grad_accum_dtype", default=None) or zero2.model_dtype(manifest))
    state = (_MASTER + 8) * part + _STEP_BYTES
    numel = total(trainable(parameters))
    gradients = numel * (size + accumulated * (manifest.micro_batches > 1)) if whole_gradients else part * accumulated
    bucket = int(option(manifest, "reduce_bucket_size", default=zero2.REDUCE_BUCKET_SIZE))
    # Overlapping fills a second bucket while the first is reduced; contiguous gradients are DeepSpeed's default.
    copies = 2 if option(manifest, "overlap_comm", default=True) else 1
    # The trained parameters are laid out anew, in one padded piece.
    stored = total(parameters) - numel + zero2.gathered_numel(manifest)
    return Holding(stored * size, state, 0, gradients, 0, copies * bucket * size)


def _zero1_deepspeed(manifest: Manifest, _rank: int) -> Holding:
    holds = _deepspeed(manifest, whole_gradients=True)
    return holds._replace(collective_buffers=0) if zero1_deepspeed.has_bf16_optimizer(manifest) else holds


def _zero3_deepspeed(manifest: Manifest, _rank: int) -> Holding:
    """Stage 3: partitions of everything, small parameters whole beside them, gradients in a flat partition."""
    parameters, ranks = own_parameters(manifest), axis_size(manifest)
    size, accumulated = item_size(zero2.model_dtype(manifest)), option(manifest, "grad_accum_dtype", default=None)
    part = sum(zero3_deepspeed.padded(parameter, ranks) // ranks for parameter in parameters)
    trained = sum(zero3_deepspeed.padded(parameter, ranks) // ranks for parameter in trainable(parameters))
    kept = total(zero3_deepspeed.persistent(manifest))
    gradients = trained * (item_size(accumulated) if accumulated else size)
    bucket = int(option(manifest, "reduce_bucket_size", default=zero2.REDUCE_BUCKET_SIZE)) * size
    state = (_MASTER + 8) * trained + _STEP_BYTES
    unsharded = zero3_deepspeed.peak_numel(manifest) * size
    return Holding((part + kept) * size, state, gradients, gradients, unsharded, 2 * bucket, bucket)


def _fsdp2(manifest: Manifest, rank: int, *, keep: bool = False, local: fsdp2.Local | None = None) -> Holding:
    """FSDP2: padded shards in the stored type; units whole in the compute type from their gather to their release."""
    owned, ranks = fsdp2.managed(manifest), axis_size(manifest)
    shape: fsdp2.Local = local or (lambda parameter: parameter.shape)
    place = rank % ranks
    shards = {parameter.name: _rows(shape(parameter), ranks, place) for parameter in owned}
    state = _MOMENTS * sum(shards[p.name] * item_size(p.dtype) for p in trainable(owned))
    state += _STEP_BYTES * len(trainable(owned))
    stored = sum(padded_numel(shape(p), ranks) // ranks * item_size(p.dtype) for p in owned)
    ignored = [parameter for parameter in own_parameters(manifest) if parameter not in owned]
    gradients = sum(shards[p.name] * item_size(p.dtype) for p in trainable(owned))
    units = unit_parameters(manifest, owned)
    gathered = {
        name: sum(padded_numel(shape(p), ranks) * gather_size(manifest, p) for p in own) for name, own in units.items()
    }
    reduced = {
        name: sum(padded_numel(shape(p), ranks) * item_size(reduce_dtype(manifest, p)) for p in trainable(own))
        for name, own in units.items()
    }
    whole = sum(reduced.values()) if not option(manifest, "sync_every_micro_batch", default=True) else 0
    largest = max(
        (sum(math.prod(shape(p)) * gather_size(manifest, p) for p in trainable(own)) for own in units.values()),
        default=0,
    )
    kept = [name for name in units if name not in fsdp2.regather_sizes(manifest, keep_gathered=keep)]
    unsharded = _resident(gathered, kept, int(option(manifest, "backward_prefetch", default=0)) or 1)
    work = max(gathered.values(), default=0) + max(reduced.values(), default=0) * (ranks + 1) // ranks
    moments = _moments(trainable(ignored))
    return Holding(stored + _stored(ignored), state + moments, 0, gradients + whole + largest, unsharded, work)


def _fsdp1(manifest: Manifest, rank: int, *, keep: bool = False) -> Holding:
    """FSDP1: shards of flat parameters; the state covers what of each parameter lies in the rank's shard."""
    units, ranks = unit_parameters(manifest, own_parameters(manifest)), axis_size(manifest)
    flats = {name: fsdp1.flat_numel(manifest, owned) for name, owned in units.items()}
    stored = sum(flats[name] // ranks * item_size(owned[0].dtype) for name, owned in units.items())
    pieces = [
        (numel, parameter)
        for owned in units.values()
        for numel, parameter in fsdp1.local_pieces(manifest, owned, rank % ranks)
        if parameter.requires_grad
    ]
    state = sum(_MOMENTS * numel * item_size(parameter.dtype) + _STEP_BYTES for numel, parameter in pieces)
    gathered = {name: flats[name] * gather_size(manifest, owned[0]) for name, owned in units.items()}
    reduced = [flats[name] * item_size(reduce_dtype(manifest, owned[0])) for name, owned in units.items()]
    whole = sum(reduced) if not option(manifest, "sync_every_micro_batch", default=True) else 0
    unsharded = _resident(gathered, list(units) if keep else [name for name in units if not name], 1)
    peak = stored + whole + max(gathered.values(), default=0)
    return Holding(stored, state, 0, peak, unsharded, max(reduced, default=0) * (ranks + 1) // ranks)


def _graph(manifest: Manifest, rank: int) -> Holding:
    """The compiled graph: padded shards; all gathered parameters live from forward to backward."""
    parameters, ranks = own_parameters(manifest), axis_size(manifest)
    rows = {parameter.name: _rows(parameter.shape, ranks, rank % ranks) for parameter in parameters}
    stored = sum(padded_numel(p.shape, ranks) // ranks * item_size(p.dtype) for p in parameters)
    trained = sum(rows[p.name] * item_size(p.dtype) for p in trainable(parameters))
    state = _MOMENTS * trained + _STEP_BYTES * len(trainable(parameters))
    whole = sum(padded_numel(p.shape, ranks) * item_size(gather_dtype(manifest, p)) for p in parameters)
    work = max((padded_numel(p.shape, ranks) * item_size(reduce_dtype(manifest, p)) for p in parameters), default=0)
    return Holding(stored, state, 0, trained, whole, work)


def _rows(shape: list[int], ranks: int, rank: int) -> int:
    """Elements of a rank's shard of dim 0, without padding."""
    if not shape:
        return 1
    each = -(-shape[0] // ranks)
    return max(0, min(each, shape[0] - rank * each)) * math.prod(shape[1:])


def _resident(gathered: dict[str, int], kept: list[str], ahead: int) -> int:
    """Most bytes of gathered units at once: those kept, and the current one with those gathered ahead of it."""
    passing = [size for name, size in gathered.items() if name not in kept]
    windows = [sum(passing[place : place + ahead + 1]) for place in range(len(passing))]
    return sum(gathered[name] for name in kept) + max(windows, default=0)


_PLANNERS: dict[str, Callable[[Manifest, int], Holding]] = {
    "ddp": _ddp,
    "zero1": _zero1,
    "zero1-deepspeed": _zero1_deepspeed,
    "zero2": lambda manifest, _rank: _deepspeed(manifest, whole_gradients=False),
    "zero3-deepspeed": _zero3_deepspeed,
    "fsdp1": _fsdp1,
    "zero2-fsdp1": lambda manifest, rank: _fsdp1(manifest, rank, keep=True),
    "fsdp2": _fsdp2,
    "zero2-fsdp2": lambda manifest, rank: _fsdp2(manifest, rank, keep=True),
    "hsdp": _fsdp2,
    "fsdp2-tp": lambda manifest, rank: _fsdp2(
        manifest,
        rank // axis_size(manifest, "tp"),
        local=lambda parameter: fsdp2_tp.local_shape(manifest, parameter),
    ),
    "fsdp2-graph": _graph,
}
