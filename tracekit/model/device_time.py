"""Arithmetic of busy time per device: unions, the compute that can hide communication, and what it covers.

Time is only ever compared within one device of one rank (`DEVICE_KEY`). All compute of a device can hide
communication, but for what shares its lane with communication: work on one lane is serial, and where two pieces of one
lane cross all the same (a rounded clock, a kernel that starts while the one before it drains), the crossing hides
nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from tracekit import intervals
from tracekit.intervals import Intervals

DEVICE_KEY = ["rank", "device"]
Key = tuple[object, ...]


def compute_cover(work: pl.DataFrame) -> dict[Key, Intervals]:
    """Return, for each (rank, device), when compute runs that communication can hide under."""
    compute = _union_per_lane(work.filter(pl.col("class") == "compute"))
    comm = _union_per_lane(work.filter(pl.col("class") == "comm"))
    parts: dict[Key, list[Intervals]] = {}
    for lane, busy in compute.items():
        free = intervals.subtract(busy, comm[lane]) if lane in comm else busy
        parts.setdefault(lane[:-1], []).append(free)
    return {device: _joined(lanes) for device, lanes in parts.items()}


def union_per_device(work: pl.DataFrame) -> dict[Key, Intervals]:
    """Return the union of the given work for each (rank, device)."""
    return _unions(work, DEVICE_KEY)


def islands(spans: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """Return the union of the spans within each group: `by` columns, start_ns, end_ns; sorted within a group."""
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


def covered_ns(spans: pl.DataFrame, cover: Mapping[Key, Intervals]) -> pl.Series:
    """Return how many ns of each span (rank, device, start_ns, end_ns) lie under the cover of its device."""
    result = pl.Series("covered_ns", [0], dtype=pl.Int64).new_from_index(0, spans.height)
    for device, rows in spans.with_row_index("row").group_by(DEVICE_KEY):
        if device in cover:
            inside = intervals.covered(rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy(), cover[device])
            result = result.scatter(rows["row"], inside)
    return result


def _union_per_lane(work: pl.DataFrame) -> dict[Key, Intervals]:
    return _unions(work, [*DEVICE_KEY, "lane"])


def _unions(work: pl.DataFrame, key: list[str]) -> dict[Key, Intervals]:
    groups = work.filter(pl.col("dur_ns") >= 0).partition_by(key, as_dict=True)
    return {name: intervals.union(rows["start_ns"], rows["start_ns"] + rows["dur_ns"]) for name, rows in groups.items()}


def _joined(parts: list[Intervals]) -> Intervals:
    if len(parts) == 1:
        return parts[0]
    return intervals.union(np.concatenate([p.starts for p in parts]), np.concatenate([p.ends for p in parts]))
