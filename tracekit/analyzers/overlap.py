"""Which part of the communication ran under compute, and which part stood exposed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit import intervals
from tracekit.errors import UsageError
from tracekit.model.device_time import hiding

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracekit.model.run import Run

BY = ("rank", "step", "layer", "phase", "kind", "axis")
MEASURES = pl.Schema(
    {
        "num_collectives": pl.Int64,
        "comm_ns": pl.Int64,
        "overlapped_ns": pl.Int64,
        "exposed_ns": pl.Int64,
        "overlap_ratio": pl.Float64,
    }
)

# Time is only ever compared within one device of one rank.
PLACE = ("rank", "device")
_SPAN = ("cycle", "lane", "start_ns", "dur_ns")
_GROUPABLE = (*BY, "cycle", "device", "lane", "backend_kind", "group", "group_size", "dtype")


def overlap(run: Run, *, by: Sequence[str] | None = None) -> pl.DataFrame:
    """Communication time of each group, in ns, split into the part under compute and the rest.

    Columns: those of `by` (rank, step, layer, phase, kind, axis unless told otherwise), then

    - `num_collectives`: collectives of the group, those that never ran on a device included;
    - `comm_ns`: length of the union of the group's communication intervals, within a rank and device, summed
      over the ranks and devices of the group; null when none of its collectives ran;
    - `overlapped_ns`: the part of it during which any compute runs on another lane of the same device,
      whichever step the compute belongs to; `exposed_ns`: the rest;
    - `overlap_ratio`: overlapped over comm, null when there was no communication.

    Groups may overlap one another, so times of rows do not add up to the time of a coarser grouping.
    Communication that belongs to no known collective stays in the table, with a null kind and no collective
    counted.

    Raises:
        UsageError: `by` names a column that communication cannot be grouped by.
    """
    keys = _checked(BY if by is None else by)
    # A group needs a key: without any, everything is in the one group of `all`.
    groups = keys or ["all"]
    spans = communication(run).with_columns(pl.lit(0).alias("all"))
    merged = islands(spans, list(dict.fromkeys((*groups, *PLACE))))
    hidden = covered(merged, hiding(run.work))
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
        .select(*keys, *(pl.col(name).cast(dtype) for name, dtype in MEASURES.items()))
    )


def communication(run: Run) -> pl.DataFrame:
    """Every piece of communication with what is known of its collective, and the collectives that never ran.

    `is_collective` is true once a collective, so that it can be counted; work of no known collective has a null kind.
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
    never = run.collectives.filter(pl.col("dur_ns").is_null()).with_columns(pl.lit(value=True).alias("is_collective"))
    columns = [*dict.fromkeys((*_GROUPABLE, *_SPAN)), "index", "issued_ns", "wait_ns", "is_collective"]
    parts = [of_calls.with_columns(counted), alone.with_columns(counted), never]
    return pl.concat([part.select(columns) for part in parts], how="vertical_relaxed")


def islands(spans: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """Union of the spans within each group: `by` columns, start_ns, end_ns; sorted within a group."""
    keys = list(by)
    ordered = (
        spans.filter(pl.col("dur_ns") > 0)
        .with_columns((pl.col("start_ns") + pl.col("dur_ns")).alias("end_ns"))
        .sort([*keys, "start_ns"])
        .with_columns(pl.col("end_ns").cum_max().over(keys).alias("reach"))
        .with_columns(pl.col("reach").shift(1).over(keys).alias("before"))
    )
    starts = pl.col("before").is_null() | (pl.col("start_ns") > pl.col("before"))
    return (
        ordered.with_columns(starts.cum_sum().alias("island"))
        .group_by([*keys, "island"], maintain_order=True)
        .agg(pl.col("start_ns").min(), pl.col("end_ns").max())
        .drop("island")
    )


def covered(spans: pl.DataFrame, cover: Mapping[tuple[object, ...], intervals.Intervals]) -> pl.Series:
    """How many ns of each span (rank, device, start_ns, end_ns) lie under what covers its place."""
    result = pl.Series("covered_ns", [0], dtype=pl.Int64).new_from_index(0, spans.height)
    for place, rows in spans.with_row_index("row").group_by(PLACE):
        if place in cover:
            inside = intervals.covered(rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy(), cover[place])
            result = result.scatter(rows["row"], inside)
    return result


def union_by_place(work: pl.DataFrame) -> dict[tuple[object, ...], intervals.Intervals]:
    """Union of the given work for each (rank, device)."""
    return {
        place: intervals.union(rows["start_ns"].to_numpy(), (rows["start_ns"] + rows["dur_ns"]).to_numpy())
        for place, rows in work.filter(pl.col("dur_ns") > 0).group_by(PLACE)
    }


def ratio(part: str, whole: str) -> pl.Expr:
    """Part over whole, null where the whole is nothing or unknown."""
    return pl.when(pl.col(whole) > 0).then(pl.col(part) / pl.col(whole))


def _checked(by: Sequence[str]) -> list[str]:
    unknown = [column for column in by if column not in _GROUPABLE]
    if unknown:
        raise UsageError(f"communication cannot be grouped by {', '.join(unknown)}; use any of {', '.join(_GROUPABLE)}")
    return list(dict.fromkeys(by))
