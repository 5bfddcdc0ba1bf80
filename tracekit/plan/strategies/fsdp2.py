"""FSDP2: gathers each unit in forward and, where it was resharded, in backward; reduce-scatters gradients.

Source: torch 2.13, torch/distributed/fsdp/_fully_shard: `FSDPParamGroup.unshard` and `post_backward`,
`foreach_all_gather`, `foreach_reduce`, `FSDPState._lazy_init`, `_get_post_forward_mesh_info`.

- Every parameter is padded along dim 0 to a multiple of the group: N × ceil(d0 / N) × rest elements; where
  `shard_placement_fn` shards another dim, that one divides evenly.
- A gradient that is None is not reduced (`post_backward`), and a unit that does not run is not gathered.
- `reshard_after_forward=None` reshards every unit but the root; False or 1 keeps a unit gathered; an integer
  k reshards to groups of k, from which backward gathers.
- Parameters are sharded again after each backward, so every micro-batch gathers anew; with
  `reshard_after_backward` off they stay until the last one. Gradients are reduced in every micro-batch, or in the
  last one alone where `sync_every_micro_batch` is off.
- On a second mesh axis (HSDP) what was reduce-scattered is all-reduced, after every reduction or, where
  `all_reduce_every_micro_batch` is off, after the last.
- A unit whose parameters would be gathered in different types is gathered as bytes (uint8).
- Clipping all-reduces the norms of all parameters over the axes that split them (`tracekit.plan.gradient_norm`).
- Releases 2.6 to 2.14 issue the same calls, but for those of clipping, and for the root before
  `_auto_reshard_after_forward` (2.6): `FSDPState._lazy_init` keeps it gathered whatever it was told.
- A group of one rank gathers and reduce-scatters nothing; an all-reduce over replicas is issued whatever their number.
  Checkpointing gathers nothing more: backward has gathered a unit before its forward is run again.
- A unit whose output needs no gradient (all up to it is frozen) has no backward (`_register_pre_backward_hook`), and is
  gathered there only where the units after it prefetch it (`_backward_prefetch`).
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from tracekit.layer_names import units_with_backward
from tracekit.plan import shares as named
from tracekit.plan.gradient_norm import norm_calls
from tracekit.plan.holding import MOMENTS, STEP_BYTES, Holding, adam_bytes, most_unsharded, shard_numel, stored_bytes
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
    trainable,
    unit_parameters,
    with_gradient,
)
from tracekit.plan.schema import Call, Term, item_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tracekit.manifest import Manifest, Parameter

    # The part of a parameter that the shard axis deals with: all of it, or what tensor parallelism leaves.
    Local = Callable[[Parameter], list[int]]
    Among = Callable[[str, str], list[Call]]


def collectives(
    manifest: Manifest,
    *,
    keep_gathered: bool = False,
    local: Local | None = None,
    among: Among | None = None,
    apart: Callable[[Parameter], bool] | None = None,
) -> list[Call]:
    """Expected collectives of one step, in the order in which torch issues them on one thread.

    Backward prefetches: the next unit is gathered before the gradients of this one are reduced, the root's last.
    `keep_gathered` plans every unit as if `reshard_after_forward=False` had been given. `among` names the calls of
    a unit's own computation, by unit and phase. `apart` finds parameters on a wider mesh, whose norm is one of its own.
    """
    within = among or (lambda _name, _phase: [])
    units = running(manifest)
    again, entered = (
        regather_sizes(manifest, keep_gathered=keep_gathered),
        units_with_backward(own_parameters(manifest)),
    )
    stays = not option(manifest, "reshard_after_backward", default=True)
    synced = synced_micro_batches(manifest)
    depth = _prefetch_depth(manifest)
    calls: list[Call] = []
    for micro_batch in range(manifest.micro_batches):
        for name, owned in units.items():
            if micro_batch == 0 or not stays:
                calls.append(_gather(manifest, (name, "forward", micro_batch), owned, None, local))
            calls += (call._replace(micro_batch=micro_batch) for call in within(name, "forward"))
        gathers = {
            name: _gather(manifest, (name, "backward", micro_batch), units[name], again[name], local) for name in again
        }
        reduces = {
            name: [call._replace(micro_batch=micro_batch) for call in within(name, "backward")]
            + list(_reduce(manifest, (name, "backward", micro_batch), owned, synced, local))
            for name, owned in units.items()
        }
        calls += _backward([name for name in units if name in entered], list(units), gathers, reduces, depth)
    calls = [call for call in calls if call.group_size > 1 or call.axis == REPLICATE]
    return [*calls, *norm_calls(manifest, apart)]


def absent(manifest: Manifest, *, keep_gathered: bool = False, local: Local | None = None) -> Iterator[Term]:
    """Parts of the closed form, 3Ψ (2Ψ with every unit kept gathered), that these calls leave out, negative."""
    resharded = regather_sizes(manifest, keep_gathered=keep_gathered)
    again = gathered_in_backward(manifest, resharded)
    owning = managed(manifest)
    names = {parameter.name for parameter in owning}
    ran, reduced = running(manifest), {parameter.name for parameter in with_gradient(manifest, owning)}
    for parameter in own_parameters(manifest):
        size, layer = gather_size(manifest, parameter), parameter.layer
        kept = parameter.numel if parameter.name in names else 0
        if axis_size(manifest) == 1:
            kept = 0
        left = parameter.numel - kept
        reason = named.IGNORED if parameter.name not in names else named.SINGLE
        local_numel = _numel(parameter, local) if kept else 0
        gathers = [("forward", layer in ran)]
        if not keep_gathered:
            gathers.append(("backward", layer in again))
        for phase, happens in gathers:
            place = (layer, phase, "all_gather", SHARD, gather_dtype(manifest, parameter))
            yield Term(reason, -left, -left * size, *place)
            yield Term(named.SPLIT, local_numel - kept, (local_numel - kept) * size, *place)
            if not happens:
                why = named.NO_BACKWARD if layer in resharded else named.UNITS_KEPT if layer else named.ROOT_KEPT
                why = why if layer in ran else named.UNUSED
                yield Term(why, -local_numel, -local_numel * size, *place)
        place = (layer, "backward", "reduce_scatter", SHARD, reduce_dtype(manifest, parameter))
        yield Term(reason, -left, -left * size, *place)
        yield Term(named.SPLIT, local_numel - kept, (local_numel - kept) * size, *place)
        if parameter.name not in reduced:
            why = named.NO_GRADIENT if parameter.requires_grad else named.FROZEN
            yield Term(why, -local_numel, -local_numel * size, *place)


def memory(manifest: Manifest, rank: int, *, keep_gathered: bool = False, local: Local | None = None) -> Holding:
    """Bytes of a rank: padded shards in the stored type; units whole in the compute type from gather to release."""
    owned, ranks = managed(manifest), axis_size(manifest)
    trained, ignored = with_gradient(manifest, owned), [p for p in own_parameters(manifest) if p not in owned]
    shards = {p.name: _own_shard(p, ranks, rank % ranks, local) * item_size(p.dtype) for p in owned}
    gradients = sum(shards[p.name] for p in trained)
    stored = sum(_padded(p, ranks, local) // ranks * item_size(p.dtype) for p in owned)
    state = MOMENTS * gradients + STEP_BYTES * len(trained) + adam_bytes(trainable(ignored))
    units = unit_parameters(manifest, owned)
    gathered = {
        name: sum(_padded(p, ranks, local) * gather_size(manifest, p) for p in own) for name, own in units.items()
    }
    reduced = [
        sum(_padded(p, ranks, local) * item_size(reduce_dtype(manifest, p)) for p in trainable(own))
        for own in units.values()
    ]
    whole = sum(reduced) if not option(manifest, "sync_every_micro_batch", default=True) else 0
    largest = max(
        (sum(_numel(p, local) * gather_size(manifest, p) for p in trainable(own)) for own in units.values()), default=0
    )
    kept = [name for name in units if name not in regather_sizes(manifest, keep_gathered=keep_gathered)]
    unsharded = most_unsharded(gathered, kept, _prefetch_depth(manifest))
    work = max(gathered.values(), default=0) + max(reduced, default=0) * (ranks + 1) // ranks
    return Holding(stored + stored_bytes(ignored), state, 0, gradients + whole + largest, unsharded, work)


def managed(manifest: Manifest) -> list[Parameter]:
    """Parameters that FSDP shards: all but the ignored ones."""
    ignored = set(option(manifest, "ignored_parameters", default=()))
    return [parameter for parameter in own_parameters(manifest) if parameter.name not in ignored]


def running(manifest: Manifest) -> dict[str, list[Parameter]]:
    """Parameters of each unit that runs: one that wants gradients and is known to have got none does not."""
    units = unit_parameters(manifest, managed(manifest))
    return {
        name: owned
        for name, owned in units.items()
        if not name or not trainable(owned) or with_gradient(manifest, owned)
    }


def regather_sizes(manifest: Manifest, *, keep_gathered: bool = False) -> dict[str, int]:
    """Units that are gathered again in backward, with the size of the group that gathers them."""
    sizes: dict[str, int] = {}
    owning, ranks = running(manifest), axis_size(manifest)
    for unit in () if keep_gathered else manifest.units:
        reshard = unit.reshard_after_forward
        if reshard is None:
            reshard = unit.name != ""
        if unit.name in owning and reshard is not False and (reshard is True or reshard != 1):
            sizes[unit.name] = ranks if reshard is True else int(reshard)
    return sizes


def gathered_in_backward(manifest: Manifest, resharded: Iterable[str]) -> set[str]:
    """Units that backward gathers of those that were resharded: those that have one, and what they prefetch."""
    units, depth = list(running(manifest)), _prefetch_depth(manifest)
    entered = [name for name in units_with_backward(own_parameters(manifest)) if name in units]
    return {*resharded}.intersection(due for name in entered for due in _reached(name, units, depth))


def padded_numel(shape: list[int], ranks: int) -> int:
    """Elements of a parameter once dim 0 is padded to a multiple of the group; a scalar is one element a rank."""
    rows, rest = (shape[0], shape[1:]) if shape else (1, [])
    return -(-rows // ranks) * ranks * math.prod(rest)


def _padded(parameter: Parameter, ranks: int, local: Local | None) -> int:
    """Elements of a parameter as it is gathered: only where it is sharded on dim 0 may that be padded."""
    shape = _shape(parameter, local)
    return padded_numel(shape, ranks) if _shard_dim(parameter) == 0 else math.prod(shape)


def _own_shard(parameter: Parameter, ranks: int, rank: int, local: Local | None) -> int:
    shape = _shape(parameter, local)
    return shard_numel(shape, ranks, rank) if _shard_dim(parameter) == 0 else math.prod(shape) // ranks


def _shard_dim(parameter: Parameter) -> int:
    """The dim that FSDP2 shards, `shard_placement_fn`'s or 0; other dims divide evenly (`_init_sharded_param`)."""
    found = re.fullmatch(r"Shard\((\d+)\)", parameter.placements.get(SHARD, ""))
    return int(found[1]) if found else 0


