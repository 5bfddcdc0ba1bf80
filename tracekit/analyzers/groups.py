"""Process groups of a run, and the time during which two mesh axes communicate at once."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

import polars as pl

from tracekit import common_columns as c
from tracekit import intervals
from tracekit.table_schema import Column, Schema

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.model.run import Run

GROUPS_SCHEMA = Schema(
    c.GROUP,
    c.AXIS,
    c.GROUP_SIZE,
    Column("num_ranks", pl.Int64, "Number of ranks that recorded collectives of the group."),
    Column("members", pl.String, "Its ranks, separated by commas.", "neither arguments nor header list them all"),
    Column("kinds", pl.String, "Kinds of its collectives, by name, separated by commas."),
    c.DTYPE.but(meaning="Data types of what they sent, by torch's name, separated by commas.", null="none is known"),
    c.NUM_COLLECTIVES,
    c.PAYLOAD_BYTES.but(meaning="Bytes of their payloads, summed over those that are known."),
    c.COVERAGE,
)
CONCURRENCY_SCHEMA = Schema(
    c.RANK,
    c.STEP,
    Column(
        "first",
        pl.String,
        "One axis; without a mesh, one group or else one kind; or a kind within one of these.",
    ),
    Column("second", pl.String, "The other, later by name."),
    Column("first_ns", pl.Int64, "Time during which communication of the first was in flight."),
    Column("second_ns", pl.Int64, "Time during which communication of the second was in flight."),
    Column("concurrent_ns", pl.Int64, "Time during which both were in flight on one device."),
)


def groups(run: Run) -> pl.DataFrame:
    """Size, ranks and payload of each process group, over all steps and ranks: GROUPS_SCHEMA."""
    known = pl.col("payload_bytes").is_not_null()
    return (
        run.collectives.group_by("group", "axis", "group_size", "members")
        .agg(
            pl.col("rank").n_unique().alias("num_ranks"),
            pl.col("kind").unique().sort().str.join(", ").alias("kinds"),
            pl.when(pl.col("dtype").count() > 0)
            .then(pl.col("dtype").drop_nulls().unique().sort().str.join(", "))
            .alias("dtype"),
            pl.len().alias("num_collectives"),
            pl.when(known.any()).then(pl.col("payload_bytes").sum()).alias("payload_bytes"),
            known.mean().alias("coverage"),
        )
        .sort("group", "axis", "group_size", "members")
        .select(pl.col(name).cast(dtype) for name, dtype in GROUPS_SCHEMA.items())
    )


def concurrency(run: Run) -> pl.DataFrame:
    """Time during which two axes (or, without a mesh, groups or kinds) communicated at once: CONCURRENCY_SCHEMA.

    One row for each rank, step and pair; times are lengths of unions, in ns.
    """
    where = pl.coalesce("axis", "group")
    ran = run.collectives.filter(pl.col("dur_ns").is_not_null()).with_columns(
        where.alias("where"), pl.coalesce(where, "kind").alias("who"), pl.format("{} {}", where, "kind").alias("what")
    )
    rows: list[tuple[object, ...]] = []
    for (rank, step), part in ran.group_by("rank", "step", maintain_order=True):
        rows += [(rank, step, *pair) for pair in _pairs(part, "who")]
        # Kinds of one communicator on two streams.
        for _, one in part.drop_nulls("where").group_by("where", maintain_order=True):
            rows += [(rank, step, *pair) for pair in _pairs(one, "what") if pair[-1]]
    return pl.DataFrame(rows, schema=CONCURRENCY_SCHEMA, orient="row").sort("rank", "step", "first", "second")


def _pairs(part: pl.DataFrame, who: str) -> Iterator[tuple[object, ...]]:
    """Each two of column `who` on one device: their names, the time of each, and the time of both at once."""
    parts = part.sort(who).partition_by(who, "device", as_dict=True, maintain_order=True)
    busy = {key: intervals.union(p["start_ns"], p["start_ns"] + p["dur_ns"]) for key, p in parts.items()}
    for a, b in combinations(busy, 2):
        if a[1] == b[1] and a[0] != b[0]:
            both = intervals.length(intervals.intersect(busy[a], busy[b]))
            yield a[0], b[0], intervals.length(busy[a]), intervals.length(busy[b]), both
