"""Events of GPUs and other accelerators with their launches, and the steps for which none were recorded.

Streams run in order: a row whose launch is not in the trace, and that starts before the first row of its stream whose
launch is, was launched before the recording began. A row at time 0 or long before its launch has a wrong time.
"""

from __future__ import annotations

import polars as pl

from tracekit.model import names
from tracekit.model.devices.device_names import device_kinds
from tracekit.model.event_kinds import Kinds, by_value, device_calls, timed
from tracekit.model.recordings import RUN, joined, with_first, without
from tracekit.model.steps import step_at
from tracekit.read.decoding.columns import Columns

# How the step of work that was launched before the recording began was found: it has none.
BEFORE = "before the recording"
# What the reason of a step begins with where the device's activity was lost.
LOST_ACTIVITY = "no activity of the device was recorded"
# Far beyond the distance between launch and row that rounded or drifting clocks make (pytorch/kineto#1380).
CLOCK_NS = 100_000
LONG_NS = 10_000_000


def device_rows(columns: Columns, kinds: Kinds) -> pl.DataFrame:
    """Return the events of devices with their arguments and `start_ns`; `role`: kernel, copy, other or null.

    `launched_ns`, `launched_tid`: when and on which thread the CPU launched it, null where that was not seen;
    `linked_by`: how that was found, by correlation, else flow, else the operator's external id, else only by time; or
    BEFORE. `device` and `lane`: where it ran; `is_misplaced`: whether its time is wrong.
    """
    others = timed(kinds.others)
    role = by_value(others["cat"], names.role_of).alias("role")
    rows = joined(others.with_columns(role), columns.device, "index")
    rows = rows.filter(pl.col("role").is_not_null() | pl.col("stream").is_not_null())
    rows = joined(rows, columns.comm.select(*RUN, "index", "collective"), "index")
    # Until torch 2.0 a kernel's external id repeats its correlation and says nothing about the operator.
    own_id = pl.when(pl.col("external_id") != pl.col("correlation").fill_null(-1)).then("external_id")
    rows = _launched(rows.with_columns(own_id.alias("op_id")).rename({"ts_ns": "start_ns"}), columns.flows, kinds)
    number = pl.coalesce("device", "pid").cast(pl.String)
    kind = device_kinds(rows, kinds)
    rows = rows.with_columns(
        pl.format("{}:{}", kind, number).fill_null(kind).alias("device"),
        pl.format("stream {}", pl.coalesce("original_stream", "stream", "tid")).fill_null("stream ?").alias("lane"),
    )
    return _before_the_window(_misplaced(rows, kinds))


def _misplaced(rows: pl.DataFrame, kinds: Kinds) -> pl.DataFrame:
    """Return the rows with `is_misplaced`: a time of 0 that is not of this recording, or one long before its launch.

    Clocks of CPU and device differ, so that many rows can seem early alike; only what few do is damage.
    """
    first = kinds.launches.group_by(RUN).agg(pl.col("ts_ns").min().alias("first_ns"))
    rows = rows.join(first, on=RUN, how="left", maintain_order="left")
    early = pl.col("launched_ns") - pl.col("start_ns")
    is_zero = (pl.col("start_ns") == 0) & (pl.coalesce("launched_ns", "first_ns") > CLOCK_NS)
    # A time of 0 in a file with a base is the base itself: as early as can be.
    is_early = early > LONG_NS
    are_few = is_early.sum().over(RUN) * 2 <= early.count().over(RUN)
    return rows.with_columns((is_zero | (is_early & are_few)).fill_null(value=False).alias("is_misplaced")).drop(
        "first_ns"
    )


