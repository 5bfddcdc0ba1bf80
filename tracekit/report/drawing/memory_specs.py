"""Vega-Lite specifications of the charts of memory."""

from __future__ import annotations

from typing import Any

import polars as pl

from tracekit.report.drawing import style
from tracekit.report.drawing import vega_lite as vl
from tracekit.report.drawing.vega_lite import Spec, nominal, quantitative


def memory(frame: pl.DataFrame, top: float | None = None, level_mib: float | None = None) -> Spec:
    """Allocated memory over time as steps, a line a rank, with the peaks marked, above the model states (`level_mib`).

    Columns: rank, series (its name), t_ms, mib.
    """
    names = frame["series"].unique(maintain_order=True).to_list()
    peaks = _peaks(frame)
    x = quantitative("t_ms", title="ms since the first step began")
    line = {
        "name": "curves",
        "data": vl.csv(frame),
        "mark": {"type": "line", "interpolate": "step-after", "strokeWidth": 1.6},
        "encoding": {
            "x": x,
            "y": quantitative("mib", title="allocated MiB", **vl.with_room(frame["mib"], top)),
            "color": vl.series(names, legend={"symbolType": "stroke"}),
            "opacity": vl.faint("rank"),
            "tooltip": [
                nominal("series", title="rank"),
                quantitative("t_ms", title="ms", format=",.3f"),
                quantitative("mib", title="MiB", format=",.2f"),
            ],
        },
    }
    dots = {
        "data": vl.rows(peaks),
        "mark": {"type": "point", "filled": True, "size": 70, "opacity": 1},
        "encoding": {"x": x, "y": quantitative("mib"), "color": vl.series(names), "opacity": vl.faint("rank")},
    }
    # The highest of the peaks is named; names of all of them would lie on one another.
    label = {
        "data": vl.rows(peaks.head(1)),
        "mark": {"type": "text", "align": "center", "dy": -12, "fontWeight": 600},
        "encoding": {"x": x, "y": quantitative("mib"), "text": nominal("label")},
    }
    layers = [line, dots, label, *_level(level_mib)]
    follows = [{**vl.follow(field), "views": ["curves"]} for field in ("rank", "layer")]
    return vl.sized({"layer": layers, "params": follows}, height=220)


def peak(frame: pl.DataFrame) -> Spec:
    """Memory at its peak, a bar a category and rank.

    Columns: category, order, rank, series, mib.
    """
    names = frame["series"].unique(maintain_order=True).to_list()
    encoding = {
        "y": vl.in_order("category"),
        "yOffset": nominal("series", sort=names),
        "x": quantitative("mib", title="MiB at the peak"),
        "color": vl.series(names, legend=None),
        "opacity": vl.faint("rank"),
        "tooltip": [
            nominal("series", title="rank"),
            nominal("category"),
            quantitative("mib", title="MiB", format=",.2f"),
        ],
    }
    spec = {
        "data": vl.rows(frame),
        "mark": {"type": "bar", "cursor": "pointer"},
        "encoding": encoding,
        "params": [vl.pick("rank"), vl.follow("layer")],
    }
    return vl.sized(spec, height=max(26, 12 * len(names)) * frame["category"].n_unique())


