"""The steps of each rank: windows from one ``ProfilerStep`` mark to the next on the same thread."""

from __future__ import annotations

import polars as pl

from tracekit.model import names
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
