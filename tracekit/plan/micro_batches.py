"""Calls of a step of many micro-batches: those of three are planned, and the second stands for all in the middle.

A plan distinguishes the first micro-batch (it gathers what stays gathered), the last (it may be the only one that
reduces) and those between, which are alike. A step of 100,000 micro-batches is planned as fast as one of three.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import polars as pl

from tracekit.plan.schema import plan_frame

if TYPE_CHECKING:
    from tracekit.manifest import Manifest
    from tracekit.plan.schema import Call
    from tracekit.plan.strategies import Planner

_PLANNED = 3
MIDDLE = 1


def planned_calls(planner: Planner, manifest: Manifest) -> tuple[list[Call], int]:
    """Calls of at most three micro-batches, and how many times those of micro-batch MIDDLE happen in the step."""
    count = manifest.micro_batches
    if count <= _PLANNED:
        return planner.collectives(manifest), 1
    return planner.collectives(msgspec.structs.replace(manifest, micro_batches=_PLANNED)), count - _PLANNED + 1


def repeated(calls: list[Call], times: int) -> pl.DataFrame:
    """All calls of a step, PLAN_SCHEMA, in the order of issue: the middle micro-batch `times` times."""
    frame = plan_frame(calls)
    where = [index for index, call in enumerate(calls) if call.micro_batch == MIDDLE]
    if times == 1:
        return frame
    number = pl.col("micro_batch")
    last = pl.when(number == _PLANNED - 1).then(times + MIDDLE).otherwise(number).cast(pl.Int32).alias("micro_batch")
    if not where:
        return frame.with_columns(last)
    before, middle, after = (
        frame[: where[0]],
        frame[where[0] : where[-1] + 1],
        frame[where[-1] + 1 :].with_columns(last),
    )
    numbers = pl.DataFrame({"micro_batch": pl.int_range(MIDDLE, MIDDLE + times, dtype=pl.Int32, eager=True)})
    # The left side's order is kept, and the right one's within it: a micro-batch's calls stay together.
    between = numbers.join(middle.drop("micro_batch"), how="cross", maintain_order="left_right")
    return pl.concat([before, between.select(frame.columns), after])
