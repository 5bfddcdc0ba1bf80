"""Planners, a file each, imported by the registry's module name when a plan is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast

from tracekit.errors import UsageError
from tracekit.strategies import STRATEGIES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tracekit.manifest import Manifest
    from tracekit.plan.holding import Holding
    from tracekit.plan.schema import Call, Term


class Planner(Protocol):
    """The functions of a strategy's file; all three are pure functions of a manifest."""

    def collectives(self, manifest: Manifest, /) -> list[Call]:
        """Expected calls of one step, in the order of issue."""
        ...

    def absent(self, manifest: Manifest, /) -> Iterable[Term]:
        """Parts of the closed form that those calls leave out, with negative sign."""
        ...

    def memory(self, manifest: Manifest, rank: int, /) -> Holding:
        """Bytes that a rank holds."""
        ...


def planner_of(manifest: Manifest | None) -> Planner | None:
    """The planner of a manifest's strategy; None without a manifest, or for a name that is not registered.

    Raises:
        UsageError: the module that the registry names is missing or incomplete.
    """
    strategy = STRATEGIES.get(manifest.strategy) if manifest is not None else None
    if strategy is None:
        return None
    try:
        module = import_module(strategy.planner)
    except ModuleNotFoundError as error:
        raise UsageError(f"{strategy.name} has no plan: {strategy.planner} is not there ({error})") from None
    missing = [part for part in ("collectives", "absent", "memory") if not hasattr(module, part)]
    if missing:
        raise UsageError(f"{strategy.name} has no plan: {strategy.planner} lacks {' and '.join(missing)}")
    return cast("Planner", module)
