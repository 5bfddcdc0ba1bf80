"""Allocations and frees, from the profiler's ``[memory]`` events, with what each was for."""

from __future__ import annotations

import polars as pl

from tracekit import common_columns as c
from tracekit.model.attribution.layers import Attribution
from tracekit.model.devices.device_names import allocator_device
from tracekit.model.memory.categories import BEFORE_WINDOW
from tracekit.model.memory.lifetimes import with_blocks
from tracekit.model.recordings import RUN
from tracekit.model.steps import step_at
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
        meaning="What the memory was for, as in `blocks`; a free has the category of its allocation, or `before the "
        "window`."
    ),
    c.LAYER,
    c.PHASE,
)


def located(
    instants: pl.DataFrame, device: pl.DataFrame, attribution: Attribution, steps: pl.DataFrame
) -> pl.DataFrame:
    """Return these instants, as read, by time, with device, layer, phase, step and `block`; `device`: its rows."""
    rows = allocator_device(instants.drop_nulls("delta_bytes"), device).sort(*RUN, "ts_ns", "index")
    return with_blocks(step_at(attribution.locate(rows, "ts_ns"), steps, "ts_ns"))


def allocations(rows: pl.DataFrame, blocks: pl.DataFrame) -> pl.DataFrame:
    """Return ALLOCATIONS_SCHEMA of the rows that `located` found, with what `blocks` tells of theirs."""
    told = blocks.select("block", "category")
    rows = rows.join(told, on="block", how="left", maintain_order="left")
    rows = rows.with_columns(pl.col("category").fill_null(BEFORE_WINDOW))
    return rows.select(list(ALLOCATIONS_SCHEMA)).cast(ALLOCATIONS_SCHEMA)  # type: ignore[arg-type]
