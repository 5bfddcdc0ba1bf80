"""What stays alive over steps and grows: memory that every step leaves behind."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit import common_columns as c
from tracekit.model.memory.categories import BUFFERS, GRADIENT_BUFFERS
from tracekit.table_schema import Column, Schema

if TYPE_CHECKING:
    from tracekit.model.run import Run

GROWTH_SCHEMA = Schema(
    c.RANK,
    c.DEVICE,
    c.LAYER,
    Column("operator", pl.String, "Operator that made the blocks.", "none was running"),
    c.CATEGORY.but(meaning="What the rules take the blocks for, as in `blocks`."),
    Column("num_steps", pl.Int64, "Steps that were looked at: each is followed by a whole step of the recording."),
    Column("num_blocks", pl.Int64, "Blocks that these steps left behind."),
    Column("bytes_per_step", pl.Int64, "Bytes that a step left behind, the mean over these steps."),
)
_MIN_STEPS = 2


def growth(run: Run) -> pl.DataFrame:
    """Blocks that were made in a step and outlived the whole step after it, by layer and operator: GROWTH_SCHEMA.

    Only what every step that can be judged left behind is counted, and two of them are needed: state that an optimizer
    makes in its first step is not growth. Empty where nothing grows, or too few steps were recorded. What a backend's
    thread frees on a CPU is not recorded, so buffers of collectives are left out there.
    """
    steps = run.steps.filter("complete").sort("rank", "cycle", "step")
    following = pl.col("end_ns").shift(-1).over("rank", "cycle")
    judged = steps.with_columns(following.alias("until_ns")).drop_nulls("until_ns")
    judged = judged.select("rank", "cycle", "step", "until_ns", pl.len().over("rank", "cycle").alias("num_steps"))
    blocks = run.blocks.join(judged.filter(pl.col("num_steps") >= _MIN_STEPS), on=["rank", "cycle", "step"])
    unseen = (pl.col("device") == "cpu") & pl.col("category").is_in([BUFFERS, GRADIENT_BUFFERS])
    left = blocks.filter(pl.col("end_ns").is_null() | (pl.col("end_ns") > pl.col("until_ns")), ~unseen)
    found = (
        left.group_by("rank", "device", "layer", "operator", "category", "num_steps")
        .agg(pl.len().alias("num_blocks"), pl.col("step").n_unique().alias("__in"), pl.col("bytes").sum())
        .filter(pl.col("__in") == pl.col("num_steps"))
        .with_columns((pl.col("bytes") // pl.col("num_steps")).alias("bytes_per_step"))
        .sort("bytes_per_step", "rank", "layer", "operator", descending=[True, False, False, False], nulls_last=True)
    )
    return found.select(pl.col(name).cast(dtype) for name, dtype in GROWTH_SCHEMA.items())