def _before_the_window(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows with `linked_by` BEFORE where they were launched before the recording began."""
    if not rows["launched_ns"].null_count():
        return rows
    launched = pl.col("start_ns").filter(pl.col("launched_ns").is_not_null(), ~pl.col("is_misplaced"))
    first = launched.min().over(*RUN, "device", "lane")
    before = pl.col("launched_ns").is_null() & (pl.col("start_ns") < first)
    return rows.with_columns(pl.when(before).then(pl.lit(BEFORE)).otherwise("linked_by").alias("linked_by"))


def _launched(rows: pl.DataFrame, flows: pl.DataFrame, kinds: Kinds) -> pl.DataFrame:
    calls = kinds.launches.filter(pl.col("ph") == "X", pl.col("correlation") > 0)
    rows = rows.with_columns(
        pl.lit(None, pl.Int64).alias("launched_ns"),
        pl.lit(None, pl.Int64).alias("launched_tid"),
        pl.lit("time").alias("linked_by"),
    )
    rows = _linked(rows, calls, "correlation", "correlation")
    rows = _linked(rows, flows.filter(pl.col("correlation") > 0), "correlation", "flow")
    operators = kinds.operators.rename({"external_id": "op_id"})
    return _linked(rows, operators.filter(pl.col("ph") == "X", pl.col("op_id") > 0), "op_id", "external id")


def _linked(rows: pl.DataFrame, launches: pl.DataFrame, key: str, source: str) -> pl.DataFrame:
    """Return the rows with the launches of those that had none yet."""
    if not rows["launched_ns"].null_count():
        return rows
    at = launches.select(*RUN, key, pl.col("ts_ns").alias("at_ns"), pl.col("tid").alias("at_tid"))
    found = pl.col("launched_ns").is_null() & pl.col("at_ns").is_not_null()
    return (
        with_first(rows, at, key)
        .with_columns(
            pl.coalesce("launched_ns", "at_ns").alias("launched_ns"),
            pl.coalesce("launched_tid", "at_tid").alias("launched_tid"),
            pl.when(found).then(pl.lit(source)).otherwise("linked_by").alias("linked_by"),
        )
        .drop("at_ns", "at_tid")
    )


def without_lost_activity(steps: pl.DataFrame, device: pl.DataFrame, kinds: Kinds) -> pl.DataFrame:
    """Return the steps, incomplete where the activity of the device was lost.

    On a rank with kernels or copies, that is a step that launched none. On a rank that launched some, or called a
    backend of devices, but recorded nothing on any device, it is every step. CPU runs have neither.
    """
    active = device.filter(pl.col("role").is_not_null())
    at = active.filter(pl.col("linked_by").ne_missing(BEFORE)).select(
        *RUN, pl.coalesce("launched_ns", "start_ns").alias("at_ns")
    )
    busy = step_at(at, steps, "at_ns").select(*RUN, "step").unique().with_columns(pl.lit(1).alias("busy"))
    recorded = active.select(RUN).unique().with_columns(pl.lit(1).alias("recorded"))
    table = steps.join(busy, on=[*RUN, "step"], how="left", nulls_equal=True, maintain_order="left")
    for more in (recorded, _unanswered(active, kinds)):
        table = table.join(more, on=RUN, how="left", maintain_order="left")
    nothing = pl.col("recorded").is_null() & pl.col("calls").is_not_null()
    empty = pl.col("recorded").is_not_null() & pl.col("busy").is_null()
    reason = (
        pl.when(~pl.col("complete")).then("reason")
        .when(nothing).then(pl.format(LOST_ACTIVITY + " for {}", "calls"))
        .when(empty).then(pl.lit(f"{LOST_ACTIVITY} in this step, but in others"))
        .otherwise("reason")
    )  # fmt: skip
    complete = pl.col("complete") & ~nothing & ~empty
    return table.with_columns(complete.alias("complete"), reason.alias("reason")).select(steps.columns)


def _unanswered(active: pl.DataFrame, kinds: Kinds) -> pl.DataFrame:
    """Return what ranks without device activity launched or called: rank, cycle, calls ("8 launches")."""
    launches = without(kinds.launches, active)
    started = launches.filter(pl.col("name").str.contains(names.STARTS_WORK), pl.col("correlation") > 0)
    found = [started.with_columns(pl.lit("launches").alias("what")), without(device_calls(kinds), active)]
    counts = [part.group_by(*RUN, "what", maintain_order=True).len() for part in found]
    told = pl.concat(counts).unique(RUN, keep="first", maintain_order=True)
    return told.select(*RUN, pl.format("{} {}", "len", "what").alias("calls"))
