"""The steps of each rank: windows from one ``ProfilerStep`` mark to the next on the same thread."""

from __future__ import annotations

import polars as pl

from tracekit.model import names
from tracekit.read.columns import Columns
from tracekit.read.manifest import Manifest

# One row a step of a rank. Half-open window in absolute ns on the CPU clock; `complete` is false, with a reason, where
# the recording was cut inside it. Without marks: one row, `step` null, the whole trace.
STEPS_SCHEMA: dict[str, pl.DataType] = {
    "rank": pl.Int32(),
    "cycle": pl.Int32(),
    "step": pl.Int64(),
    "start_ns": pl.Int64(),
    "end_ns": pl.Int64(),
    "complete": pl.Boolean(),
    "reason": pl.String(),
}


def steps(events: pl.DataFrame, manifest: Manifest | None = None) -> pl.DataFrame:
    """Return STEPS_SCHEMA for these events; never an invented step."""
    marks = _marks(events)
    unmarked = events.filter(pl.col("ph") == "X").join(marks, on=["rank", "cycle"], how="anti")
    whole = unmarked.group_by("rank", "cycle").agg(
        pl.lit(None, pl.Int64).alias("step"),
        pl.col("ts_ns").min().alias("start_ns"),
        (pl.col("ts_ns") + pl.col("dur_ns").fill_null(0)).max().alias("end_ns"),
        pl.lit(value=True).alias("complete"),
        pl.lit("whole trace: no ProfilerStep marks in it").alias("reason"),
    )
    columns = list(STEPS_SCHEMA)
    table = pl.concat([marks.select(columns), whole.select(columns)]).cast(STEPS_SCHEMA)  # type: ignore[arg-type]
    return _mark_cut(table, manifest).sort("rank", "cycle", "start_ns")


def _marks(events: pl.DataFrame) -> pl.DataFrame:
    """One row a mark; a step ends where the next one on its thread begins, the last where its own mark ends."""
    on_cpu = pl.col("cat").str.to_lowercase() != "gpu_user_annotation"
    number = pl.col("name").str.extract(names.STEP_MARK, 1).cast(pl.Int64)
    marks = events.filter(
        pl.col("ph") == "X", on_cpu, pl.col("name").str.contains(names.STEP_MARK), pl.col("dur_ns") >= 0
    )
    thread = ["rank", "cycle", "pid", "tid"]
    return (
        marks.select(*thread, number.alias("step"), pl.col("ts_ns").alias("start_ns"), "dur_ns")
        .sort(*thread, "start_ns")
        .with_columns(
            pl.coalesce(pl.col("start_ns").shift(-1).over(thread), pl.col("start_ns") + pl.col("dur_ns")).alias(
                "end_ns"
            ),
            pl.lit(value=True).alias("complete"),
            pl.lit(None, pl.String).alias("reason"),
        )
        .unique(["rank", "cycle", "step"], keep="first", maintain_order=True)
    )


def _mark_cut(table: pl.DataFrame, manifest: Manifest | None) -> pl.DataFrame:
    """A recording that its manifest calls incomplete was cut inside its last step."""
    cut = [
        {"rank": r.rank, "cycle": t.cycle, "cut": t.reason or "the recording ended early"}
        for r in (manifest.ranks if manifest else [])
        for t in r.traces
        if t.complete is False
    ]
    if not cut:
        return table
    reasons = pl.DataFrame(cut, schema={"rank": pl.Int32, "cycle": pl.Int32, "cut": pl.String})
    last = pl.col("start_ns") == pl.col("start_ns").max().over("rank", "cycle")
    is_cut = last & pl.col("cut").is_not_null()
    return (
        table.join(reasons, on=["rank", "cycle"], how="left")
        .with_columns(
            (pl.col("complete") & ~is_cut).alias("complete"),
            pl.when(is_cut).then("cut").otherwise("reason").alias("reason"),
        )
        .drop("cut")
    )


