"""The meeting of what a caller says about a model and what was found on it: what is said wins, unless both disagree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tracekit.errors import UsageError
from tracekit.record.errors import RecordError
from tracekit.record.frameworks.found import Found, Mesh, Precision, Unit, Units, in_words
from tracekit.strategies import find

# Those of one framework that the same state may be called: torch's stage 2 is its stage 3 with a setting.
_KIN = ({"fsdp2", "zero2-fsdp2"}, {"fsdp1", "zero2-fsdp1"})


@dataclass(frozen=True)
class Told:
    """What the caller of the Recorder said; None where nothing."""

    strategy: str | None = None
    mesh: Mesh | None = None
    units: Units | None = None
    precision: Precision | None = None


def settle(found: Found, told: Told, world_size: int) -> Found:
    """What was found, with what was told in its place.

    Raises RecordError where both cannot be true, or where the strategy's name is unknown.
    """
    if told.strategy is not None:
        _refuse_unknown(told.strategy)
        _refuse_other_strategy(told.strategy, found)
    if told.mesh is not None:
        _refuse_other_mesh(told.mesh, found, world_size)
    given = {name: value for name, value in vars(told).items() if value is not None}
    if not found.is_readable and not (told.strategy and told.mesh and told.units and told.precision):
        # A strategy's name alone would be planned from guesses.
        given.pop("strategy", None)
    if "strategy" in given:
        given["why"] = None
    return replace(found, **given, **({"unit_precision": {}} if told.precision else {}))


def with_modules(units: Sequence[Unit]) -> Units:
    """Each unit with the names of its modules; a root unit is added where none was given."""
    with_root = list(units) if any(not name for name, _ in units) else [*units, ("", None)]
    return [(unit, unit[0].split(", ")) for unit in with_root]


def _refuse_unknown(strategy: str) -> None:
    try:
        find(strategy, "strategy")
    except UsageError as error:
        raise RecordError(str(error)) from None


def _refuse_other_strategy(strategy: str, found: Found) -> None:
    expected = find(strategy)
    if found.framework is None:
        # DistributedDataParallel can be written by hand; the others leave a state that would have been found.
        if expected.framework not in ("torch DDP", "torch DTensor and torch.compile") and not _is_alone(found):
            raise RecordError(f"strategy is {strategy}, but {found.wrapped}; give the wrapped model to the Recorder")
        return
    same = expected.framework == found.framework and _agree(strategy, found)
    if not same:
        hint = "" if found.strategy in (strategy, "unknown") else f"; it looks like {found.strategy}"
        raise RecordError(f"strategy is {strategy}, but {found.wrapped}{hint}")


def _agree(strategy: str, found: Found) -> bool:
    if strategy == found.strategy or found.why is not None:
        return True
    kin = next((names for names in _KIN if strategy in names), {strategy})
    # A unit that frees its parameters contradicts stage 2; that all of them keep theirs is a setting of stage 3. Of
    # FSDP1 on one rank torch makes both NO_SHARD.
    unsharded = found.framework == "torch FSDP1" and _is_alone(found)
    return found.strategy in kin and (not strategy.startswith("zero2") or unsharded)


def _is_alone(found: Found) -> bool:
    return all(size == 1 for _, size in found.mesh)


def _refuse_other_mesh(mesh: Mesh, found: Found, world_size: int) -> None:
    ranks = 1
    for _, size in mesh:
        ranks *= size
    if ranks != world_size:
        raise RecordError(f"the mesh {in_words(mesh)} has {ranks} ranks, but {world_size} are here; give all its axes")
    sharded = found.is_readable and found.framework in ("torch FSDP2", "torch FSDP1", "DeepSpeed")
    if sharded and sorted(size for _, size in mesh if size > 1) != sorted(size for _, size in found.mesh if size > 1):
        raise RecordError(f"the mesh is {in_words(mesh)}, but {found.wrapped}")
