"""The waterfall from theory to the trace: the rows of its bars, and the chart that draws them."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

import polars as pl

from tracekit.analyzers.ledger import MEASURED, UNEXPLAINED
from tracekit.plan.shares import THEORY
from tracekit.report.drawing import style
from tracekit.report.drawing import vega_lite as vl
from tracekit.report.drawing.chart_rows import Drawn
from tracekit.report.drawing.vega_lite import Spec, nominal, quantitative

if TYPE_CHECKING:
    from tracekit.model.run import Run

BAR_STEP = 34
#: Between the lines of a term; a line feed would be spelt out.
BREAK = "¦"

# Letters of a term in a line beside its bar, and the least part of Ψ that two decimals show.
_TERM_WIDTH, _SHOWN_PSI = 24, 0.005


def rows(run: Run) -> Drawn:
    """The way from theory to the trace as bars from level to level in Ψ: the mean complete step of a rank.

    Empty where the theory or what was measured is unknown; without a bar for the unexplained where only that is.
    """
    table = run.table("ledger")
    steps = table.filter(pl.col("term") == MEASURED).height
    means = table.group_by("term", maintain_order=True).agg(
        (pl.col("numel").sum() / max(steps, 1)).alias("numel"),
        (pl.col("psi").sum() / max(steps, 1)).alias("psi"),
        (pl.col("payload_bytes").sum() / max(steps, 1)).alias("payload_bytes"),
        pl.col("numel").null_count().alias("unknown"),
    )
    known = means.filter(pl.col("unknown") == 0, pl.col("psi").is_not_null())
    if not {THEORY, MEASURED} <= set(known["term"]) or run.psi is None:
        return Drawn(_bars(known.clear()))
    places = {THEORY: 0, MEASURED: 2, UNEXPLAINED: 3}
    # Terms that not every step has come late in the table; the sum does not depend on their order.
    walk = known.with_columns(place=pl.col("term").replace_strict(places, default=1, return_dtype=pl.Int64))
    walk = walk.sort("place", maintain_order=True).filter((pl.col("numel") != 0) | (pl.col("place") != 1))
    note = ""
    if UNEXPLAINED not in set(walk["term"]):
        note = "What is unexplained cannot be told: the sizes of some collectives, or what was planned, are unknown."
    return Drawn(_bars(walk), note)


def chart(frame: pl.DataFrame, top: float | None = None) -> Spec:
    """The way from theory to the trace: a bar a term, from the level before it to the level after, in Ψ.

    Columns: row (the term, broken into lines), term, order, way (what kind of step it is: its colour), from_psi,
    to_psi, psi, numel, payload_bytes, label.
    """
    highest = top or frame.select(pl.max_horizontal("from_psi", "to_psi").max()).item() or 1.0
    # The first of two lines goes above the middle of the bar.
    several = {"condition": {"test": f"indexof(datum.label, '{BREAK}') > 0", "value": "bottom"}, "value": "middle"}
    y = vl.in_order("row", axis={"labelExpr": f"split(datum.label, '{BREAK}')", "labelBaseline": several})
    walked = frame.filter((pl.col("psi") != 0) | (pl.col("way") == "total"))["way"]
    bars = {
        "mark": vl.bar(0.62),
        "encoding": {
            "y": y,
            "x": quantitative("from_psi", title="multiples of Ψ", **vl.up_to(highest * 1.03)),
            "x2": {"field": "to_psi"},
            "color": vl.coloured("way", style.LEDGER, walked),
            "tooltip": [
                nominal("term"),
                quantitative("psi", title="Ψ", format="+.4f"),
                quantitative("numel", title="elements × passes", format=",.6~r"),
                quantitative("payload_bytes", title="payload bytes", format=",.0f"),
            ],
        },
    }
    # Where a step ends is seen even when it is too short for a bar.
    levels = {
        "mark": {"type": "tick", "color": style.INK, "thickness": 1.5, "bandSize": 20},
        "encoding": {"y": y, "x": quantitative("to_psi")},
    }
    layers = [bars, levels, *_amounts(frame, y, highest)]
    return vl.sized({"data": vl.rows(frame), "layer": layers}, height=BAR_STEP * frame.height)


def _bars(walk: pl.DataFrame) -> pl.DataFrame:
    """Bars of the walk: totals from 0, terms from where the one before ended, the unexplained up to the measured."""
    is_total = pl.col("term").is_in([THEORY, MEASURED])
    moved = pl.when(pl.col("term") == MEASURED).then(0.0).otherwise("psi").cum_sum()
    colour = (
        pl.when(is_total)
        .then(pl.lit("total"))
        .when(pl.col("term") == UNEXPLAINED)
        .then(pl.lit(UNEXPLAINED))
        .when(pl.col("psi") > 0)
        .then(pl.lit("more than the theory"))
        .otherwise(pl.lit("less than the theory"))
    )
    return walk.with_row_index("order").select(
        pl.col("term").map_elements(lambda term: BREAK.join(textwrap.wrap(term, _TERM_WIDTH)), pl.String).alias("row"),
        "term",
        pl.col("order").cast(pl.Int64),
        colour.alias("way"),
        pl.when(is_total).then(0.0).otherwise(moved - pl.col("psi")).alias("from_psi"),
        pl.when(is_total).then("psi").otherwise(moved).alias("to_psi"),
        "psi",
        "numel",
        "payload_bytes",
        pl.struct("psi", "numel", is_total.alias("total")).map_elements(_amount, pl.String).alias("label"),
    )


def _amount(row: dict[str, Any]) -> str:
    """A term in Ψ with its sign, in elements where two decimals of Ψ would show nothing."""
    if row["total"]:
        return f"{row['psi']:.2f}Ψ"
    if row["numel"] == 0:
        return "0"
    if abs(row["psi"]) >= _SHOWN_PSI:
        return f"{row['psi']:+.2f}Ψ".replace("-", "−")
    elements = f"{row['numel']:+,.6g}".replace("-", "−")
    return f"{elements} element{'' if abs(row['numel']) == 1 else 's'}"


def _amounts(frame: pl.DataFrame, y: Spec, highest: float) -> list[Spec]:
    """The labels of a waterfall where there is room: in long totals, before a bar in the right half, else behind it."""
    low, high = pl.min_horizontal("from_psi", "to_psi"), pl.max_horizontal("from_psi", "to_psi")
    inside = (pl.col("way") == "total") & (high > highest * 0.3)
    before = (pl.col("way") != "total") & (low > highest * 0.5)
    placed = frame.with_columns(
        place=pl.when(inside).then(pl.lit("in")).when(before).then(pl.lit("before")).otherwise(pl.lit("behind")),
        at=pl.when(before).then(low).otherwise(high),
    )
    marks = {"in": ("right", -7, "white"), "before": ("right", -7, style.INK), "behind": ("left", 7, style.INK)}
    return [
        {
            "data": vl.rows(labelled),
            "mark": {"type": "text", "align": align, "dx": dx, "color": colour, "fontWeight": 600},
            "encoding": {"y": y, "x": quantitative("at"), "text": nominal("label")},
        }
        for place, (align, dx, colour) in marks.items()
        if not (labelled := placed.filter(pl.col("place") == place)).is_empty()
    ]
