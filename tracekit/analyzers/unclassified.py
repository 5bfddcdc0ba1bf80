"""Device rows of unknown kind, and collectives whose kind rests on a name alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit import common_columns as c
from tracekit.model.names import FUSED_KERNEL, LIKE_COMMUNICATION
from tracekit.table_schema import Column, Schema

if TYPE_CHECKING:
    from tracekit.model.run import Run

UNCLASSIFIED_SCHEMA = Schema(
    Column(
        "what",
        pl.String,
        "`device row of unknown kind` (class other on an accelerator: neither compute nor communication), "
        "`collective known by its name alone`, or `compute whose name speaks of communication` (where it is some, a "
        "pattern in `tracekit-patterns.toml` says so).",
    ),
    c.NAME,
    Column("num_rows", pl.Int64, "Number of rows of that name."),
    c.DUR_NS.but(meaning="Sum of their durations."),
    Column("share", pl.Float64, "That over the summed duration of all device work.", "no device work took any time"),
)


def unclassified(run: Run) -> pl.DataFrame:
    """Rows that rest on no metadata, by name, longest first: UNCLASSIFIED_SCHEMA.

    `what`: "device row of unknown kind" (class other on an accelerator: it counts neither as compute nor as
    communication), "collective known by its name alone", or "compute whose name speaks of communication". `dur_ns` is
    a sum over rows; `share` is that of the summed duration of all device work. A pattern for a name can be added in
    tracekit-patterns.toml (see model/patterns.py).
    """
    work = run.work.filter(pl.col("device") != "cpu")
    total = work["dur_ns"].sum()
    guessed = run.collectives.filter(pl.col("kind_from").is_null() | (pl.col("kind_from") == "name"))
    named = guessed.join(work.select("rank", "cycle", "index", "name"), on=["rank", "cycle", "index"], how="inner")
    compute = work.filter(pl.col("class") == "compute")
    speaks = pl.col("name").str.contains(LIKE_COMMUNICATION) & ~pl.col("name").str.contains(FUSED_KERNEL)
    parts = {
        "device row of unknown kind": work.filter(pl.col("class") == "other").select("name", "dur_ns"),
        "compute whose name speaks of communication": compute.filter(speaks).select("name", "dur_ns"),
        "collective known by its name alone": named.select("name", "dur_ns"),
    }
    rows = pl.concat([frame.with_columns(pl.lit(what).alias("what")) for what, frame in parts.items()])
    return (
        rows.group_by("what", "name")
        .agg(pl.len().alias("num_rows"), pl.col("dur_ns").sum())
        .with_columns((pl.col("dur_ns") / total if total else pl.lit(None, pl.Float64)).alias("share"))
        .sort("dur_ns", "what", "name", descending=[True, False, False])
        .select(pl.col(name).cast(dtype) for name, dtype in UNCLASSIFIED_SCHEMA.items())
    )
