"""Gathers of DeepSpeed stage 3, by module: its coordinator played through without a device.

Source: DeepSpeed 0.19.8, runtime/zero/partitioned_param_coordinator.py (`_fetch_sub_module_impl`,
`release_sub_module`, `__params_to_release`) and parameter_offload.py (its hooks), after the first steps, when the
order of modules is known.

Entering a module gathers its own parameters, if they are not there, and then as many of the next ones in order as the
prefetch bucket holds, be they of the backward. Leaving it frees them, unless they are used again within
`max_reuse_distance` elements or the prefetcher has passed over a later use while they were there. What is frozen and
used to recompute a block stays until the module is left whose backward asked for it, and is freed then in any case.

Modules before all that is trained have no backward: the hooks that enter it lie on outputs that need a gradient
(`PreBackwardFunctionForModule`). A tied parameter is used, and fetched, by each of its modules.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Iterable, Iterator, Sequence

    from tracekit.manifest import Parameter


class Limits(NamedTuple):
    """DeepSpeed's settings, in elements; parameters up to `persistence` stay gathered, `most_persistent` in all."""

    prefetch: int
    reuse: int
    live: int
    persistence: int
    most_persistent: int = 1 << 62


class Use(NamedTuple):
    """A module and a parameter of its own, which may be another one's too."""

    module: str
    parameter: Parameter


class Visit(NamedTuple):
    """A module that is entered; a leaf is left right after it unless it is `held`, to be entered again before."""

    module: str
    phase: str
    parameters: tuple[Parameter, ...]
    held: bool = False


class Fetch(NamedTuple):
    """Parameters that are gathered together, on entering a module."""

    module: str
    phase: str
    parameters: list[Parameter]


def visits(forward: Sequence[Use], recomputed: Sequence[str] = ()) -> list[Visit]:
    """The modules of one forward and backward, containers included, for parameters in the order of their use.

    Blocks that are `recomputed` run forward again in backward, once their last module with a saved input has been
    entered; recomputing stops before that module is left. What wraps such a block to recompute it is a module too, and
    is not entered for the second run.
    """
    own: dict[str, list[Parameter]] = {}
    for module, parameter in forward:
        own.setdefault(module, []).append(parameter)
    asked = _with_backward(own)
    leaves = {block: [leaf for leaf in own if leaf.startswith(f"{block}.")] for block in recomputed}
    wrapped = {block: inside for block, inside in leaves.items() if inside}
    again = {block: inside for block, inside in wrapped.items() if any(leaf in asked for leaf in inside)}
    backward = _wrapped(_entered(asked[::-1], own, "backward"), again)
    for block, inside in again.items():
        first = next(place for place, visit in enumerate(backward) if visit.module in inside)
        backward[first] = backward[first]._replace(held=True)
        entered = [one for one in _entered(inside, own, "backward") if f"{one.module}.".startswith(f"{block}.")]
        backward[first + 1 : first + 1] = entered
    return [*_wrapped(_entered(list(own), own, "forward"), wrapped), *backward]


def persistent(parameters: Iterable[Parameter], limits: Limits) -> list[Parameter]:
    """Parameters that stay gathered, of those in registration order (`mark_persistent_parameters`)."""
    kept: list[Parameter] = []
    held = 0
    for parameter in parameters:
        if parameter.numel <= limits.persistence and held + parameter.numel <= limits.most_persistent:
            kept.append(parameter)
            held += parameter.numel
    return kept


def fetches(order: Sequence[Visit], limits: Limits, persistent: Collection[str] = ()) -> list[Fetch]:
    """The gathers of one forward and backward, in their order; parameters that are `persistent` never need one."""
    return [fetch for gathered, _ in played(order, limits, persistent) for fetch in gathered]


