"""FSDP as DTensor redistribution inside one compiled graph: every parameter is gathered and reduced by itself.

Source: the graphs that AOTAutograd makes of it (torch 2.13), as the recorder counts them.

Forward gathers each parameter once; what it gathered is saved for backward, which only reduce-scatters: 2Ψ, and whole
parameters stay in memory from forward to backward. The graph has no units: all its calls belong to the root.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.plan import shares as named
from tracekit.plan.gradient_norm import norm_calls
from tracekit.plan.holding import MOMENTS, STEP_BYTES, Holding, shard_numel
from tracekit.plan.inputs import SHARD, axis_size, gather_dtype, gather_size, own_parameters, reduce_dtype, trainable
from tracekit.plan.schema import Call, Term, item_size
from tracekit.plan.strategies.fsdp2 import padded_numel

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.manifest import Manifest, Parameter


def collectives(manifest: Manifest) -> list[Call]:
    """Expected collectives of one step; within forward and backward the compiler decides about the order.

    A tied parameter is gathered at each of its uses.
    """
    if axis_size(manifest) == 1:
        return []
    calls: list[Call] = []
    uses = [(parameter, parameter.tied_to is None) for parameter in manifest.parameters]
    for micro_batch in range(manifest.micro_batches):
        calls += (_call(manifest, micro_batch, *use, phase="forward") for use in uses)
        trained = [use for use in reversed(uses) if use[0].requires_grad]
        calls += (_call(manifest, micro_batch, *use, phase="backward") for use in trained)
    return [*calls, *norm_calls(manifest)]


def absent(manifest: Manifest) -> Iterator[Term]:
    """Parts of the closed form, 3Ψ, that these calls leave out."""
    single = axis_size(manifest) == 1
    for parameter in own_parameters(manifest):
        numel, size = -parameter.numel, -parameter.numel * gather_size(manifest, parameter)
        gather = ("", "forward", "all_gather", SHARD, gather_dtype(manifest, parameter))
        reduced = ("", "backward", "reduce_scatter", SHARD, reduce_dtype(manifest, parameter))
        yield Term(named.SINGLE if single else named.SAVED, numel, size, "", "backward", *gather[2:])
        if single:
            yield Term(named.SINGLE, numel, size, *gather)
        if single or not parameter.requires_grad:
            yield Term(named.SINGLE if single else named.FROZEN, numel, size, *reduced)


def memory(manifest: Manifest, rank: int) -> Holding:
    """Bytes of a rank: padded shards; all gathered parameters live from forward to backward."""
    parameters, ranks = own_parameters(manifest), axis_size(manifest)
    padded = {p.name: padded_numel(p.shape, ranks) for p in parameters}
    wanting = trainable(parameters)
    stored = sum(padded[p.name] // ranks * item_size(p.dtype) for p in parameters)
    trained = sum(shard_numel(p.shape, ranks, rank % ranks) * item_size(p.dtype) for p in wanting)
    state = MOMENTS * trained + STEP_BYTES * len(wanting)
    whole = sum(padded[p.name] * gather_size(manifest, p) for p in parameters)
    work = max((padded[p.name] * item_size(reduce_dtype(manifest, p)) for p in parameters), default=0)
    return Holding(stored, state, 0, trained, whole, work)


def _call(manifest: Manifest, micro_batch: int, parameter: Parameter, first: bool, *, phase: str) -> Call:
    ranks, numel = axis_size(manifest), padded_numel(parameter.shape, axis_size(manifest))
    term = named.MICRO_BATCHES if micro_batch else None if first else named.TIED
    part = numel // ranks
    forward = phase == "forward"
    kind, sizes = ("all_gather", (part, numel)) if forward else ("reduce_scatter", (numel, part))
    dtype = gather_dtype(manifest, parameter) if forward else reduce_dtype(manifest, parameter)
    own = (parameter.numel, parameter.numel * gather_size(manifest, parameter))
    return Call("", phase, micro_batch, kind, SHARD, ranks, dtype, *sizes, *own, term=term)
