"""Slices of a timeline: one frame for the Perfetto file and for the dashboard's timeline.

A slice is a half-open interval ``[start_ns, end_ns)`` on a track of one rank. Slices of one (track, device,
lane, row) never cross and never nest, so that every viewer keeps all of them.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from tracekit import intervals
from tracekit.layer_names import ROOT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracekit.model.device_time import Key
    from tracekit.model.run import Run

    Cover = Mapping[Key, intervals.Intervals]

IntArray = intervals.IntArray

#: The tracks of a rank, in drawing order.
TRACKS = (
    "step",
    "phase",
    "layer",
    "compute",
    "communication",
    "exposed communication",
    "copy",
    "other",
)
_TRACK_OF_CLASS = {"compute": "compute", "comm": "communication", "copy": "copy", "other": "other"}

SCHEMA: dict[str, pl.DataType] = {
    "rank": pl.Int32(),
    "cycle": pl.Int32(),
    "step": pl.Int64(),
    "track": pl.String(),
    "device": pl.String(),
    "lane": pl.String(),
    "row": pl.Int32(),
    "name": pl.String(),
    "event": pl.String(),
    "layer": pl.String(),
    "phase": pl.String(),
    "kind": pl.String(),
    "group": pl.String(),
    "payload_bytes": pl.Int64(),
    "start_ns": pl.Int64(),
    "end_ns": pl.Int64(),
}


def slices(run: Run) -> pl.DataFrame:
    """Every slice of a run: columns of `SCHEMA`, sorted by rank, track, lane and start."""
    return slices_of(run.steps, run.work, run.collectives, run.compute_cover)


def slices_of(steps: pl.DataFrame, work: pl.DataFrame, collectives: pl.DataFrame, cover: Cover) -> pl.DataFrame:
    """The slices of these tables of a run, as `slices` does; `cover` is its compute cover."""
    ran = _with_ends(work)
    named = _named(ran.join(_what_it_carries(collectives), on=["rank", "cycle", "index"], how="left"))
    parts = [
        _step_slices(steps),
        label_runs(ran, "phase"),
        label_runs(ran, "layer"),
        _work_slices(named),
        exposed_slices(named, cover),
    ]
    order = {track: i for i, track in enumerate(TRACKS)}
    every = pl.concat([_conform(part) for part in parts])
    keys = ["rank", "_order", "device", "lane", "row", "start_ns", "end_ns"]
    ranked = every.with_columns(_order=pl.col("track").replace_strict(order, return_dtype=pl.Int32))
    return split_rows(ranked.sort(keys)).sort(keys, maintain_order=True).drop("_order")


def exposed_slices(work: pl.DataFrame, cover: Cover) -> pl.DataFrame:
    """The parts of the communication during which no compute runs on the same device.

    Their total is the exposed time: where collectives run at once, the time is drawn once, under the one that
    began first.
    """
    found: list[pl.DataFrame] = []
    for (rank, _, device), group in work.group_by("rank", "cycle", "device", maintain_order=True):
        comm = group.filter(pl.col("class") == "comm").sort("start_ns", "end_ns")
        if comm.is_empty():
            continue
        hidden = cover.get((rank, device), intervals.EMPTY)
        owner, starts, ends = _uncovered(comm["start_ns"].to_numpy(), comm["end_ns"].to_numpy(), hidden)
        bounds = {"start_ns": pl.Series(starts, dtype=pl.Int64), "end_ns": pl.Series(ends, dtype=pl.Int64)}
        found.append(
            comm[owner].with_columns(**bounds, track=pl.lit("exposed communication"), lane=pl.lit(None, pl.String))
        )
    return pl.concat(found) if found else pl.DataFrame(schema=SCHEMA)


def label_runs(work: pl.DataFrame, column: str) -> pl.DataFrame:
    """The stretches during which a rank computes in one phase or layer (`column`), a slice each.

    A stretch ends with its last work, or where the next stretch begins. Work without a label ends a stretch.
    """
    if work.is_empty():
        return pl.DataFrame(schema=SCHEMA)
    place = ["rank", "cycle", "device"]
    keys = [*place, "step", *dict.fromkeys((column, "phase"))]
    label = pl.when(pl.col(column) == "").then(pl.lit(ROOT)).otherwise(column)
    runs = (
        work.filter(pl.col("class") == "compute")
        .sort(*place, "start_ns", "end_ns")
        .with_columns(_run=pl.struct(keys).rle_id())
        .group_by("_run", maintain_order=True)
        .agg(*(pl.col(key).first() for key in keys), pl.col("start_ns").first(), pl.col("end_ns").max())
        .with_columns(_next=pl.col("start_ns").shift(-1).over(place))
        .with_columns(pl.min_horizontal("end_ns", "_next"))
        .filter(pl.col(column).is_not_null())
    )
    return runs.with_columns(track=pl.lit(column), name=label)


def split_rows(frame: pl.DataFrame) -> pl.DataFrame:
    """The frame with `row` set so that slices of one lane and row never overlap."""
    if frame.is_empty():
        return frame
    key = pl.struct("rank", "track", "device", "lane").rank("dense").alias("_key")
    ordered = frame.with_columns(key).sort("_key", "start_ns", "end_ns", maintain_order=True)
    rows = first_free_row(ordered["_key"].to_numpy(), ordered["start_ns"].to_numpy(), ordered["end_ns"].to_numpy())
    return ordered.with_columns(row=pl.Series(rows, dtype=pl.Int32)).drop("_key")


def first_free_row(keys: IntArray, starts: IntArray, ends: IntArray) -> list[int]:
    """The lowest free row of each slice; input is sorted by key, then start."""
    previous_end = np.concatenate(([0], ends[:-1]))
    fits = (starts >= previous_end) | np.concatenate(([True], keys[1:] != keys[:-1]))
    if fits.all():  # the usual case: work on a lane is serial
        return [0] * len(starts)
    rows: list[int] = []
    busy: list[tuple[int, int]] = []
    free: list[int] = []
    key, used = None, 0
    for this, start, end in zip(keys.tolist(), starts.tolist(), ends.tolist(), strict=True):
        if this != key:
            key, used, busy, free = this, 0, [], []
        while busy and busy[0][0] <= start:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if free:
            row = heapq.heappop(free)
        else:
            row, used = used, used + 1
        heapq.heappush(busy, (end, row))
        rows.append(row)
    return rows


def _uncovered(starts: IntArray, ends: IntArray, hidden: intervals.Intervals) -> tuple[IntArray, IntArray, IntArray]:
    """Parts of sorted intervals outside `hidden`, each instant once: (index, starts, ends)."""
    reach = np.concatenate((starts[:1], np.maximum.accumulate(ends)[:-1]))
    begin, end = np.maximum(starts, reach), ends
    real = np.flatnonzero(end > begin)
    points = np.unique(np.concatenate((begin[real], end[real], hidden.starts, hidden.ends)))
    if not real.size:
        return real, points[:0], points[:0]
    left, right = points[:-1], points[1:]
    nth = np.searchsorted(begin[real], left, side="right") - 1
    owner = real[np.maximum(nth, 0)]
    keep = (nth >= 0) & (left < end[owner]) & (intervals.covered(left, right, hidden) == 0)
    return owner[keep], left[keep], right[keep]


def _with_ends(work: pl.DataFrame) -> pl.DataFrame:
    """Work that ran, with its end."""
    return work.filter(pl.col("dur_ns").is_not_null() & pl.col("start_ns").is_not_null()).with_columns(
        end_ns=pl.col("start_ns") + pl.col("dur_ns")
    )


def _what_it_carries(collectives: pl.DataFrame) -> pl.DataFrame:
    columns = ["rank", "cycle", "index", "kind", "group", "payload_bytes"]
    return collectives.select(columns).unique(["rank", "cycle", "index"], keep="first", maintain_order=True)


def _named(work: pl.DataFrame) -> pl.DataFrame:
    """Work under a telling name, a collective's kind and layer; `event` keeps the recorded one."""
    layer = pl.when(pl.col("layer") == "").then(pl.lit(f" {ROOT}")).otherwise(" " + pl.col("layer"))
    return work.with_columns(
        name=pl.when(pl.col("kind").is_null()).then("name").otherwise(pl.col("kind") + layer.fill_null("")),
        event=pl.when(pl.col("kind").is_not_null()).then("name"),
    )


def _work_slices(work: pl.DataFrame) -> pl.DataFrame:
    track = pl.col("class").replace_strict(_TRACK_OF_CLASS, default="other", return_dtype=pl.String)
    return work.with_columns(track=track)


def _step_slices(steps: pl.DataFrame) -> pl.DataFrame:
    label = (
        pl.when(pl.col("step").is_null()).then(pl.lit("whole trace")).otherwise(pl.format("step {}", pl.col("step")))
    )
    cut = pl.when("complete").then(pl.lit("")).otherwise(pl.lit(" (cut)"))
    return steps.filter(pl.col("start_ns").is_not_null() & pl.col("end_ns").is_not_null()).with_columns(
        track=pl.lit("step"), name=label + cut
    )


def _conform(frame: pl.DataFrame) -> pl.DataFrame:
    """The frame with exactly the columns of `SCHEMA`, null where it has none."""
    return frame.select(
        (pl.col(name) if name in frame.columns else pl.lit(None)).cast(dtype).alias(name)
        for name, dtype in SCHEMA.items()
    )
