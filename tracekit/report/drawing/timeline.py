"""One step as lanes over time: the rows of the timeline, and the chart that draws them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit import units
from tracekit.export.slices import slices
from tracekit.layer_names import layer_label
from tracekit.report.drawing import style, thinning
from tracekit.report.drawing import vega_lite as vl
from tracekit.report.drawing.chart_rows import Drawn
from tracekit.report.drawing.thinning import mib, ms
from tracekit.report.drawing.vega_lite import Spec, nominal, quantitative

if TYPE_CHECKING:
    from tracekit.model.run import Run

MAX_RANKS = 4

LANE_HEIGHT = 22
#: Left of the plot, where its two parts must line up.
LANE_LABELS = 132

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


def rows(run: Run) -> Drawn:
    """The lanes of one complete step, that of median length, on the first ranks."""
    step = median_step(run)
    every = slices(run).filter(pl.col("step").eq_missing(pl.lit(step, pl.Int64)), pl.col("track").is_in(list(_LANES)))
    ranks = every["rank"].unique().sort().to_list()
    every = every.filter(pl.col("rank").is_in(ranks[:MAX_RANKS]))
    lane = ["rank", "device", "track", "lane", "row"]
    joined, gap = _joined(every, lane)
    origin = joined["start_ns"].min()
    lanes = _lane_rows(joined, origin if isinstance(origin, int) else 0)
    notes = [f"Step {step}" if step is not None else "The whole trace"]
    notes[0] += f", {'rank' if len(ranks) == 1 else 'ranks'} {_listed(ranks[:MAX_RANKS])}"
    notes[0] += f" of {len(ranks)}." if len(ranks) > MAX_RANKS else "."
    if joined.height < every.height:
        close = f"where the gap is at most {units.duration(gap)}" if gap else "where they touch"
        notes.append(
            f"{every.height:,} pieces of work are drawn as {joined.height:,}: neighbours of one layer and phase are "
            f"joined {close}."
        )
    return Drawn(lanes, " ".join(notes))


def chart(frame: pl.DataFrame) -> Spec:
    """One step as lanes over time; dragging over the upper strip zooms the lanes below it.

    Columns: row, order, rank, layer, phase, what (an activity or a phase: its colour), name, start_ms,
    end_ms, dur_ms, count, payload_mib, label (what is written on the slice, or "").
    """
    # The phases are named where they are drawn; the legend is for what a device does.
    shown = set(frame["what"])
    legend = {"values": [name for name in style.ACTIVITY if name in shown]}
    colour = vl.coloured("what", style.ACTIVITY | style.PHASES, frame["what"], legend=legend)
    rows = frame["row"].n_unique()
    strip = {
        "name": "strip",
        "height": max(36, 5 * rows),
        "mark": vl.bar(0.84, cursor="pointer"),
        "encoding": {
            "x": quantitative("start_ms", title=None, axis={"labels": False, "ticks": False, "grid": False}),
            "x2": {"field": "end_ms"},
            "y": vl.in_order("row", axis={"labels": False, "minExtent": LANE_LABELS}),
            "color": colour,
        },
    }
    picks = [{**vl.pick("layer"), "views": ["lanes"]}, {**vl.follow("rank"), "views": ["lanes"]}]
    zoom = {"name": "zoom", "select": {"type": "interval", "encodings": ["x"]}, "views": ["strip"]}
    return vl.whole(
        {
            "data": vl.csv(frame),
            "vconcat": [strip, {"height": LANE_HEIGHT * rows, "layer": _lanes(frame, colour)}],
            "params": [zoom, *picks],
            "spacing": 10,
            "usermeta": {"labels": LANE_LABELS},
        }
    )


def _lanes(frame: pl.DataFrame, colour: Spec) -> list[Spec]:
    """The lanes below the strip, and the names of the phases written on them."""
    zoomed = {"domain": {"param": "zoom"}}
    axis = {"minExtent": LANE_LABELS, "maxExtent": LANE_LABELS, "labelLimit": LANE_LABELS - 8}
    y = vl.in_order("row", axis=axis)
    slices = {
        "name": "lanes",
        "mark": vl.bar(0.84, cursor="pointer", clip=True),
        "encoding": {
            "x": quantitative("start_ms", title="ms since the step began", scale=zoomed),
            "x2": {"field": "end_ms"},
            "y": y,
            "color": colour,
            "opacity": vl.faint("layer", "rank"),
            "tooltip": [
                nominal("name", title="what"),
                nominal("layer"),
                nominal("phase"),
                quantitative("start_ms", title="begins at ms", format=",.3f"),
                quantitative("dur_ms", title="ms", format=",.3f"),
                quantitative("payload_mib", title="payload MiB", format=",.2f"),
                quantitative("count", title="pieces drawn as one"),
            ],
        },
    }
    # As long as the slice that it is written on, at every zoom.
    across = "scale('concat_1_x', datum.end_ms) - scale('concat_1_x', datum.start_ms) - 6"
    clipped = {"clip": True, "limit": {"expr": f"max({across}, 1)"}}
    phases = {
        "data": vl.csv(frame.filter(pl.col("label") != "")),
        "mark": {"type": "text", "align": "left", "dx": 4, "fontSize": 11, **clipped},
        "encoding": {"x": quantitative("start_ms", scale=zoomed), "y": y, "text": nominal("label")},
    }
    return [slices, phases]


def median_step(run: Run) -> int | None:
    """The number of the complete step of median length on the first rank; `None` where there is none."""
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
    limit = max(thinning.MAX_ROWS - rest.height, thinning.MAX_ROWS // 4)
    joined, gap = thinning.merge_slices(every.filter(compute), lane, ["layer", "phase"], limit)
    if joined.height > limit:
        joined, gap = thinning.merge_slices(every.filter(compute), lane, [], limit)
    if rest.height > thinning.MAX_ROWS - joined.height:
        rest, other = thinning.merge_slices(rest, lane, [], thinning.MAX_ROWS - joined.height)
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
        + thinning.place("track", {track: i for i, track in enumerate(lanes)}),
        layer=pl.when(first).then(pl.lit("")).otherwise(layer_label()),
        what=what.fill_null(pl.col("phase")),
        name=name,
        start_ms=ms("start_ns", origin),
        end_ms=ms("end_ns", origin),
        dur_ms=length / units.NS_PER_MS,
        payload_mib=mib("payload_bytes"),
        label=pl.when(first & long).then("phase").otherwise(pl.lit("")),
    ).sort("order", "start_ms")


def _listed(ranks: list[int]) -> str:
    return " and ".join(part for part in (", ".join(map(str, ranks[:-1])), str(ranks[-1])) if part) if ranks else "none"