def _backward(
    entered: list[str], units: list[str], gathers: dict[str, Call], reduces: dict[str, list[Call]], depth: int
) -> Iterator[Call]:
    """Calls of one backward: the root, whose output is the model's, then the rest that have one, from the last."""
    for name in _from_the_last(entered):
        yield from (gathers.pop(due) for due in _reached(name, units, depth) if due in gathers)
        if name:
            yield from reduces[name]
    yield from reduces.get("", [])


def _reached(name: str, units: Iterable[str], depth: int) -> list[str]:
    """The unit and those gathered ahead as its backward begins."""
    order = _from_the_last(units)
    # Only blocks are told to gather further ahead; the root does as torch does by itself.
    place, reach = order.index(name), depth if name else 1
    return order[place : place + reach + 1]


def _from_the_last(units: Iterable[str]) -> list[str]:
    names = list(units)
    return [*(name for name in names if not name), *(name for name in reversed(names) if name)]


def _gather(
    manifest: Manifest, place: tuple[str, str, int], parameters: list[Parameter], size: int | None, local: Local | None
) -> Call:
    """One all-gather of a unit: padded parameters in their common type, or all of them as bytes."""
    ranks = axis_size(manifest)
    types = [gather_dtype(manifest, parameter) for parameter in parameters]
    own = sum(_numel(parameter, local) for parameter in parameters)
    own_bytes = sum(_numel(parameter, local) * gather_size(manifest, parameter) for parameter in parameters)
    dtypes = set(types)
    raw = 0 if len(dtypes) == 1 else own_bytes - own
    width = [1 if len(dtypes) == 1 else item_size(dtype) for dtype in types]
    numel = sum(_padded(parameter, ranks, local) * wide for parameter, wide in zip(parameters, width, strict=True))
    dtype = dtypes.pop() if len(dtypes) == 1 else "uint8"
    group = size or ranks
    repeated = named.MICRO_BATCHES if place[2] else None
    return Call(
        *place, "all_gather", SHARD, group, dtype, numel // group, numel, own, own_bytes, term=repeated, raw=raw
    )


