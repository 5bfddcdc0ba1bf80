"""Rows of the charts on what devices did and waited for, whether they communicate or not (see chart_rows.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.analyzers.causes.idle import CAUSES
from tracekit.analyzers.complete_steps import of_complete_steps
from tracekit.analyzers.stages.pipeline import is_pipeline
from tracekit.report.drawing import style, thinning
from tracekit.report.drawing.chart_rows import Drawn
from tracekit.text import kernel_name
from tracekit.units import NS_PER_MS

if TYPE_CHECKING:
    from tracekit.model.run import Run

# Names of work in one chart.
MAX_NAMES = 12
_PIPELINE: dict[str, pl.DataType] = {
    "row": pl.String(),
    "order": pl.Int64(),
    "rank": pl.Int32(),
    "part": pl.String(),
    "ms": pl.Float64(),
    "place": pl.Int64(),
}


def idle_rows(run: Run) -> Drawn:
    """Idle ms of the mean complete step of a device, by cause."""
    table = of_complete_steps(run, run.table("idle"))
    steps = of_complete_steps(run, run.table("breakdown")).height
    rows = (
        table.group_by("cause")
        .agg(pl.col("idle_ns").sum())
        .with_columns(
            ms=pl.col("idle_ns") / NS_PER_MS / max(steps, 1),
            told=pl.col("cause").replace_strict(CAUSES, return_dtype=pl.String),
            order=thinning.place("cause", {cause: place for place, cause in enumerate(CAUSES)}),
            place=pl.lit(0),
        )
        .drop("idle_ns")
    )
    return Drawn(rows.sort("order"))


def pipeline_rows(run: Run) -> Drawn:
    """Parts of the mean complete step of each stage of a pipeline, in ms; nothing where no pipeline is recognised."""
    table = of_complete_steps(run, run.table("pipeline"))
    if not is_pipeline(run, table):
        return Drawn(pl.DataFrame(schema=_PIPELINE))
    wait = pl.col("wait_ns").fill_null(0)
    parts = {
        "busy": "busy_ns",
        "transfer": "transfer_ns",
        "waiting for a peer": wait,
        "idle": pl.col("bubble_ns") - wait,
    }
    steps = pl.col("step").n_unique()
    sums = [(pl.col(ns) if isinstance(ns, str) else ns).sum() / NS_PER_MS / steps for ns in parts.values()]
    named = pl.format("stage {} · rank {}", pl.col("stage").cast(pl.String).fill_null("?"), "rank")
    rows = (
        table.with_columns(pl.col("stage").min().over("rank"))
        .group_by("rank", "stage")
        .agg(ms.alias(part) for part, ms in zip(parts, sums, strict=True))
        .sort("stage", "rank", nulls_last=True)
        .with_row_index("order")
        .with_columns(pl.col("order").cast(pl.Int64), named.alias("row"))
        .unpivot(on=list(parts), index=["row", "order", "rank"], variable_name="part", value_name="ms")
        .with_columns(place=thinning.place("part", {part: place for place, part in enumerate(parts)}))
    )
    return Drawn(rows.sort("order", "place"))


def kernel_rows(run: Run) -> Drawn:
    """Summed ms of the names of work that took longest, over all ranks."""
    work = run.table("kernels").filter(pl.col("class") != "other")
    sums = work.group_by("class", "name").agg(pl.col("sum_ns", "num").sum())
    top = sums.sort("sum_ns", "class", "name", descending=[True, False, False]).head(MAX_NAMES)
    activity = {"compute": style.COMPUTE, "comm": style.COMM, "copy": style.COPYING}
    rows = top.with_row_index("order").select(
        pl.col("name").fill_null("unnamed").map_elements(kernel_name, return_dtype=pl.String),
        pl.col("order").cast(pl.Int64),
        pl.lit(0).alias("place"),
        pl.col("class").replace_strict(activity, return_dtype=pl.String).alias("activity"),
        (pl.col("sum_ns") / NS_PER_MS).alias("ms"),
        "num",
        (pl.col("sum_ns") / max(int(sums["sum_ns"].sum()), 1)).alias("share"),
    )
    # Names that are alike as far as they are shown are one bar, which then may be longer than those before it.
    rows = rows.group_by("name", "place", maintain_order=True).agg(
        pl.col("activity").first(), pl.col("ms", "num", "share").sum()
    )
    rows = rows.sort("ms", descending=True, maintain_order=True).with_columns(order=pl.int_range(pl.len()))
    note = (
        f"The first {MAX_NAMES} of {sums.height} names; the table has all of them." if sums.height > MAX_NAMES else ""
    )
    return Drawn(rows, note)
