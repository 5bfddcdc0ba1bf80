"""Blocks of memory with what each was for: from its allocation to its free."""

from __future__ import annotations

import polars as pl

from tracekit import common_columns as c
from tracekit.manifest import Manifest
from tracekit.model.as_of import latest
from tracekit.model.event_kinds import Kinds
from tracekit.model.memory.categories import with_category
from tracekit.model.memory.lifetimes import with_ends
from tracekit.model.memory.makers import mark_at, with_makers
from tracekit.model.recordings import RUN
from tracekit.table_schema import Column, Schema

# In the order of their allocation. `block` numbers them as `with_blocks` does.
BLOCKS_SCHEMA = Schema(
    c.RANK,
    c.CYCLE,
    c.DEVICE,
    c.STEP,
    Column("start_ns", pl.Int64, "When it was allocated, since the epoch, on the clock of its host."),
    Column("end_ns", pl.Int64, "When it was freed.", "it is still there when the recording ends"),
    Column(
        "end_from",
        pl.String,
        "How the end is known: `recorded`; or, as the frees of the backend's own threads are not, `its address was "
        "used again` or `its call was done`.",
        "as `end_ns`",
    ),
    Column("bytes", pl.Int64, "Bytes that were asked for."),
    Column("address", pl.Int64, "Where it begins.", "the trace does not have it"),
    c.CATEGORY.but(
        meaning="What it was for: gathered parameters, collective buffers, gradients, gradient buffers, activations, "
        "temporaries, optimizer state or unknown."
    ),
    Column(
        "category_from",
        pl.String,
        "What tells the category: a range of FSDP1 or FSDP2, the size of a flat parameter, a collective call, an "
        "operator, or the phases in which the block came and went.",
        "the category is unknown",
    ),
    Column("operator", pl.String, "Operator that made it, the innermost on its thread.", "none was running"),
    c.LAYER,
    c.PHASE,
    Column("end_phase", pl.String, "Part of the step in which it was freed.", "as `end_ns`"),
)


def blocks(
    located: pl.DataFrame, kinds: Kinds, calls: pl.DataFrame, work: pl.DataFrame, manifest: Manifest | None
) -> pl.DataFrame:
    """Return BLOCKS_SCHEMA, and `block`, of the rows that `allocations.located` found."""
    ran = (
        work.drop_nulls("call")
        .group_by(*RUN, "call")
        .agg((pl.col("start_ns") + pl.col("dur_ns")).max().alias("done_ns"))
    )
    calls = calls.join(ran, on=[*RUN, "call"], how="left", maintain_order="left")
    # Each time that a phase is entered anew.
    rows = located.drop_nulls("ts_ns").with_columns(pl.struct(*RUN, "step", "phase").rle_id().alias("stretch"))
    came = with_makers(rows.filter(pl.col("delta_bytes") > 0), kinds, calls)
    came = with_ends(came, rows)
    ended = latest(came, "end_ns", rows.select(*RUN, "ts_ns", "phase", "stretch"), "ts_ns", RUN)
    came = came.with_columns(
        pl.col("ts_ns").alias("start_ns"),
        pl.col("delta_bytes").alias("bytes"),
        ended["phase"].alias("end_phase"),
        ended["stretch"].alias("end_stretch"),
        mark_at(came, "end_ns", kinds).alias("end_mark"),
    )
    made = with_category(came, manifest)
    return made.select("block", *(pl.col(name).cast(dtype) for name, dtype in BLOCKS_SCHEMA.items()))