def without_device_work(steps_table: pl.DataFrame, columns: Columns) -> pl.DataFrame:
    """Return the steps, those incomplete for which the activity of the device was lost.

    On a rank that recorded kernels or copies, that is a step that launched none of them. On a rank that recorded
    launches of kernels but nothing on any device, it is every step. CPU runs have neither.
    """
    run, category = ["rank", "cycle"], pl.col("cat").str.to_lowercase()
    timed = columns.events.filter(pl.col("ph") == "X", pl.col("ts_ns").is_not_null())
    launches = timed.filter(category.str.contains(names.LAUNCH), pl.col("correlation") > 0)
    device = timed.filter(category.is_in([*names.KERNELS, *names.COPIES]) | category.str.ends_with("_ccp_events"))
    at = launches.select(*run, "correlation", pl.col("ts_ns").alias("at_ns")).unique([*run, "correlation"])
    placed = (
        device.select(*run, "ts_ns", "correlation")
        .join(at, on=[*run, "correlation"], how="left")
        .with_columns(pl.coalesce("at_ns", "ts_ns").alias("at_ns"))
    )
    busy = step_at(placed, steps_table, "at_ns").select(*run, "step").unique().with_columns(pl.lit(1).alias("busy"))
    recorded = device.select(run).unique().with_columns(pl.lit(1).alias("recorded"))
    launched = launches.filter(pl.col("name").str.contains("(?i)launch")).group_by(run).agg(pl.len().alias("launched"))
    table = steps_table.join(busy, on=[*run, "step"], how="left", nulls_equal=True, maintain_order="left")
    for more in (recorded, launched):
        table = table.join(more, on=run, how="left", maintain_order="left")
    nothing = pl.col("recorded").is_null() & pl.col("launched").is_not_null()
    empty = pl.col("recorded").is_not_null() & pl.col("busy").is_null()
    reason = (
        pl.when(~pl.col("complete")).then("reason")
        .when(nothing).then(pl.format("no activity of the device was recorded for {} launches", "launched"))
        .when(empty).then(pl.lit("no activity of the device was recorded in this step, but in others"))
        .otherwise("reason")
    )  # fmt: skip
    complete = pl.col("complete") & ~nothing & ~empty
    return table.with_columns(complete.alias("complete"), reason.alias("reason")).select(steps_table.columns)


def numbers_differ(steps_table: pl.DataFrame) -> str | None:
    """Say how the numbers of steps differ between ranks; null where they agree, as far as each rank was recorded."""
    numbers = {
        rank: set(steps) for rank, steps in steps_table.group_by("rank").agg(pl.col("step").drop_nulls()).iter_rows()
    }
    longest = max(numbers.values(), key=len, default=set[int]())
    if all(steps <= longest for steps in numbers.values()):
        return None
    kinds: dict[str, list[int]] = {}
    for rank in sorted(numbers):
        steps = numbers[rank]
        kinds.setdefault(f"{min(steps)} to {max(steps)}" if steps else "no number", []).append(rank)
    told = "; ".join(
        f"{span} on {'rank' if len(ranks) == 1 else 'ranks'} {', '.join(map(str, ranks[:8]))}{', …' * (len(ranks) > 8)}"
        for span, ranks in kinds.items()
    )
    return f"step numbers differ between ranks: {told}"


def turns(steps_table: pl.DataFrame) -> pl.DataFrame:
    """Return the steps with a column `turn`, equal for what ranks did together.

    It is the number of the step where the ranks agree on numbers, else its place among the steps of its rank.
    """
    place = pl.col("start_ns").rank("ordinal").over("rank", "cycle").cast(pl.Int64) - 1
    return steps_table.with_columns((place if numbers_differ(steps_table) else pl.col("step")).alias("turn"))


def step_at(table: pl.DataFrame, steps_table: pl.DataFrame, time: str) -> pl.DataFrame:
    """Return `table` with a `step` column: the step whose window, on its rank, holds the time in column `time`."""
    windows = steps_table.select("rank", "cycle", "step", "start_ns", "end_ns").sort("start_ns")
    order = "__order"
    joined = (
        table.with_row_index(order)
        .sort(time)
        .join_asof(
            windows.rename({"start_ns": "__start", "end_ns": "__end"}),
            left_on=time,
            right_on="__start",
            by=["rank", "cycle"],
            strategy="backward",
            check_sortedness=False,
        )
        .sort(order)
    )
    inside = pl.col(time) < pl.col("__end")
    return joined.with_columns(pl.when(inside).then("step").alias("step")).drop(order, "__start", "__end")
