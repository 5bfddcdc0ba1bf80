"""DeepSpeed stage 3: gathers parameters where modules need them and ahead, reduce-scatters gradients in buckets.

Source: DeepSpeed 0.19.8, runtime/zero/stage3.py (`__avg_scatter_grads`, `_post_step`, `get_grad_norm_direct`,
`has_overflow`), runtime/comm/coalesced_collectives.py (`reduce_scatter_coalesced`) and what
tracekit.plan.stage3_fetching names.

- Each parameter is padded to a multiple of the ranks, by itself.
- What is not above the persistence threshold stays gathered, and is gathered once a step after the optimizer, one
  parameter a call.
- Small models may be prefetched as a whole before backward begins, and then gather nothing there.
- Checkpointed blocks gather again what they recompute; that is beyond the paper's 3Ψ.
- With `reduce_scatter` off, buckets are all-reduced.
- The optimizer step all-reduces the gradient norm, one element in float64; an overflow flag with float16 only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.plan import shares as named
from tracekit.plan.gradient_buckets import bucket_layer, gradients
from tracekit.plan.holding import DEEPSPEED_STATE_BYTES, STEP_BYTES, Holding
from tracekit.plan.inputs import SHARD, axis_size, checkpointing, option, own_parameters, total, trainable
from tracekit.plan.schema import Call, Term, item_size
from tracekit.plan.stage3_fetching import Limits, Use, fetches, persistent, played, visits
from tracekit.plan.strategies import zero2

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.manifest import Manifest, Parameter
    from tracekit.plan.stage3_fetching import Fetch, Visit

PREFETCH_NUMEL, REUSE_NUMEL, LIVE_NUMEL, PERSISTENCE_NUMEL = 50_000_000, 10**9, 10**9, 100_000


def collectives(manifest: Manifest) -> list[Call]:
    """Expected collectives of one step; within a micro-batch gathers come first, then reductions."""
    gathered, calls = _fetches(manifest), list[Call]()
    for micro_batch in range(manifest.micro_batches):
        seen: dict[str, int] = {}
        calls += (_gather(manifest, fetch, micro_batch, seen) for fetch in gathered)
        calls += _reductions(manifest, micro_batch)
    return [*calls, *_step(manifest)]


def absent(manifest: Manifest) -> Iterator[Term]:
    """Parts of the closed form, 3Ψ, that these calls leave out: gathers that a parameter needs no more than one of."""
    size, dtype = item_size(zero2.model_dtype(manifest)), zero2.model_dtype(manifest)
    times: dict[str, int] = {}
    for fetch in _fetches(manifest):
        for parameter in fetch.parameters:
            times[parameter.name] = times.get(parameter.name, 0) + 1
    for parameter in kept_gathered(manifest):
        times[parameter.name] = times.get(parameter.name, 0) + 1
    sent = {parameter.name for parameter in gradients(manifest)}
    for parameter in own_parameters(manifest):
        missing = 2 - min(2, times.get(parameter.name, 0))
        place = (parameter.layer, "backward", "all_gather", SHARD, dtype)
        yield Term(named.UNITS_KEPT, -missing * parameter.numel, -missing * parameter.numel * size, *place)
        if parameter.name not in sent:
            reason = named.NO_GRADIENT if parameter.requires_grad else named.FROZEN
            place = (parameter.layer, "backward", "reduce_scatter", SHARD, zero2.gradient_dtype(manifest))
            yield Term(reason, -parameter.numel, -parameter.numel * size, *place)


def memory(manifest: Manifest, _rank: int) -> Holding:
    """Bytes of a rank: partitions of everything, small parameters whole beside them, gradients in a flat partition."""
    parameters, ranks = own_parameters(manifest), axis_size(manifest)
    size, accumulated = item_size(zero2.model_dtype(manifest)), option(manifest, "grad_accum_dtype", default=None)
    part = sum(padded(parameter, ranks) // ranks for parameter in parameters)
    trained = sum(padded(parameter, ranks) // ranks for parameter in trainable(parameters))
    gradients = trained * (item_size(accumulated) if accumulated else size)
    bucket = zero2.bucket_numel(manifest) * size
    state = DEEPSPEED_STATE_BYTES * trained + STEP_BYTES
    held = (part + sum(padded(parameter, ranks) for parameter in kept_gathered(manifest))) * size
    return Holding(held, state, gradients, gradients, peak_numel(manifest) * size, 2 * bucket, bucket)


def padded(parameter: Parameter, ranks: int) -> int:
    """Elements of a parameter once its partitions are equal."""
    return -(-parameter.numel // ranks) * ranks


def peak_numel(manifest: Manifest) -> int:
    """The most elements that are gathered at once, beside those that stay so."""
    if axis_size(manifest) == 1:
        return 0
    return max((live for _, live in played(_order(manifest), _limits(manifest), _kept_names(manifest))), default=0)


def kept_gathered(manifest: Manifest) -> list[Parameter]:
    """Parameters that are so small that they stay gathered."""
    return persistent(own_parameters(manifest), _limits(manifest)) if axis_size(manifest) > 1 else []


def _limits(manifest: Manifest) -> Limits:
    names = ("prefetch_bucket_size", "max_reuse_distance", "max_live_parameters", "param_persistence_threshold")
    defaults = (PREFETCH_NUMEL, REUSE_NUMEL, LIVE_NUMEL, PERSISTENCE_NUMEL, Limits._field_defaults["most_persistent"])
    names = (*names, "model_persistence_threshold")
    given = [option(manifest, f"stage3_{name}", default=value) for name, value in zip(names, defaults, strict=True)]
    return Limits(*map(int, given))


def _kept_names(manifest: Manifest) -> set[str]:
    return {parameter.name for parameter in kept_gathered(manifest)}


def _fetches(manifest: Manifest) -> list[Fetch]:
    if axis_size(manifest) == 1:
        return []
    return fetches(_order(manifest), _limits(manifest), _kept_names(manifest))


def _order(manifest: Manifest) -> list[Visit]:
    """The modules of forward and backward."""
    checkpointed = checkpointing(manifest) != "none"
    return visits(_uses(manifest), [unit.name for unit in manifest.units if unit.name and checkpointed])


def _uses(manifest: Manifest) -> list[Use]:
    """Parameters by module, a tied one at each of its modules, in the order of use.

    Modules run in the reverse of the order in which their gradients are ready. One without gradients of its own is
    taken to follow the module that is registered before it.
    """
    by_name = {parameter.name: parameter for parameter in manifest.parameters}
    modules: dict[str, list[Use]] = {}
    for parameter in manifest.parameters:
        own = by_name.get(parameter.tied_to or "", parameter)
        module = parameter.name.rpartition(".")[0]
        modules.setdefault(module, []).append(Use(module, own))
    ready = dict.fromkeys(name.rpartition(".")[0] for name in reversed(manifest.grad_order or ()))
    order = [module for module in ready if module in modules]
    place = 0
    for module in modules:
        if module in ready:
            place = order.index(module) + 1
        else:
            order.insert(place, module)
            place += 1
    return [use for module in order for use in modules[module]]


def _gather(manifest: Manifest, fetch: Fetch, micro_batch: int, seen: dict[str, int]) -> Call:
    ranks, dtype = axis_size(manifest), zero2.model_dtype(manifest)
    numel = sum(padded(parameter, ranks) for parameter in fetch.parameters)
    for parameter in fetch.parameters:
        seen[parameter.name] = seen.get(parameter.name, 0) + 1
    own = total(parameter for parameter in fetch.parameters if seen[parameter.name] <= 2)
    term = named.MICRO_BATCHES if micro_batch else None if own else named.RELEASED
    rest = named.ALIGNMENT if own == total(fetch.parameters) else named.RELEASED
    place = (_unit(manifest, fetch.module), fetch.phase, micro_batch, "all_gather", SHARD, ranks, dtype)
    return Call(*place, numel // ranks, numel, own, term=term, rest=rest)


def _unit(manifest: Manifest, module: str) -> str:
    """The innermost unit that holds a module."""
    inside = [unit.name for unit in manifest.units if f"{module}.".startswith(f"{unit.name}.") or not unit.name]
    return max(inside, key=len, default="")


def _reductions(manifest: Manifest, micro_batch: int) -> Iterator[Call]:
    ranks, dtype, size = axis_size(manifest), zero2.gradient_dtype(manifest), item_size(zero2.model_dtype(manifest))
    term = named.MICRO_BATCHES if micro_batch else None
    scatters = option(manifest, "reduce_scatter", default=True)
    for bucket in zero2.buckets(manifest):
        own = total(bucket)
        numel = sum(padded(parameter, ranks) for parameter in bucket) if scatters else own
        kind, out = ("reduce_scatter", numel // ranks) if scatters else ("all_reduce", numel)
        place = (bucket_layer(bucket), "backward", micro_batch, kind, SHARD, ranks, dtype)
        yield Call(*place, numel, out, own, own * size, term=term, rest=named.ALIGNMENT)


def _step(manifest: Manifest) -> Iterator[Call]:
    ranks, dtype = axis_size(manifest), zero2.model_dtype(manifest)
    place = (None, "optimizer", None)
    if trainable(own_parameters(manifest)):
        if dtype == "float16":
            yield Call(*place, "all_reduce", SHARD, ranks, "uint8", 1, 1, term=named.OVERFLOW)
        yield Call(*place, "all_reduce", SHARD, ranks, "float64", 1, 1, term=named.NORM)
    for parameter in kept_gathered(manifest):
        numel = padded(parameter, ranks)
        own = (numel // ranks, numel, parameter.numel)
        yield Call(*place, "all_gather", SHARD, ranks, dtype, *own, rest=named.ALIGNMENT)
