"""What a strategy should send and hold: pure functions of a run's manifest, one short module a strategy.

A module of this package offers `collectives(manifest)`, the expected calls of one step in their order, and
`absent(manifest)`, the parts of the lesson's closed form that those calls leave out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.plan.planned_memory import MEMORY_SCHEMA, memory
from tracekit.plan.schema import PLAN_SCHEMA, TERMS_SCHEMA, plan_frame
from tracekit.plan.shares import terms_frame, totals
from tracekit.plan.strategies import STRATEGIES

if TYPE_CHECKING:
    import polars as pl

    from tracekit.manifest import Manifest

__all__ = [
    "MEMORY_SCHEMA",
    "PLAN_SCHEMA",
    "STRATEGIES",
    "TERMS_SCHEMA",
    "memory",
    "plan",
    "terms",
    "terms_by_place",
]


def plan(manifest: Manifest | None) -> pl.DataFrame:
    """Expected collectives of one optimizer step, a row each, in the order of issue.

    Columns as in PLAN_SCHEMA. `layer` is a unit ("" the root), a span `a..b` for a bucket, or null where no
    layer is meant; `payload_numel` is an all-gather's output and the others' input. Empty without a manifest
    or a plan.
    """
    strategy = STRATEGIES.get(manifest.strategy) if manifest is not None else None
    if manifest is None or strategy is None:
        return plan_frame([])
    return plan_frame(strategy.collectives(manifest))


def terms_by_place(manifest: Manifest | None) -> pl.DataFrame:
    """Named terms whose sum is the plan's volume, by layer, phase, kind, axis and dtype: TERMS_SCHEMA.

    `numel` counts elements times passes, `payload_bytes` payloads once. Empty without a manifest or a plan.
    """
    strategy = STRATEGIES.get(manifest.strategy) if manifest is not None else None
    if manifest is None or strategy is None:
        return terms_frame([], []).clear()
    return terms_frame(strategy.collectives(manifest), strategy.absent(manifest))


def terms(manifest: Manifest | None) -> pl.DataFrame:
    """The terms of a whole step: term, numel, payload_bytes; `theory` first, then each difference with its sign."""
    return totals(terms_by_place(manifest))
