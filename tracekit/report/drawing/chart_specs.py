"""Frames in, Vega-Lite specifications out: one function a question. Nothing here computes a result, reads or writes.

Charts of several runs may be drawn to one scale: `top` is the largest value it should hold.

Every chart carries two selections that a page may share among charts: `pick_layer` and `pick_rank`. A click
on a mark that belongs to a layer or a rank picks it; what belongs to another is drawn faintly. Frames hold
few rows of plain numbers (`tracekit.report.drawing.chart_rows` makes them); names in them are data to the chart,
never part of an expression.
"""

from __future__ import annotations

import polars as pl

from tracekit.report.drawing import style
from tracekit.report.drawing import vega_lite as vl
from tracekit.report.drawing.vega_lite import Spec, nominal, quantitative

BAR_STEP = 24


def volume(frame: pl.DataFrame, top: float | None = None) -> Spec:
    """Volume of a step by source (theory, plan, measured, …), stacked by kind in multiples of Ψ.

    Columns: source, order (of the sources), kind, place (of the kind), psi, total_psi (of the source) and its
    label, numel, num_collectives.
    """
    y = vl.in_order("source")
    bars = {
        "mark": vl.bar(0.72),
        "encoding": {
            "y": y,
            "x": quantitative(
                "psi", title="elements × passes, in multiples of Ψ", **vl.with_room(frame["total_psi"], top)
            ),
            "color": vl.coloured("kind", style.KINDS, frame["kind"]),
            "order": quantitative("place"),
            "tooltip": [
                nominal("source"),
                nominal("kind"),
                quantitative("psi", title="Ψ", format=".4f"),
                quantitative("numel", title="elements × passes", format=",.0f"),
                quantitative("num_collectives", title="collectives a step", format=",.6~g"),
            ],
        },
    }
    totals = {
        "mark": {"type": "text", "align": "left", "dx": 6, "fontWeight": 600},
        "encoding": {"y": y, "x": quantitative("total_psi", aggregate="max"), "text": nominal("label")},
    }
    return vl.sized({"data": vl.rows(frame), "layer": [bars, totals]}, height=34 * frame["source"].n_unique())


def overlap(frame: pl.DataFrame, top: float | None = None) -> Spec:
    """Hidden and exposed communication of each layer and phase, as stacked bars, a mean over steps and ranks.

    Columns: row (what a bar is called), order, layer, phase, rank, activity, ms, share (hidden, 0 to 1).
    """
    means = [{"op": "mean", "field": field, "as": field} for field in ("ms", "share")]
    spec = _stacked(
        frame,
        "row",
        vl.coloured("activity", style.ACTIVITY, frame["activity"]),
        "ms a step",
        [
            nominal("layer"),
            nominal("phase"),
            nominal("activity", title="part"),
            quantitative("ms", title="ms a step", format=",.3f"),
            quantitative("share", title="hidden", format=".0%"),
        ],
        top=top,
        picks="layer",
    )
    spec["transform"] = [
        {"filter": {"param": "pick_rank"}},
        {"aggregate": means, "groupby": ["row", "order", "layer", "phase", "activity"]},
    ]
    spec["encoding"] |= {"order": nominal("activity", sort="descending"), "detail": nominal("layer")}
    return spec


def breakdown(frame: pl.DataFrame, top: float | None = None) -> Spec:
    """Parts of each step's time, a stacked bar a rank and step whose parts add up to the step.

    Columns: row, order, rank, activity, place (of the activity in the stack), ms, share (of the step, 0 to
    1).
    """
    tooltip = [
        nominal("row", title="step"),
        nominal("activity", title="part"),
        quantitative("ms", title="ms", format=",.3f"),
        quantitative("share", title="of the step", format=".1%"),
    ]
    colour = vl.coloured("activity", style.ACTIVITY, frame["activity"])
    return _stacked(frame, "row", colour, "ms", tooltip, top=top, picks="rank")


