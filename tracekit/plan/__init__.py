"""Expected collectives and memory of a strategy: pure functions of a run's manifest, one short file a strategy.

A file of `tracekit.plan.strategies` offers `collectives(manifest)`, the expected calls of one step in their order,
`absent(manifest)`, the parts of the closed form that those calls leave out, and `memory(manifest, rank)`, the bytes
that a rank holds. Which file plans which strategy is in the registry, `tracekit.strategies`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.plan.micro_batches import planned_calls, repeated
from tracekit.plan.planned_memory import MEMORY_SCHEMA, memory
from tracekit.plan.schema import PLAN_SCHEMA, TERMS_SCHEMA, plan_frame
from tracekit.plan.shares import terms_frame, totals
from tracekit.plan.strategies import planner_of

if TYPE_CHECKING:
    import polars as pl

    from tracekit.manifest import Manifest

__all__ = [
    "MEMORY_SCHEMA",
    "PLAN_SCHEMA",
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
    planner = planner_of(manifest)
    if manifest is None or planner is None:
        return plan_frame([])
    return repeated(*planned_calls(planner, manifest))


def terms_by_place(manifest: Manifest | None) -> pl.DataFrame:
    """Named terms whose sum is the plan's volume, by layer, phase, kind, axis and dtype: TERMS_SCHEMA.

    `numel` counts elements times passes, `payload_bytes` payloads once. Empty without a manifest or a plan.
    """
    planner = planner_of(manifest)
    if manifest is None or planner is None:
        return terms_frame([], []).clear()
    calls, times = planned_calls(planner, manifest)
    return terms_frame(calls, planner.absent(manifest), times)


def terms(manifest: Manifest | None) -> pl.DataFrame:
    """The terms of a whole step: term, numel, payload_bytes; `theory` first, then each difference with its sign."""
    return totals(terms_by_place(manifest))
