"""The windows of steps: from ``ProfilerStep`` marks, or from ``Optimizer.step#`` marks where there are no such ones."""

from __future__ import annotations

import polars as pl

from tracekit.model import names
from tracekit.model.event_kinds import Kinds
from tracekit.model.recordings import RUN

_THREAD = [*RUN, "pid", "tid"]
# What the reason of a step says whose window rests on the optimizer's marks, with the mark's name behind it.
BY_OPTIMIZER = "by the end of "
_LONGEST_NAME = 100


def windows(kinds: Kinds) -> pl.DataFrame:
    """Return rank, cycle, step, start_ns, end_ns, complete, reason: of each rank, windows that do not overlap."""
    marked = _profiler_steps(kinds)
    return pl.concat([marked, _optimizer_steps(kinds, marked)])


def _optimizer_steps(kinds: Kinds, marked: pl.DataFrame) -> pl.DataFrame:
    """Return the steps of ranks that have none in `marked`, numbered from 0: each ends with a step of the optimizer.

    The first begins with the recording, another one where that before it ended. With optimizers of several names a loop
    begins with the first of them: a step ends before the next of that name, and the recording with a whole loop only
    where it ends as the others did. Marks inside a mark are parts of it.
    """
    named = pl.col("name").str.contains(names.OPTIMIZER_STEP)
    on_cpu = (kinds.annotations, kinds.operators)
    found = pl.concat([part.filter(named, pl.col("ph") == "X", pl.col("dur_ns") >= 0) for part in on_cpu])
    ended = found.join(marked.select(RUN).unique(), on=RUN, how="anti").drop_nulls("ts_ns")
    if ended.is_empty():
        return marked.clear()
    times = [pl.col("ts_ns").alias("start_ns"), (pl.col("ts_ns") + pl.col("dur_ns")).alias("end_ns")]
    outer = _outermost(ended.with_columns(times)).sort(*RUN, "end_ns", "index")
    first, following = pl.col("name").first().over(RUN), pl.col("name").shift(-1).over(RUN)
    ends = (following == first).fill_null(value=False)
    usual = pl.col("name").filter(ends).mode().min().over(RUN)
    is_last = following.is_null() & (pl.col("name") == pl.coalesce(usual, "name"))
    last = outer.filter(ends | is_last)
    timed = [part.filter(pl.col("ph") == "X").select(*RUN, "ts_ns") for part in kinds]
    begin = pl.concat(timed).group_by(RUN).agg(pl.col("ts_ns").min().alias("begin_ns"))
    before = pl.col("end_ns").shift(1).over(RUN)
    told = pl.format("{}{}", pl.lit(BY_OPTIMIZER), pl.col("name").str.slice(0, _LONGEST_NAME))
    return (
        last.join(begin, on=RUN, how="left", maintain_order="left")
        .select(
            *RUN,
            pl.int_range(pl.len(), dtype=pl.Int64).over(RUN).alias("step"),
            pl.coalesce(before, "begin_ns").alias("start_ns"),
            "end_ns",
            pl.lit(value=True).alias("complete"),
            told.alias("reason"),
        )
        .select(marked.columns)
    )


def _profiler_steps(kinds: Kinds) -> pl.DataFrame:
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