def exposure(frame: pl.DataFrame, top: float | None = None) -> Spec:
    """Exposed communication by its cause, stacked by kind of collective, a mean over steps and ranks.

    Columns: cause, order, kind, place (of the kind), ms, advice.
    """
    tooltip = [
        nominal("cause"),
        nominal("kind"),
        quantitative("ms", title="exposed ms a step", format=",.3f"),
        nominal("advice", title="what would help"),
    ]
    colour = vl.coloured("kind", style.KINDS, frame["kind"])
    return _stacked(frame, "cause", colour, "exposed ms a step", tooltip, top=top)


def idle(frame: pl.DataFrame, top: float | None = None) -> Spec:
    """Idle time by what the device waited for, a bar a cause, a mean over steps.

    Columns: cause, order, place, ms, told (what the cause means).
    """
    tooltip = [
        nominal("cause"),
        quantitative("ms", title="idle ms a step", format=",.3f"),
        nominal("told", title="which is"),
    ]
    return _stacked(frame, "cause", {"value": style.ACTIVITY[style.IDLE]}, "idle ms a step", tooltip, top=top)


def pipeline(frame: pl.DataFrame, top: float | None = None) -> Spec:
    """Parts of the mean step of each stage, a stacked bar a stage. Columns: row, order, rank, part, place, ms."""
    tooltip = [nominal("row", title="stage"), nominal("part"), quantitative("ms", title="ms a step", format=",.3f")]
    colour = vl.coloured("part", style.PIPELINE, frame["part"])
    return _stacked(frame, "row", colour, "ms a step", tooltip, top=top, picks="rank")


def kernels(frame: pl.DataFrame, top: float | None = None) -> Spec:
    """Work of each name, a bar a name, coloured by its class.

    Columns: name, order, place, activity, ms, num, share.
    """
    tooltip = [
        nominal("name"),
        quantitative("ms", title="ms, summed", format=",.3f"),
        quantitative("num", title="times", format=",.0f"),
        quantitative("share", title="of all work", format=".1%"),
    ]
    colour = vl.coloured("activity", style.ACTIVITY, frame["activity"])
    return _stacked(frame, "name", colour, "ms, summed over ranks and steps", tooltip, top=top)


def waiting(frame: pl.DataFrame, top: float | None = None) -> Spec:
    """Time of each rank's matched collectives: transfer, or waiting for a later rank; a mean over steps.

    Columns: row, order, rank, part ("transfer" or "waiting"), place (of the part), ms.
    """
    tooltip = [nominal("row"), nominal("part"), quantitative("ms", title="ms a step", format=",.3f")]
    colour = vl.coloured("part", style.WAITING, frame["part"])
    title = "ms a step, summed over collectives"
    return _stacked(frame, "row", colour, title, tooltip, top=top, picks="rank")


def comparison(frame: pl.DataFrame) -> Spec:
    """The mean step of each run, as a stacked bar a run. Columns: run, order, activity, place, ms, share."""
    tooltip = [
        nominal("run"),
        nominal("activity", title="part"),
        quantitative("ms", title="ms a step", format=",.3f"),
        quantitative("share", title="of the step", format=".1%"),
    ]
    colour = vl.coloured("activity", style.ACTIVITY, frame["activity"])
    spec = _stacked(frame, "run", colour, "ms a step", tooltip)
    return spec | {"mark": vl.bar(0.72), "height": 40 * max(frame["run"].n_unique(), 1)}


def _stacked(
    frame: pl.DataFrame,
    row: str,
    colour: Spec,
    title: str,
    tooltip: list[Spec],
    *,
    top: float | None = None,
    picks: str | None = None,
) -> Spec:
    """A bar of ms a `row`, stacked by colour in the order of `place`; a click picks its layer or rank (`picks`)."""
    encoding: Spec = {
        "y": vl.in_order(row),
        "x": quantitative("ms", title=title, stack="zero", **vl.up_to(top)),
        "color": colour,
        "order": quantitative("place"),
        "tooltip": tooltip,
    }
    spec: Spec = {"data": vl.rows(frame), "mark": vl.bar(0.76), "encoding": encoding}
    if picks:
        encoding["opacity"] = vl.faint(picks)
        spec["mark"]["cursor"] = "pointer"
        spec["params"] = [vl.pick(picks), vl.follow("layer" if picks == "rank" else "rank")]
    return vl.sized(spec, height=BAR_STEP * frame[row].n_unique())
