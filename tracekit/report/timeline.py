"""One step as lanes over time: the rows of the timeline chart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.export.slices import slices
from tracekit.layer_names import layer_label
from tracekit.report import style
from tracekit.report import thinning as drawing
from tracekit.report.chart_rows import Drawn
from tracekit.report.thinning import mib, ms

if TYPE_CHECKING:
    from tracekit.model.run import Run

MAX_RANKS = 4

# A phase's name is written on it where it takes this part of the step at least.
_ROOM_FOR_NAME = 0.05

_LANES = {
    "phase": "phase",
    "compute": style.COMPUTE,
    "communication": "communication",
    "exposed communication": "exposed",
    "copy": "copy",
}
_COLOUR_OF_LANE = {
    "compute": style.COMPUTE,
    "communication": style.COMM,
    "exposed communication": style.EXPOSED,
    "copy": style.COPYING,
}


def timeline_rows(run: Run) -> Drawn:
    """The lanes of one complete step, that of median length, on the first ranks."""
    step = median_step(run)
    every = slices(run).filter(pl.col("step").eq_missing(pl.lit(step, pl.Int64)), pl.col("track").is_in(list(_LANES)))
    ranks = every["rank"].unique().sort().to_list()
    every = every.filter(pl.col("rank").is_in(ranks[:MAX_RANKS]))
    lane = ["rank", "device", "track", "lane", "row"]
    joined, gap = _joined(every, lane)
    origin = joined["start_ns"].min()
    rows = _lane_rows(joined, origin if isinstance(origin, int) else 0)
    notes = [f"Step {step}" if step is not None else "The whole trace"]
    notes[0] += f", {'rank' if len(ranks) == 1 else 'ranks'} {_listed(ranks[:MAX_RANKS])}"
    notes[0] += f" of {len(ranks)}." if len(ranks) > MAX_RANKS else "."
    if joined.height < every.height:
        close = f"where the gap is at most {gap / 1000:,.1f} µs" if gap else "where they touch"
        notes.append(
            f"{every.height:,} pieces of work are drawn as {joined.height:,}: neighbours of one layer and phase are "
            f"joined {close}."
        )
    return Drawn(rows, " ".join(notes))


def median_step(run: Run) -> int | None:
    """Return the number of the complete step of median length on the first rank; null where there is none."""
    steps = run.steps.filter("complete", pl.col("step").is_not_null())
    if steps.is_empty():
        return run.steps["step"].drop_nulls().min() if run.steps.height else None  # pyright: ignore[reportReturnType]
    first = steps.filter(pl.col("rank") == pl.col("rank").min())
    ordered = first.sort(pl.col("end_ns") - pl.col("start_ns"))
    return int(ordered["step"][(ordered.height - 1) // 2])


def _joined(every: pl.DataFrame, lane: list[str]) -> tuple[pl.DataFrame, int]:
    """Compute joined by layer and phase, or by nothing if there is still too much; the rest as it is."""
    compute = pl.col("track") == "compute"
    rest = every.filter(~compute)
    limit = max(drawing.MAX_ROWS - rest.height, drawing.MAX_ROWS // 4)
    joined, gap = drawing.merge_slices(every.filter(compute), lane, ["layer", "phase"], limit)
    if joined.height > limit:
        joined, gap = drawing.merge_slices(every.filter(compute), lane, [], limit)
    if rest.height > drawing.MAX_ROWS - joined.height:
        rest, other = drawing.merge_slices(rest, lane, [], drawing.MAX_ROWS - joined.height)
        gap = max(gap, other)
    else:
        rest = rest.with_columns(count=pl.lit(1, pl.Int64))
    return pl.concat([joined.select(rest.columns), rest]), gap


def _lane_rows(joined: pl.DataFrame, origin: int) -> pl.DataFrame:
    lanes = list(_LANES)
    several = pl.col("device").n_unique().over("rank") > 1
    device = pl.when(several).then(pl.format(" {}", pl.col("device").fill_null(""))).otherwise(pl.lit(""))
    lane = pl.col("track").replace_strict(_LANES, return_dtype=pl.String)
    first = pl.col("track") == "phase"
    length = pl.col("end_ns") - pl.col("start_ns")
    long = length > (pl.col("end_ns").max() - origin) * _ROOM_FOR_NAME
    label = pl.when(first).then(pl.format("rank {} · phase", "rank")).otherwise(pl.format("{} {}", "rank", lane))
    what = pl.col("track").replace_strict(_COLOUR_OF_LANE, default=None, return_dtype=pl.String)
    name = pl.when(pl.col("count") > 1).then(pl.format("{} operators", "count")).otherwise("name")
    return joined.select(
        "rank",
        "phase",
        "count",
        row=label + device,
        order=pl.col("rank").cast(pl.Int64) * len(lanes)
        + drawing.place("track", {track: i for i, track in enumerate(lanes)}),
        layer=pl.when(first).then(pl.lit("")).otherwise(layer_label()),
        what=what.fill_null(pl.col("phase")),
        name=name,
        start_ms=ms("start_ns", origin),
        end_ms=ms("end_ns", origin),
        dur_ms=length / 1_000_000,
        payload_mib=mib("payload_bytes"),
        label=pl.when(first & long).then("phase").otherwise(pl.lit("")),
    ).sort("order", "start_ms")


def _listed(ranks: list[int]) -> str:
    return " and ".join(part for part in (", ".join(map(str, ranks[:-1])), str(ranks[-1])) if part) if ranks else "none"
