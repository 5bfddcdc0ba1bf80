"""Frames for drawing: exact tables turned into few rows of plain numbers, without losing what the eye can see.

Charts hold at most `MAX_ROWS` rows. What is merged to get there is merged exactly and said in words beside
the chart. Times become milliseconds from a given origin and bytes mebibytes only here, after all arithmetic
in integers.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import polars as pl

from tracekit.layer_names import NO_LAYER, ROOT
from tracekit.units import BYTES_PER_MIB, NS_PER_MS

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_ROWS = 4_000


def ms(column: str, origin_ns: int = 0) -> pl.Expr:
    """A column of integer ns as float ms after `origin_ns`."""
    return (pl.col(column) - origin_ns) / NS_PER_MS


def mib(column: str) -> pl.Expr:
    """A column of bytes as float MiB."""
    return pl.col(column) / BYTES_PER_MIB


def layer_order(labels: Iterable[str]) -> dict[str, int]:
    """The place of each label: the root first, then names with their numbers in order, unknown last."""

    def key(label: str) -> tuple[int, list[tuple[int, str]]]:
        place = 0 if label == ROOT else 2 if label == NO_LAYER else 1
        chunks = re.split(r"(\d+)", label)
        return place, [(int(chunk), "") if chunk.isdigit() else (-1, chunk) for chunk in chunks]

    return {label: i for i, label in enumerate(sorted(set(labels), key=key))}


def place(column: str, order: dict[str, int]) -> pl.Expr:
    """The place of each name of a column; names that have none come last."""
    return pl.col(column).replace_strict(order or {"": 0}, default=len(order), return_dtype=pl.Int64)


def merge_slices(
    frame: pl.DataFrame, lane: list[str], same: list[str], limit: int = MAX_ROWS
) -> tuple[pl.DataFrame, int]:
    """Slices joined with like neighbours until `limit` are left, and the widest gap closed, in ns.

    Neighbours on a lane (its columns) with equal `same` columns that touch are always joined; then gaps are
    closed from the narrowest up, as few as needed. More than `limit` rows stay where too many neighbours
    are unlike. `count` says how many slices a drawn one stands for. The ends of what is joined stay exact.
    """
    ordered = frame.sort(*lane, "start_ns", "end_ns", maintain_order=True)
    label = pl.struct(*lane, *same)
    reach = pl.col("end_ns").cum_max().over(lane)
    gaps = ordered.with_columns(_reach=reach).with_columns(
        _gap=pl.when(label == label.shift(1)).then(pl.col("start_ns") - pl.col("_reach").shift(1))
    )
    inner = gaps["_gap"].drop_nulls().sort()
    keep = max(limit - gaps["_gap"].null_count(), 0)
    widest = max(int(inner[len(inner) - keep - 1]), 0) if len(inner) > keep else 0
    joined = (
        gaps.with_columns(_id=(pl.col("_gap").is_null() | (pl.col("_gap") > widest)).cum_sum())
        .group_by("_id", maintain_order=True)
        .agg(
            pl.exclude("_id", "_gap", "_reach", "start_ns", "end_ns").first(),
            pl.col("start_ns").min(),
            pl.col("end_ns").max(),
            pl.len().cast(pl.Int64).alias("count"),
        )
        .drop("_id")
    )
    return joined, widest


def thin_curve(frame: pl.DataFrame, value: str, limit: int = MAX_ROWS) -> pl.DataFrame:
    """A step curve (ts_ns ascending) with at most `limit` rows and the same extremes.

    Time is cut into equal buckets; of each the first, lowest, highest and last row stay, so peaks keep
    their exact time and value.
    """
    if frame.height <= limit:
        return frame
    first, last = frame["ts_ns"][0], frame["ts_ns"][-1]
    buckets = max(limit // 4, 1)
    bucket = (pl.col("ts_ns") - first) * buckets // (last - first + 1)
    index = pl.int_range(pl.len())
    kept = (
        frame.with_columns(_bucket=bucket, _index=index)
        .group_by("_bucket", maintain_order=True)
        .agg(
            pl.col("_index").first().alias("_first"),
            pl.col("_index").get(pl.col(value).arg_min()).alias("_low"),
            pl.col("_index").get(pl.col(value).arg_max()).alias("_high"),
            pl.col("_index").last().alias("_last"),
        )
    )
    rows = pl.concat([kept[name] for name in ("_first", "_low", "_high", "_last")]).unique().sort()
    return frame[rows]
