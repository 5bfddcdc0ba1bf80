"""What a strategy should send: pure functions of a run's manifest, one short module a strategy.

A module of this package offers `collectives(manifest)`, the expected calls of one step in their order, and
`terms(manifest)`, the named terms that lead from the lesson's closed form to their sum.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tracekit.plan import fsdp2, zero2, zero2_fsdp2
from tracekit.plan.schema import PASSES, PLAN_SCHEMA, TERMS_SCHEMA, plan_frame, terms_frame

if TYPE_CHECKING:
    from collections.abc import Callable

    import polars as pl

    from tracekit.plan.schema import Call, Term
    from tracekit.read.manifest import Manifest

__all__ = ["PASSES", "PLAN_SCHEMA", "STRATEGIES", "TERMS_SCHEMA", "plan", "terms"]


class _Strategy(NamedTuple):
    collectives: Callable[[Manifest], list[Call]]
    terms: Callable[[Manifest], list[Term]]


STRATEGIES = {
    "fsdp2": _Strategy(fsdp2.collectives, fsdp2.terms),
    "zero2": _Strategy(zero2.collectives, zero2.terms),
    "zero2-fsdp2": _Strategy(zero2_fsdp2.collectives, zero2_fsdp2.terms),
}


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


def terms(manifest: Manifest | None) -> pl.DataFrame:
    """Named terms whose sum is the plan's volume: `theory`, then each difference with its sign.

    `numel` counts elements times passes, `payload_bytes` payloads once. Empty without a manifest or a plan.
    """
    strategy = STRATEGIES.get(manifest.strategy) if manifest is not None else None
    if manifest is None or strategy is None:
        return terms_frame([])
    return terms_frame(strategy.terms(manifest))