def by_category(
    frame: pl.DataFrame,
    phases: pl.DataFrame,
    lines: pl.DataFrame,
    peak: pl.DataFrame,
    top: float | None = None,
    level_mib: float | None = None,
) -> Spec:
    """Memory of one device as stacked areas, a strip of phases, the peak, and lines of what is reserved and of theory.

    Columns: category, order, t_ms, mib; of phases: phase, from_ms, to_ms; of lines: line, t_ms, mib; of the peak: t_ms,
    mib, label.
    """
    x = quantitative("t_ms", title="ms since the first step began", scale={"nice": False})
    strip = {
        "data": vl.rows(phases),
        "mark": {"type": "rect", "tooltip": True},
        "encoding": {
            "x": quantitative("from_ms", title=x["title"]),
            "x2": {"field": "to_ms"},
            "y": {"value": 0},
            "y2": {"value": 7},
            "color": vl.coloured("phase", style.PHASES, phases["phase"], legend={"title": None, "orient": "bottom"}),
            "tooltip": [nominal("phase")],
        },
    }
    area = {
        "data": vl.csv(frame),
        "mark": {"type": "area", "interpolate": "step-after", "line": False},
        "encoding": {
            "x": x,
            "y": quantitative("mib", title="allocated MiB", stack="zero", **_room(peak, lines, top)),
            "color": vl.coloured(
                "category",
                style.MEMORY,
                frame["category"],
                legend={"title": None, "columns": {"expr": "width < 420 ? 2 : 5"}},
            ),
            "order": quantitative("order"),
            "tooltip": [
                nominal("category"),
                quantitative("t_ms", title="ms", format=",.3f"),
                quantitative("mib", title="MiB", format=",.2f"),
            ],
        },
    }
    reserved = {
        "data": vl.csv(lines),
        "mark": {"type": "line", "interpolate": "step-after", "strokeDash": [4, 3], "color": style.QUIET},
        "encoding": {"x": x, "y": quantitative("mib"), "tooltip": [nominal("line"), quantitative("mib", title="MiB")]},
    }
    at = {"x": x, "y": quantitative("mib")}
    where = {**at, "text": nominal("label")}
    # Beside the point, on the side where there is more room.
    early = peak.is_empty() or bool((frame["t_ms"] > 2 * peak["t_ms"][0]).any())
    text: Any = {"type": "text", "align": "left" if early else "right", "dx": 8 if early else -8, "fontWeight": 600}
    text["limit"] = {"expr": "0.9 * width"}
    marks = [
        {"data": vl.rows(peak), "mark": {"type": "point", "filled": True, "size": 70, "opacity": 1}, "encoding": at},
        {"data": vl.rows(peak), "mark": {**text, "stroke": "white", "strokeWidth": 4}, "encoding": where},
        {"data": vl.rows(peak), "mark": text, "encoding": where},
    ]
    layers = [area, strip, *([reserved] if lines.height else []), *_level(level_mib), *marks]
    return vl.sized({"layer": layers, "resolve": {"scale": {"color": "independent"}}}, height=260)


def _room(peak: pl.DataFrame, lines: pl.DataFrame, top: float | None) -> Spec:
    """The scale with room for the peak's label, and for the reserved line where there is one."""
    return vl.with_room(pl.concat([peak["mib"], lines["mib"]]), top)


def _peaks(frame: pl.DataFrame) -> pl.DataFrame:
    """The first highest point of each curve, the highest curve first, with a label."""
    return (
        frame.filter(pl.col("mib") == pl.col("mib").max().over("series"))
        .unique("series", keep="first", maintain_order=True)
        .sort("mib", descending=True, maintain_order=True)
        .with_columns(label=pl.col("mib").map_elements("peak {:,.4g} MiB".format, pl.String))
    )


def _level(mib: float | None) -> list[Spec]:
    """The dashed line of the model states, the least that must be held, with its name; nothing for unknown."""
    if mib is None:
        return []
    data = {"values": [{"mib": mib, "label": f"model states {mib:,.1f} MiB"}]}
    where = {"x": {"value": "width"}, "y": quantitative("mib"), "text": nominal("label")}
    below: Any = {"type": "text", "align": "right", "dy": 12}
    return [
        {
            "data": data,
            "mark": {"type": "rule", "strokeDash": [6, 4], "color": style.QUIET},
            "encoding": {"y": quantitative("mib")},
        },
        # The same words in white and wider beneath, so that they can be read over the curve.
        {"data": data, "mark": {**below, "stroke": "white", "strokeWidth": 4}, "encoding": where},
        {"data": data, "mark": {**below, "color": style.QUIET}, "encoding": where},
    ]