def _reduce(
    manifest: Manifest,
    place: tuple[str, str, int],
    parameters: list[Parameter],
    synced: set[int],
    local: Local | None,
) -> Iterator[Call]:
    """The reduce-scatter of a unit's gradients and, with a replicate axis, the all-reduce of what came out."""
    wanting = with_gradient(manifest, parameters)
    if not wanting or place[2] not in synced:
        return
    ranks, copies, dtype = axis_size(manifest), axis_size(manifest, REPLICATE), reduce_dtype(manifest, wanting[0])
    numel = sum(_padded(parameter, ranks, local) for parameter in wanting)
    own = sum(_numel(parameter, local) for parameter in wanting)
    own_bytes = sum(_numel(parameter, local) * gather_size(manifest, parameter) for parameter in wanting)
    repeated = named.MICRO_BATCHES if place[2] != min(synced) else None
    part = numel // ranks
    yield Call(*place, "reduce_scatter", SHARD, ranks, dtype, numel, part, own, own_bytes, term=repeated)
    if not any(axis.axis == REPLICATE for axis in manifest.mesh):
        return
    if place[2] == max(synced) or option(manifest, "all_reduce_every_micro_batch", default=True):
        yield Call(*place, "all_reduce", REPLICATE, copies, dtype, part, part, term=repeated or named.REPLICATED)


def _shape(parameter: Parameter, local: Local | None) -> list[int]:
    return parameter.shape if local is None else local(parameter)


def _numel(parameter: Parameter, local: Local | None) -> int:
    return parameter.numel if local is None else math.prod(local(parameter))


def _prefetch_depth(manifest: Manifest) -> int:
    """Units gathered ahead in backward: torch's own is one."""
    return int(option(manifest, "backward_prefetch", default=0)) or 1
