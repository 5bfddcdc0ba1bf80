"""The windows of steps from ``ProfilerStep`` marks: the marks that are steps, and the end of each."""

from __future__ import annotations

import polars as pl

from tracekit.model import names
from tracekit.model.event_kinds import Kinds
from tracekit.model.recordings import RUN

_THREAD = [*RUN, "pid", "tid"]


def windows(kinds: Kinds) -> pl.DataFrame:
    """Return rank, cycle, step, start_ns, end_ns, complete, reason: of each rank, windows that do not overlap.

    Steps are the outermost marks of one thread: of several, the one with the most marks, then the most marked time.
    A step ends where the mark after it begins if that has the next number, else where its own mark ends: what lies
    between belongs to no step. Of marks with one number the first is the step, and it is incomplete with a reason.
    """
    chain = _of_one_thread(_outermost(_usable(marks(kinds)))).sort(*RUN, "start_ns")
    following = pl.col("start_ns").shift(-1).over(RUN)
    is_next = pl.col("step").shift(-1).over(RUN) == pl.col("step") + 1
    end = pl.when(is_next).then(following).otherwise(pl.min_horizontal("end_ns", following))
    times = pl.len().over(*RUN, "step")
    repeated = pl.format("step {} is marked {} times; only the first mark is used", "step", times)
    return (
        chain.with_columns(
            end.alias("end_ns"),
            (times == 1).alias("complete"),
            pl.when(times > 1).then(repeated).alias("reason"),
        )
        .unique([*RUN, "step"], keep="first", maintain_order=True)
        .select(*RUN, "step", "start_ns", "end_ns", "complete", "reason")
    )


def marks(kinds: Kinds) -> pl.DataFrame:
    """Return every mark on the CPU: rank, cycle, pid, tid, step (null: number too large), start_ns, end_ns."""
    named = pl.col("name").str.starts_with(names.STEP_MARK_PREFIX)
    events = pl.concat([part.filter(named) for part in (kinds.annotations, kinds.operators, kinds.others)])
    number = pl.col("name").str.extract(names.STEP_MARK, 1).cast(pl.Int64, strict=False)
    return events.filter(pl.col("ph") == "X", pl.col("name").str.contains(names.STEP_MARK)).select(
        *_THREAD,
        number.alias("step"),
        pl.col("ts_ns").alias("start_ns"),
        pl.when(pl.col("dur_ns") >= 0).then(pl.col("ts_ns") + pl.col("dur_ns")).alias("end_ns"),
    )


def _usable(table: pl.DataFrame) -> pl.DataFrame:
    return table.drop_nulls(["step", "start_ns", "end_ns"])


def _outermost(table: pl.DataFrame) -> pl.DataFrame:
    """Return the marks that lie within no other mark of their thread."""
    reach = pl.col("end_ns").cum_max().shift(1).over(_THREAD)
    inside = (pl.col("start_ns") < reach) & (pl.col("end_ns") <= reach)
    longest_first = [False] * (len(_THREAD) + 1) + [True]
    return table.sort(*_THREAD, "start_ns", "end_ns", descending=longest_first).filter(~inside.fill_null(value=False))


def _of_one_thread(table: pl.DataFrame) -> pl.DataFrame:
    """Return the marks of one thread of each rank: the one with the most marks, then the most marked time."""
    marked = (pl.col("end_ns") - pl.col("start_ns")).sum()
    threads = table.group_by(_THREAD).agg(pl.len().alias("num_marks"), marked.alias("marked_ns"))
    best_first = threads.sort("num_marks", "marked_ns", "pid", "tid", descending=[True, True, False, False])
    chosen = best_first.unique(RUN, keep="first", maintain_order=True)
    return table.join(chosen, on=_THREAD, how="semi", nulls_equal=True)
