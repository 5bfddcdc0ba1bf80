"""Allocations and frees, from the profiler's ``[memory]`` events, with the category of each."""

from __future__ import annotations

import polars as pl

from tracekit import common_columns as c
from tracekit.model import names
from tracekit.model.as_of import around
from tracekit.model.attribution.layers import Attribution
from tracekit.model.devices.device_names import allocator_device
from tracekit.model.recordings import RUN
from tracekit.table_schema import Column, Schema

# In time order.
ALLOCATIONS_SCHEMA = Schema(
    c.RANK,
    c.CYCLE,
    c.DEVICE,
    c.TS_NS,
    Column("delta_bytes", pl.Int64, "Bytes allocated; negative: freed."),
    c.ALLOCATED_BYTES.but(
        meaning="The allocator's total after it; on a CPU counted from the start of the profiler, not the process.",
        null="the trace is older than torch 2.0",
    ),
    c.RESERVED_BYTES.but(null="the trace is older than torch 2.0"),
    Column("address", pl.Int64, "Address of the block.", "the trace does not have it"),
    c.CATEGORY.but(
        meaning="What the memory was for, by FSDP2's annotation or the phase around it: unsharded parameters, gradient "
        "buffers, activations, gradients and temporaries, optimizer or other. A free has the category of its "
        "allocation, or `before the window`."
    ),
    c.LAYER,
    c.PHASE,
)
_BY_PHASE = {"forward": "activations", "backward": "gradients and temporaries", "optimizer": "optimizer"}
BEFORE_WINDOW = "before the window"


def memory(
    instants: pl.DataFrame, annotations: pl.DataFrame, attribution: Attribution, device: pl.DataFrame
) -> pl.DataFrame:
    """Return ALLOCATIONS_SCHEMA of these instants, as read; `device` are the rows of devices."""
    rows = allocator_device(instants.drop_nulls("delta_bytes"), device).sort(*RUN, "ts_ns", "index")
    rows = _with_category(attribution.locate(rows, "ts_ns"), annotations)
    return rows.select(list(ALLOCATIONS_SCHEMA)).cast(ALLOCATIONS_SCHEMA)  # type: ignore[arg-type]


def _with_category(rows: pl.DataFrame, annotations: pl.DataFrame) -> pl.DataFrame:
    """Return the rows with `category`: of allocations by the annotation or phase around them, of frees by address."""
    by_time = pl.coalesce(
        _by_annotation(rows, annotations),
        pl.col("phase").replace_strict(_BY_PHASE, default="other", return_dtype=pl.String),
    )
    block = [*RUN, "device", "address"]
    return (
        rows.with_columns(pl.when(pl.col("delta_bytes") > 0).then(by_time).alias("category"))
        .with_columns(pl.col("category").forward_fill().over(block))
        .with_columns(pl.col("category").fill_null(BEFORE_WINDOW))
    )


def _by_annotation(rows: pl.DataFrame, annotations: pl.DataFrame) -> pl.Series:
    """Return the category by FSDP2's annotations, inside which it allocates parameters and buffers; null elsewhere."""
    marks = (
        annotations.filter(pl.col("ph") == "X", pl.col("name").str.contains(names.FSDP_BUFFERS))
        .select(
            *RUN,
            pl.col("ts_ns").alias("mark_ns"),
            (pl.col("ts_ns") + pl.col("dur_ns")).alias("mark_end_ns"),
            pl.when(pl.col("name").str.contains("all_gather"))
            .then(pl.lit("unsharded parameters"))
            .otherwise(pl.lit("gradient buffers"))
            .alias("mark"),
        )
        .sort("mark_ns")
    )
    return around(rows, "ts_ns", marks, ("mark_ns", "mark_end_ns"), RUN)["mark"]