def played(
    order: Sequence[Visit], limits: Limits, persistent: Collection[str] = ()
) -> Iterator[tuple[list[Fetch], int]]:
    """Step by step, what is gathered on entering a module, and how many elements are there before it is left."""
    queue = deque((parameter, step) for step, visit in enumerate(order) for parameter in visit.parameters)
    names = {parameter.name for visit in order for parameter in visit.parameters}
    there, last_seen = set(persistent), dict.fromkeys(names, -1)
    live = 0
    holder: str | None = None
    borrowed: list[Parameter] = []
    for step, visit in enumerate(order):
        done: list[Fetch] = []
        needed = [parameter for parameter in visit.parameters if parameter.name not in there]
        live += _gather(done, visit, needed, there)
        fresh = {parameter.name for parameter in visit.parameters if last_seen[parameter.name] < step}
        met: set[str] = set()
        while queue and len(met) < len(fresh):
            parameter, used = queue.popleft()
            last_seen[parameter.name] = used
            met.add(parameter.name)
        ahead: list[Parameter] = []
        numel, room = 0, min(limits.live - live, limits.prefetch)
        while limits.prefetch > 0 and queue and numel < room:
            parameter, used = queue.popleft()
            last_seen[parameter.name] = max(last_seen[parameter.name], used)
            if parameter.name not in there and parameter not in ahead:
                ahead.append(parameter)
                numel += parameter.numel
        live += _gather(done, visit, ahead, there)
        yield done, live
        if visit.held:
            holder = visit.module
            continue
        frozen = [parameter for parameter in visit.parameters if holder and not parameter.requires_grad]
        borrowed += frozen
        free = [
            parameter
            for parameter in visit.parameters
            if parameter not in frozen
            and last_seen[parameter.name] <= step + 1
            and not _reused(order[step + 1 :], parameter, limits.reuse)
        ]
        if visit.module == holder:
            free += borrowed
            holder, borrowed = None, []
        for parameter in free:
            if parameter.name in there and parameter.name not in persistent:
                there.discard(parameter.name)
                live -= parameter.numel


def _with_backward(own: dict[str, list[Parameter]]) -> list[str]:
    """Modules whose output needs a gradient: from the first that has anything to train."""
    leaves = list(own)
    trained = [any(parameter.requires_grad for parameter in own[leaf]) for leaf in leaves]
    return leaves[trained.index(True) :] if any(trained) else []


def _entered(leaves: Iterable[str], own: dict[str, list[Parameter]], phase: str) -> list[Visit]:
    """Every module around a leaf is entered before it, once."""
    entered: dict[str, Visit] = {}
    for leaf in leaves:
        parts = leaf.split(".") if leaf else []
        for depth in range(len(parts) + 1):
            name = ".".join(parts[:depth])
            # A list of modules is never called.
            if name and not own.get(name) and depth < len(parts) and parts[depth].isdecimal():
                continue
            entered.setdefault(name, Visit(name, phase, tuple(own.get(name, ()))))
    return list(entered.values())


def _wrapped(order: list[Visit], blocks: Container[str]) -> list[Visit]:
    """With the wrapper around each of these blocks, which goes by the same name, entered right before it."""
    around = [[visit._replace(parameters=())] if visit.module in blocks else [] for visit in order]
    return [entered for wrapper, visit in zip(around, order, strict=True) for entered in (*wrapper, visit)]


def _gather(done: list[Fetch], visit: Visit, parameters: list[Parameter], there: set[str]) -> int:
    """Notes a gather, if anything is missing; returns its elements."""
    if not parameters:
        return 0
    done.append(Fetch(visit.module, visit.phase, parameters))
    there.update(parameter.name for parameter in parameters)
    return sum(parameter.numel for parameter in parameters)


def _reused(later: Sequence[Visit], parameter: Parameter, distance: int) -> bool:
    """True where one of the next modules, within so many elements, uses the parameter again."""
    passed = 0
    for visit in later:
        if passed >= distance:
            return False
        if parameter in visit.parameters:
            return True
        passed += sum(other.numel for other in visit.parameters)
    return False
