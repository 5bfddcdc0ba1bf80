"""Frames in, altair charts out: one function a question. Nothing here computes a result, reads or writes.

Charts of several runs may be drawn to one scale: `top` is the largest value it should hold.

Every chart carries two selections that a page may share among charts: `pick_layer` and `pick_rank`. A click
on a mark that belongs to a layer or a rank picks it; what belongs to another is drawn faintly. Frames hold
few rows of plain numbers (`tracekit.report.chart_rows` makes them); names in them are data to the chart, never part of
an expression.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracekit.report import chart_parts as parts
from tracekit.report import style

if TYPE_CHECKING:
    import altair as alt
    import polars as pl

LANE_HEIGHT = 22
BAR_STEP = 24
#: Left of the plot in a timeline, where its two parts must line up.
LANE_LABELS = 132


def volume(frame: pl.DataFrame, top: float | None = None) -> alt.LayerChart:
    """Volume of a step by source (theory, plan, measured, …), stacked by kind in multiples of Ψ.

    Columns: source, order (of the sources), kind, place (of the kind), psi, total_psi (of the source) and its
    label, numel, num_collectives.
    """
    import altair as alt

    y = alt.Y("source:N", title=None, sort=alt.EncodingSortField("order", op="min"))
    colours = parts.colours(style.KINDS, frame["kind"])
    bars = (
        alt.Chart(frame)
        .mark_bar(height={"band": 0.72})
        .encode(
            y=y,
            x=alt.X("psi:Q", title="elements × passes, in multiples of Ψ", scale=parts.room(frame["total_psi"], top)),
            color=alt.Color("kind:N", scale=colours),
            order=alt.Order("place:Q"),
            tooltip=[
                alt.Tooltip("source:N"),
                alt.Tooltip("kind:N"),
                alt.Tooltip("psi:Q", title="Ψ", format=".4f"),
                alt.Tooltip("numel:Q", title="elements × passes", format=",.0f"),
                alt.Tooltip("num_collectives:Q", title="collectives a step", format=",.6~g"),
            ],
        )
    )
    totals = (
        alt.Chart(frame).mark_text(align="left", dx=6, fontWeight=600).encode(y=y, x="max(total_psi):Q", text="label:N")
    )
    return parts.sized(alt.layer(bars, totals), height=34 * frame["source"].n_unique())


def overlap(frame: pl.DataFrame, top: float | None = None) -> alt.Chart:
    """Hidden and exposed communication of each layer and phase, as stacked bars, a mean over steps and ranks.

    Columns: row (what a bar is called), order, layer, phase, rank, activity, ms, share (hidden, 0 to 1).
    """
    import altair as alt

    colours = parts.colours(style.ACTIVITY, frame["activity"])
    chart = (
        alt.Chart(frame)
        .mark_bar(height={"band": 0.76}, cursor="pointer")
        .transform_filter({"param": "pick_rank"})
        .transform_aggregate(ms="mean(ms)", share="mean(share)", groupby=["row", "order", "layer", "phase", "activity"])
        .encode(
            y=alt.Y("row:N", title=None, sort=alt.EncodingSortField("order", op="min")),
            x=alt.X("ms:Q", title="ms a step", stack="zero", scale=parts.domain(top)),
            color=alt.Color("activity:N", scale=colours),
            order=alt.Order("activity:N", sort="descending"),
            opacity=parts.faint("layer"),
            detail="layer:N",
            tooltip=[
                alt.Tooltip("layer:N"),
                alt.Tooltip("phase:N"),
                alt.Tooltip("activity:N", title="part"),
                alt.Tooltip("ms:Q", title="ms a step", format=",.3f"),
                alt.Tooltip("share:Q", title="hidden", format=".0%"),
            ],
        )
    )
    return parts.sized(
        chart.add_params(parts.pick("layer"), parts.follow("rank")), height=BAR_STEP * frame["row"].n_unique()
    )


def timeline(frame: pl.DataFrame) -> alt.VConcatChart:
    """One step as lanes over time; dragging over the upper strip zooms the lanes below it.

    Columns: row, order, rank, layer, phase, what (an activity or a phase: its colour), name, start_ms,
    end_ms, dur_ms, count, payload_mib, label (what is written on the slice, or "").
    """
    import altair as alt
    import polars as pl

    colours = parts.colours(style.ACTIVITY | style.PHASES, frame["what"])
    # The phases are named where they are drawn; the legend is for what a device does.
    legend = alt.Legend(values=[name for name in style.ACTIVITY if name in set(frame["what"])])
    brush = alt.selection_interval(name="zoom", encodings=["x"])
    order = alt.EncodingSortField("order", op="min")
    rows = frame["row"].n_unique()
    base = (
        alt.Chart(parts.as_csv(frame))
        .mark_bar(height={"band": 0.84}, cursor="pointer")
        .encode(
            x2="end_ms:Q",
            color=alt.Color("what:N", scale=colours, legend=legend),
        )
    )
    lanes = alt.Axis(minExtent=LANE_LABELS, maxExtent=LANE_LABELS, labelLimit=LANE_LABELS - 8)
    strip = base.encode(
        x=alt.X("start_ms:Q", title=None, axis=alt.Axis(labels=False, ticks=False, grid=False)),
        y=alt.Y("row:N", title=None, sort=order, axis=alt.Axis(labels=False, minExtent=LANE_LABELS)),
    ).properties(height=max(36, 5 * rows))
    zoomed = alt.Scale(domain={"param": "zoom"})
    y = alt.Y("row:N", title=None, sort=order, axis=lanes)
    detail = base.mark_bar(height={"band": 0.84}, cursor="pointer", clip=True).encode(
        x=alt.X("start_ms:Q", title="ms since the step began", scale=zoomed),
        y=y,
        opacity=parts.faint("layer", "rank"),
        tooltip=[
            alt.Tooltip("name:N", title="what"),
            alt.Tooltip("layer:N"),
            alt.Tooltip("phase:N"),
            alt.Tooltip("start_ms:Q", title="begins at ms", format=",.3f"),
            alt.Tooltip("dur_ms:Q", title="ms", format=",.3f"),
            alt.Tooltip("payload_mib:Q", title="payload MiB", format=",.2f"),
            alt.Tooltip("count:Q", title="pieces drawn as one"),
        ],
    )
    # As long as the slice that it is written on, at every zoom.
    across = "scale('concat_1_x', datum.end_ms) - scale('concat_1_x', datum.start_ms) - 6"
    phases = (
        alt.Chart(parts.as_csv(frame.filter(pl.col("label") != "")))
        .mark_text(align="left", dx=4, fontSize=11, clip=True, limit=alt.expr(f"max({across}, 1)"))
        .encode(x=alt.X("start_ms:Q", scale=zoomed), y=y, text="label:N")
    )
    lower = alt.layer(detail.add_params(parts.pick("layer"), parts.follow("rank")), phases)
    both = alt.vconcat(strip.add_params(brush), lower.properties(height=LANE_HEIGHT * rows), spacing=10)
    return both.properties(usermeta={"labels": LANE_LABELS}).configure(**style.config())


def memory(
    frame: pl.DataFrame, floor_mib: float | None, peaks: pl.DataFrame, top: float | None = None
) -> alt.LayerChart:
    """Allocated memory over time as steps, a line a rank, above the floor of the formula, with the peaks marked.

    Columns: rank, series (its name), t_ms, mib; `peaks` the same, a row a series from the highest down, with
    `label`.
    """
    import altair as alt

    names = frame["series"].unique(maintain_order=True).to_list()
    colours = parts.series(names)
    x = alt.X("t_ms:Q", title="ms since the first step began")
    line = (
        alt.Chart(parts.as_csv(frame))
        .mark_line(interpolate="step-after", strokeWidth=1.6)
        .encode(
            x=x,
            y=alt.Y("mib:Q", title="allocated MiB", scale=parts.room(peaks["mib"], top)),
            color=alt.Color("series:N", scale=colours, legend=alt.Legend(symbolType="stroke")),
            opacity=parts.faint("rank"),
            tooltip=[
                alt.Tooltip("series:N", title="rank"),
                alt.Tooltip("t_ms:Q", title="ms", format=",.3f"),
                alt.Tooltip("mib:Q", title="MiB", format=",.2f"),
            ],
        )
    )
    dots = (
        alt.Chart(peaks)
        .mark_point(filled=True, size=70, opacity=1)
        .encode(x=x, y="mib:Q", color=alt.Color("series:N", scale=colours), opacity=parts.faint("rank"))
    )
    # The highest of the peaks is named; names of all of them would lie on one another.
    labels = (
        alt.Chart(peaks.head(1))
        .mark_text(align="center", dy=-12, fontWeight=600)
        .encode(x=x, y="mib:Q", text="label:N")
    )
    layers: list[Any] = [line.add_params(parts.follow("rank"), parts.follow("layer")), dots, labels]
    if floor_mib is not None:
        layers += _floor(floor_mib)
    return parts.sized(alt.layer(*layers), height=220)


def peak(frame: pl.DataFrame) -> alt.Chart:
    """What memory held at its peak, a bar a category and rank.

    Columns: category, order, rank, series, mib.
    """
    import altair as alt

    names = frame["series"].unique(maintain_order=True).to_list()
    colours = parts.series(names)
    chart = (
        alt.Chart(frame)
        .mark_bar(cursor="pointer")
        .encode(
            y=alt.Y("category:N", title=None, sort=alt.EncodingSortField("order", op="min")),
            yOffset=alt.YOffset("series:N", sort=names),
            x=alt.X("mib:Q", title="MiB at the peak"),
            color=alt.Color("series:N", scale=colours, legend=None),
            opacity=parts.faint("rank"),
            tooltip=[
                alt.Tooltip("series:N", title="rank"),
                alt.Tooltip("category:N"),
                alt.Tooltip("mib:Q", title="MiB", format=",.2f"),
            ],
        )
    )
    height = max(26, 12 * len(names)) * frame["category"].n_unique()
    return parts.sized(chart.add_params(parts.pick("rank"), parts.follow("layer")), height=height)


def breakdown(frame: pl.DataFrame, top: float | None = None) -> alt.Chart:
    """What each step's time was spent on, a stacked bar a rank and step whose parts add up to the step.

    Columns: row, order, rank, activity, place (of the activity in the stack), ms, share (of the step, 0 to
    1).
    """
    import altair as alt

    colours = parts.colours(style.ACTIVITY, frame["activity"])
    chart = (
        alt.Chart(frame)
        .mark_bar(height={"band": 0.76}, cursor="pointer")
        .encode(
            y=alt.Y("row:N", title=None, sort=alt.EncodingSortField("order", op="min")),
            x=alt.X("ms:Q", title="ms", stack="zero", scale=parts.domain(top)),
            color=alt.Color("activity:N", scale=colours),
            order=alt.Order("place:Q"),
            opacity=parts.faint("rank"),
            tooltip=[
                alt.Tooltip("row:N", title="step"),
                alt.Tooltip("activity:N", title="part"),
                alt.Tooltip("ms:Q", title="ms", format=",.3f"),
                alt.Tooltip("share:Q", title="of the step", format=".1%"),
            ],
        )
    )
    return parts.sized(
        chart.add_params(parts.pick("rank"), parts.follow("layer")), height=BAR_STEP * frame["row"].n_unique()
    )


def blame(frame: pl.DataFrame, top: float | None = None) -> alt.Chart:
    """Exposed communication by its cause, stacked by kind of collective, a mean over steps and ranks.

    Columns: cause, order, kind, place (of the kind), ms, advice.
    """
    import altair as alt

    colours = parts.colours(style.KINDS, frame["kind"])
    chart = (
        alt.Chart(frame)
        .mark_bar(height={"band": 0.76})
        .encode(
            y=alt.Y("cause:N", title=None, sort=alt.EncodingSortField("order", op="min")),
            x=alt.X("ms:Q", title="exposed ms a step", stack="zero", scale=parts.domain(top)),
            color=alt.Color("kind:N", scale=colours),
            order=alt.Order("place:Q"),
            tooltip=[
                alt.Tooltip("cause:N"),
                alt.Tooltip("kind:N"),
                alt.Tooltip("ms:Q", title="exposed ms a step", format=",.3f"),
                alt.Tooltip("advice:N", title="what would help"),
            ],
        )
    )
    return parts.sized(chart, height=BAR_STEP * frame["cause"].n_unique())


def waiting(frame: pl.DataFrame, top: float | None = None) -> alt.Chart:
    """What each rank's matched collectives were: transfer, or waiting for a later rank; a mean over steps.

    Columns: row, order, rank, part ("transfer" or "waiting"), place (of the part), ms.
    """
    import altair as alt

    colours = parts.colours(style.WAITING, frame["part"])
    chart = (
        alt.Chart(frame)
        .mark_bar(height={"band": 0.76}, cursor="pointer")
        .encode(
            y=alt.Y("row:N", title=None, sort=alt.EncodingSortField("order", op="min")),
            x=alt.X("ms:Q", title="ms a step, summed over collectives", stack="zero", scale=parts.domain(top)),
            color=alt.Color("part:N", scale=colours),
            order=alt.Order("place:Q"),
            opacity=parts.faint("rank"),
            tooltip=[
                alt.Tooltip("row:N"),
                alt.Tooltip("part:N"),
                alt.Tooltip("ms:Q", title="ms a step", format=",.3f"),
            ],
        )
    )
    return parts.sized(
        chart.add_params(parts.pick("rank"), parts.follow("layer")), height=BAR_STEP * frame["row"].n_unique()
    )


def comparison(frame: pl.DataFrame) -> alt.Chart:
    """The mean step of each run, as a stacked bar a run. Columns: run, order, activity, place, ms, share."""
    import altair as alt

    colours = parts.colours(style.ACTIVITY, frame["activity"])
    chart = (
        alt.Chart(frame)
        .mark_bar(height={"band": 0.72})
        .encode(
            y=alt.Y("run:N", title=None, sort=alt.EncodingSortField("order", op="min")),
            x=alt.X("ms:Q", title="ms a step", stack="zero"),
            color=alt.Color("activity:N", scale=colours),
            order=alt.Order("place:Q"),
            tooltip=[
                alt.Tooltip("run:N"),
                alt.Tooltip("activity:N", title="part"),
                alt.Tooltip("ms:Q", title="ms a step", format=",.3f"),
                alt.Tooltip("share:Q", title="of the step", format=".1%"),
            ],
        )
    )
    return parts.sized(chart, height=40 * frame["run"].n_unique())


def _floor(mib: float) -> list[Any]:
    """The dashed line of the least that must be held, with its name."""
    import altair as alt

    words = f"floor {mib:,.1f} MiB"
    data = alt.InlineData(values=[{"mib": mib, "words": words}])
    rule = alt.Chart(data).mark_rule(strokeDash=[6, 4], color=style.QUIET).encode(y="mib:Q")
    where = {"x": alt.value("width"), "y": "mib:Q", "text": "words:N"}
    # The same words in white and wider beneath, so that they can be read over the curve.
    halo = alt.Chart(data).mark_text(align="right", dy=12, stroke="white", strokeWidth=4).encode(**where)
    text = alt.Chart(data).mark_text(align="right", dy=12, color=style.QUIET).encode(**where)
    return [rule, halo, text]
