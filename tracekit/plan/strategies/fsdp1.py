"""FSDP1: each unit is one flat parameter, gathered in forward and again in backward, gradients reduce-scattered.

Source: torch 2.13, torch/distributed/fsdp: `_flat_param.py` (`_init_flat_param_and_metadata`, `_get_aligned_numel`),
`_runtime_utils.py` (`_post_forward_reshard`, `_should_free_in_backward`, `_reduce_grad`).

- A flat parameter starts each of its parameters at 16 bytes (of the type that it computes in), and is padded to a
  multiple of the ranks. It travels whole: frozen parameters among trained ones are reduced with them.
- FULL_SHARD frees every unit after forward but the root. SHARD_GRAD_OP frees none, and with gradient
  synchronization off keeps them even after backward, so that later micro-batches gather nothing.
- A unit whose output needs no gradient is not gathered in backward, nor ahead (`_register_pre_backward_hooks`).
- HYBRID_SHARD does so among the ranks of one replica; what was reduce-scattered is all-reduced over the replicas.
- Clipping sums one number over the ranks.
- One rank alone becomes NO_SHARD (`_init_utils.py`, `_init_core_state`): nothing is gathered, and every flat gradient
  is all-reduced over a group of one (`_reduce_grad_no_shard`). Clipping then needs no collective.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.layer_names import units_with_backward
from tracekit.plan import shares as named
from tracekit.plan.holding import MOMENTS, STEP_BYTES, Holding, most_unsharded
from tracekit.plan.inputs import (
    REPLICATE,
    SHARD,
    axis_size,
    gather_dtype,
    gather_size,
    option,
    own_parameters,
    reduce_dtype,
    synced_micro_batches,
    total,
    unit_parameters,
)
from tracekit.plan.schema import Call, Term, item_size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.manifest import Manifest, Parameter

_ALIGNMENT_BYTES = 16


def collectives(manifest: Manifest, *, keep_gathered: bool = False) -> list[Call]:
    """Expected collectives of one step; the next unit is gathered before the gradients of this one are reduced."""
    units = unit_parameters(manifest, own_parameters(manifest))
    synced = synced_micro_batches(manifest)
    backward = [*reversed([name for name in _with_backward(manifest) if name])]
    calls: list[Call] = []
    for micro_batch in range(manifest.micro_batches):
        stays = keep_gathered and micro_batch > 0 and micro_batch - 1 not in synced
        calls += (_gather(manifest, (name, "forward", micro_batch), units[name]) for name in units if not stays)
        again = [] if keep_gathered else backward
        due = [_gather(manifest, (name, "backward", micro_batch), units[name]) for name in again]
        calls += due[:1]
        for place, name in enumerate(backward):
            calls += due[place + 1 : place + 2]
            calls += _reduce(manifest, (name, "backward", micro_batch), units[name], synced)
        calls += _reduce(manifest, ("", "backward", micro_batch), units.get("", []), synced)
    if axis_size(manifest) == 1:
        return [_unsharded(call) for call in calls if call.kind == "reduce_scatter"]
    return [*calls, *_norm(manifest)]


def absent(manifest: Manifest, *, keep_gathered: bool = False) -> Iterator[Term]:
    """Parts of the closed form, 3Ψ (2Ψ with every unit kept gathered), that these calls leave out."""
    units = unit_parameters(manifest, own_parameters(manifest))
    single, entered = axis_size(manifest) == 1, _with_backward(manifest)
    for parameter in own_parameters(manifest):
        numel, size = parameter.numel, parameter.numel * gather_size(manifest, parameter)
        gather = (parameter.layer, "forward", "all_gather", SHARD, gather_dtype(manifest, parameter))
        again = (parameter.layer, "backward", *gather[2:])
        reduced = (parameter.layer, "backward", "reduce_scatter", SHARD, reduce_dtype(manifest, parameter))
        if single:
            yield from (
                Term(named.SINGLE_GATHER, -numel, -size, *place) for place in (gather, again)[: 2 - keep_gathered]
            )
            reduced = (parameter.layer, "backward", "all_reduce", *reduced[3:])
        elif not keep_gathered and (not parameter.layer or parameter.layer not in entered):
            yield Term(named.NO_BACKWARD if parameter.layer else named.ROOT_KEPT, -numel, -size, *again)
        if not any(member.requires_grad for member in units[parameter.layer]):
            yield Term(named.FROZEN, -numel, -size, *reduced)


def memory(manifest: Manifest, rank: int, *, keep_gathered: bool = False) -> Holding:
    """Bytes of a rank: shards of flat parameters; the state covers what of each parameter lies in the rank's shard."""
    units, ranks = unit_parameters(manifest, own_parameters(manifest)), axis_size(manifest)
    flats = {name: flat_numel(manifest, owned) for name, owned in units.items()}
    stored = sum(flats[name] // ranks * item_size(owned[0].dtype) for name, owned in units.items())
    pieces = [
        (numel, parameter)
        for owned in units.values()
        for numel, parameter in local_pieces(manifest, owned, rank % ranks)
        if parameter.requires_grad
    ]
    state = sum(MOMENTS * numel * item_size(parameter.dtype) + STEP_BYTES for numel, parameter in pieces)
    gathered = {name: flats[name] * gather_size(manifest, owned[0]) for name, owned in units.items()}
    reduced = [flats[name] * item_size(reduce_dtype(manifest, owned[0])) for name, owned in units.items()]
    whole = sum(reduced) if not option(manifest, "sync_every_micro_batch", default=True) else 0
    unsharded = most_unsharded(gathered, list(units) if keep_gathered else [name for name in units if not name], 1)
    peak = stored + whole + max(gathered.values(), default=0)
    return Holding(stored, state, 0, peak, unsharded, max(reduced, default=0) * (ranks + 1) // ranks)


def flat_numel(manifest: Manifest, parameters: list[Parameter]) -> int:
    """Elements of the flat parameter that holds these, alignment and padding to the ranks included."""
    ranks = axis_size(manifest)
    end = max(end for _, end, _ in _laid_out(manifest, parameters))
    return -(-end // ranks) * ranks


def local_pieces(manifest: Manifest, parameters: list[Parameter], rank: int) -> list[tuple[int, Parameter]]:
    """Elements of each parameter that lie in a rank's shard of the flat one; those with none are left out."""
    shard = flat_numel(manifest, parameters) // axis_size(manifest)
    pieces = [
        (min(end, (rank + 1) * shard) - max(start, rank * shard), parameter)
        for start, end, parameter in _laid_out(manifest, parameters)
    ]
    return [(numel, parameter) for numel, parameter in pieces if numel > 0]


def _with_backward(manifest: Manifest) -> list[str]:
    return units_with_backward(own_parameters(manifest), flat=True)


def _unsharded(call: Call) -> Call:
    """The all-reduce that NO_SHARD has in place of a reduce-scatter; where that is another's, it crosses once more."""
    return call._replace(kind="all_reduce", out_numel=call.in_numel)


def _laid_out(manifest: Manifest, parameters: list[Parameter]) -> Iterator[tuple[int, int, Parameter]]:
    aligned = _ALIGNMENT_BYTES // item_size(gather_dtype(manifest, parameters[0]))
    end = 0
    for parameter in parameters:
        start = -(-end // aligned) * aligned
        end = start + parameter.numel
        yield start, end, parameter


def _gather(manifest: Manifest, place: tuple[str, str, int], parameters: list[Parameter]) -> Call:
    ranks, numel = axis_size(manifest), flat_numel(manifest, parameters)
    own_bytes = sum(parameter.numel * gather_size(manifest, parameter) for parameter in parameters)
    dtype, repeated = gather_dtype(manifest, parameters[0]), named.MICRO_BATCHES if place[2] else None
    sizes = (numel // ranks, numel, total(parameters), own_bytes)
    return Call(*place, "all_gather", SHARD, ranks, dtype, *sizes, term=repeated, rest=named.ALIGNMENT)


def _reduce(
    manifest: Manifest, place: tuple[str, str, int], parameters: list[Parameter], synced: set[int]
) -> Iterator[Call]:
    if place[2] not in synced or not any(parameter.requires_grad for parameter in parameters):
        return
    ranks, numel = axis_size(manifest), flat_numel(manifest, parameters)
    own_bytes = sum(parameter.numel * gather_size(manifest, parameter) for parameter in parameters)
    repeated = named.MICRO_BATCHES if place[2] != min(synced) else None
    sizes = (numel, numel // ranks, total(parameters), own_bytes)
    dtype, copies = reduce_dtype(manifest, parameters[0]), axis_size(manifest, REPLICATE)
    yield Call(*place, "reduce_scatter", SHARD, ranks, dtype, *sizes, term=repeated, rest=named.ALIGNMENT)
    if copies > 1:
        part = numel // ranks
        yield Call(*place, "all_reduce", REPLICATE, copies, dtype, part, part, term=repeated or named.REPLICATED)


def _norm(manifest: Manifest) -> Iterator[Call]:
    if option(manifest, "clip_grad_norm", default=None) is not None:
        ranks = axis_size(manifest)
        yield Call(None, "optimizer", None, "all_reduce", SHARD, ranks, "float32", 1, 1, term=named.NORM)
