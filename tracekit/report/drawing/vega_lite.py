"""Parts of Vega-Lite specifications: sizes, scales, colours, selections, data.

A specification is plain data, so that a page is written without altair;
:func:`tracekit.report.drawing.charts.chart` hands the same to altair. Names of fields and all that is not data are
ours, never a trace's.
"""

from __future__ import annotations

from typing import Any

import polars as pl

from tracekit.report.drawing import style
from tracekit.text import plain_line

Spec = dict[str, Any]

SCHEMA = "https://vega.github.io/schema/vega-lite/v6.4.1.json"
"""The version that specifications are written in and drawn by; altair's own, as a test checks."""

FAINT = 0.15

# Raised by no browser: charts that only follow a selection listen to it.
_NEVER = "tracekitpick"


def sized(spec: Spec, *, height: int) -> Spec:
    """The chart as wide as its place and `height` pixels high, with the look of the page."""
    fit = {"type": "fit-x", "contains": "padding"}
    return whole({"width": "container", "height": max(height, 1), "autosize": fit, **spec})


def whole(spec: Spec) -> Spec:
    """The specification with its schema and the look of the page."""
    return {"$schema": SCHEMA, "config": style.config(), **spec}


def nominal(field: str, **more: Any) -> Spec:
    """A channel that shows names."""
    return {"field": field, "type": "nominal", **more}


def quantitative(field: str, **more: Any) -> Spec:
    """A channel that shows numbers."""
    return {"field": field, "type": "quantitative", **more}


def in_order(field: str, **more: Any) -> Spec:
    """A channel of names from top to bottom by the column `order`."""
    return nominal(field, title=None, sort={"field": "order", "op": "min"}, **more)


def bar(band: float, **more: Any) -> Spec:
    """The mark of a bar that fills this part (0 to 1) of its row."""
    return {"type": "bar", "height": {"band": band}, **more}


def up_to(top: float | None) -> Spec:
    """The scale of a channel from 0 to `top`, to the largest value where that is `None` or 0."""
    return {"scale": {"domain": [0, top], "nice": False}} if top else {}


def with_room(values: pl.Series, top: float | None) -> Spec:
    """A scale from 0 to somewhat beyond the largest value (`top`, or that of the chart): a label there has room."""
    highest = top if top is not None else values.max()
    return up_to(highest * 1.25 if isinstance(highest, float) else None)


def coloured(field: str, meanings: dict[str, str], shown: pl.Series, **more: Any) -> Spec:
    """The channel of colours of those `meanings` (name to colour) that are shown, in the order of the meanings."""
    names = [name for name in meanings if name in set(shown)]
    return nominal(field, scale={"domain": names, "range": [meanings[name] for name in names]}, **more)


def series(names: list[str], **more: Any) -> Spec:
    """The channel of colours that gives each of the names one in turn."""
    colours = {name: style.SERIES[i % len(style.SERIES)] for i, name in enumerate(names)}
    return coloured("series", colours, pl.Series(names, dtype=pl.String), **more)


def pick(field: str) -> Spec:
    """The selection that a click on a mark sets; a double click clears it."""
    return _selection(field, on="click", clear="dblclick")


def follow(field: str) -> Spec:
    """The same selection in a chart that only shows what was picked elsewhere."""
    return _selection(field, on=_NEVER, clear=False)


def faint(*fields: str) -> Spec:
    """Full opacity for what is picked, or for everything while nothing is."""
    chosen = {"and": [{"param": f"pick_{field}", "empty": True} for field in fields]}
    return {"value": FAINT, "condition": {"test": chosen, "value": 1}}


def rows(frame: pl.DataFrame) -> Spec:
    """The frame as data in the specification, text fit to print."""
    return {"values": _printable(frame).to_dicts()}


def csv(frame: pl.DataFrame) -> Spec:
    """The frame as CSV, a quarter of the size of rows; types are given, not guessed, and text is fit to print."""
    kinds = {name: "number" if kind.is_numeric() else "string" for name, kind in frame.schema.items()}
    return {"values": _printable(frame).write_csv(), "format": {"type": "csv", "parse": kinds}}


def _selection(field: str, **events: Any) -> Spec:
    return {"name": f"pick_{field}", "select": {"type": "point", "fields": [field], **events}}


def _printable(frame: pl.DataFrame) -> pl.DataFrame:
    for name, kind in frame.schema.items():
        if kind == pl.String:
            spelt = {text: plain_line(text) for text in frame[name].drop_nulls().unique()}
            odd = {text: shown for text, shown in spelt.items() if shown != text}
            frame = frame.with_columns(pl.col(name).replace(odd)) if odd else frame
    return frame
