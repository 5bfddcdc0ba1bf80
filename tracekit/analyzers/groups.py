"""The process groups of a run, and which mesh axes communicate at the same time."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

import polars as pl

from tracekit import intervals

if TYPE_CHECKING:
    from tracekit.model.run import Run

GROUPS_SCHEMA = pl.Schema(
    {
        "group": pl.String,
        "axis": pl.String,
        "group_size": pl.Int32,
        "num_ranks": pl.Int64,
        "kinds": pl.String,
        "num_collectives": pl.Int64,
        "payload_bytes": pl.Int64,
        "coverage": pl.Float64,
    }
)
TOGETHER_SCHEMA = pl.Schema(
    {
        "rank": pl.Int32,
        "step": pl.Int64,
        "first": pl.String,
        "second": pl.String,
        "first_ns": pl.Int64,
        "second_ns": pl.Int64,
        "together_ns": pl.Int64,
    }
)


def groups(run: Run) -> pl.DataFrame:
    """Each process group with its size, the ranks seen in it and what it carried, over all steps and ranks."""
    known = pl.col("payload_bytes").is_not_null()
    return (
        run.collectives.group_by("group", "axis", "group_size")
        .agg(
            pl.col("rank").n_unique().alias("num_ranks"),
            pl.col("kind").unique().sort().str.join(", ").alias("kinds"),
            pl.len().alias("num_collectives"),
            pl.when(known.any()).then(pl.col("payload_bytes").sum()).alias("payload_bytes"),
            known.mean().alias("coverage"),
        )
        .sort("group", "axis", "group_size")
        .select(pl.col(name).cast(dtype) for name, dtype in GROUPS_SCHEMA.items())
    )


def concurrency(run: Run) -> pl.DataFrame:
    """How long the communication of two axes (or, without a mesh, groups or kinds) was in flight at the same time.

    One row a rank, step and pair; times are unions, in ns.
    """
    who = pl.coalesce("axis", "group", "kind")
    ran = run.collectives.filter(pl.col("dur_ns").is_not_null()).with_columns(who.alias("who"))
    rows: list[tuple[object, ...]] = []
    for (rank, step), group in ran.group_by("rank", "step", maintain_order=True):
        parts = group.sort("who").partition_by("who", "device", as_dict=True, maintain_order=True)
        busy = {key: intervals.union(p["start_ns"], p["start_ns"] + p["dur_ns"]) for key, p in parts.items()}
        for a, b in combinations(busy, 2):
            if a[1] != b[1] or a[0] == b[0]:
                continue
            both = intervals.length(intervals.intersect(busy[a], busy[b]))
            rows.append((rank, step, a[0], b[0], intervals.length(busy[a]), intervals.length(busy[b]), both))
    return pl.DataFrame(rows, schema=TOGETHER_SCHEMA, orient="row").sort("rank", "step", "first", "second")
