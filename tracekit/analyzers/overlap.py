"""Overlapped and exposed time of communication, by any of its attributes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit import common_columns as c
from tracekit.model.device_time import DEVICE_KEY, covered_ns, islands
from tracekit.table_schema import Column, Groupings, Schema

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.model.run import Run

KIND = c.KIND.but(null="communication that belongs to no known collective")
OVERLAP_BY = Groupings(
    (
        *(c.RANK, c.STEP, c.LAYER, c.PHASE, KIND, c.AXIS),
        *(c.CYCLE, c.DEVICE, c.LANE, c.BACKEND_KIND, c.GROUP, c.GROUP_SIZE, c.DTYPE),
    ),
    default=("rank", "step", "layer", "phase", "kind", "axis"),
)
_NEVER_RAN = "none of the group's collectives ran on a device"
OVERLAP_SCHEMA = Schema(
    c.RANK,
    c.STEP,
    c.LAYER,
    c.PHASE,
    KIND,
    c.AXIS,
    c.NUM_COLLECTIVES.but(meaning="Number of collectives of the group, those that never ran on a device included."),
    Column(
        "comm_ns",
        pl.Int64,
        "Length of the union of the group's communication within a rank and device, summed over these. Groups may "
        "overlap one another, so rows do not add up to a coarser grouping.",
        _NEVER_RAN,
    ),
    c.OVERLAPPED_NS.but(
        meaning="The part of it during which compute of any step ran on another lane of the same device.",
        null=_NEVER_RAN,
    ),
    c.EXPOSED_NS.but(meaning="The rest: `comm_ns` less `overlapped_ns`.", null=_NEVER_RAN),
    Column("overlap_ratio", pl.Float64, "`overlapped_ns` over `comm_ns`.", "there was no communication"),
)

_MEASURES = ("num_collectives", "comm_ns", "overlapped_ns", "exposed_ns", "overlap_ratio")
_OF_PIECES = ("seq", "issued_ns", "wait_ns", "is_collective", "is_further")
_SPAN = ("cycle", "lane", "start_ns", "dur_ns")


def overlap(run: Run, *, by: Sequence[str] | None = None) -> pl.DataFrame:
    """Communication time of each group, in ns, split into the part under compute and the rest: OVERLAP_SCHEMA.

    Grouped by `by`, columns of OVERLAP_BY. Groups may overlap one another, so times of rows do not add up to the time
    of a coarser grouping. Communication that belongs to no known collective stays in the table, with a null kind and
    no collective counted.

    Raises:
        UsageError: `by` names a column that communication cannot be grouped by.
    """
    keys = OVERLAP_BY.keys(by, "overlap")
    # A group needs a key: without any, everything is in the one group of `all`.
    groups = keys or ["all"]
    spans = communication(run).with_columns(pl.lit(0).alias("all"))
    merged = islands(spans, list(dict.fromkeys((*groups, *DEVICE_KEY))))
    hidden = covered_ns(merged, run.compute_cover)
    times = (
        merged.with_columns((pl.col("end_ns") - pl.col("start_ns")).alias("comm_ns"), hidden.alias("overlapped_ns"))
        .group_by(groups)
        .agg(pl.col("comm_ns", "overlapped_ns").sum())
    )
    counts = spans.group_by(groups).agg(
        pl.col("is_collective").sum().alias("num_collectives"), pl.col("dur_ns").is_not_null().any().alias("ran")
    )
    # What ran for no time at all has a length: 0.
    length = pl.when("ran").then(pl.col("comm_ns", "overlapped_ns").fill_null(0))
    return (
        counts.join(times, on=groups, how="left", nulls_equal=True)
        .with_columns(length)
        .with_columns((pl.col("comm_ns") - pl.col("overlapped_ns")).alias("exposed_ns"))
        .with_columns(ratio("overlapped_ns", "comm_ns").alias("overlap_ratio"))
        .sort(groups)
        .select(*keys, *(pl.col(name).cast(OVERLAP_SCHEMA[name]) for name in _MEASURES))
    )


def communication(run: Run) -> pl.DataFrame:
    """Every piece of communication with what is known of its collective, and the collectives that never ran.

    `is_collective` is true once a collective, so that it can be counted; work of no known collective has a null kind.
    `is_further` is true of those of a batch but the first, whose piece has all of the batch's time.
    """
    attributes = [name for name in run.collectives.columns if name not in run.work.columns]
    key = ["rank", "cycle"]
    known = run.collectives.select(*key, "call", "index", "step", "layer", "phase", *attributes)
    work = run.work.filter(pl.col("class") == "comm").drop("step", "layer", "phase")
    named = known.drop_nulls("call").rename({"index": "first"})
    of_calls = work.drop_nulls("call").join(named, on=[*key, "call"], how="left")
    alone = work.filter(pl.col("call").is_null()).join(
        known.filter(pl.col("call").is_null()).drop("call").with_columns(pl.col("index").alias("first")),
        on=[*key, "index"],
        how="left",
    )
    counted = (pl.col("index") == pl.col("first")).fill_null(value=False).alias("is_collective")
    is_further = (pl.col("batch") != pl.col("call")).fill_null(value=False)
    without = run.collectives.filter(pl.col("dur_ns").is_null() | is_further)
    others = without.with_columns(pl.lit(value=True).alias("is_collective"), is_further.alias("is_further"))
    # A batch waits as long as the one of its transfers that waits longest.
    longest = run.collectives.drop_nulls("batch").group_by(*key, "batch").agg(pl.col("wait_ns").max().alias("longest"))
    of_calls = of_calls.join(longest, on=[*key, "batch"], how="left", maintain_order="left")
    of_calls = of_calls.with_columns(pl.coalesce("longest", "wait_ns").alias("wait_ns"))
    own = [counted, pl.lit(value=False).alias("is_further")]
    parts = [of_calls.with_columns(own), alone.with_columns(own), others]
    columns = [*dict.fromkeys((*OVERLAP_BY.names, *_SPAN)), "index", *_OF_PIECES]
    return pl.concat([part.select(columns) for part in parts], how="vertical_relaxed")


def of_devices(run: Run, table: pl.DataFrame) -> pl.DataFrame:
    """The rows without those of the CPU on ranks that have other devices: a backend beside them is another question."""
    accelerated = run.work.filter(pl.col("device") != "cpu")["rank"].unique().to_list()
    return table.filter((pl.col("device") != "cpu") | ~pl.col("rank").is_in(accelerated))


def ratio(part: str, whole: str) -> pl.Expr:
    """Part over whole, null where the whole is nothing or unknown."""
    return pl.when(pl.col(whole) > 0).then(pl.col(part) / pl.col(whole))
