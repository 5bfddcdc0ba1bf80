"""Parts that the charts share: sizes, scales, colours, selections, data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from tracekit.report import style
from tracekit.text import plain_line

if TYPE_CHECKING:
    import altair as alt

FAINT = 0.15

# Raised by no browser: charts that only follow a selection listen to it.
_NEVER = "tracekitpick"


def sized(chart: Any, *, height: int) -> Any:
    """The chart as wide as its place, with the look of the page."""
    import altair as alt

    fit = alt.AutoSizeParams(type="fit-x", contains="padding")
    return chart.properties(width="container", height=max(height, 1), autosize=fit).configure(**style.config())


def domain(top: float | None) -> alt.Scale:
    """A scale from 0 to `top`, to the largest value where that is not given."""
    import altair as alt

    return alt.Scale(domain=[0, top], nice=False) if top else alt.Scale()


def room(values: pl.Series, top: float | None) -> alt.Scale:
    """A scale from 0 to somewhat beyond the largest value (`top`, or that of the chart): a label there has room."""
    highest = top if top is not None else values.max()
    return domain(highest * 1.25 if isinstance(highest, float) else None)


def colours(meanings: dict[str, str], shown: pl.Series) -> alt.Scale:
    """The colours of those meanings that are shown, in the order of the meanings."""
    import altair as alt

    names = [name for name in meanings if name in set(shown)]
    return alt.Scale(domain=names, range=[meanings[name] for name in names])


def series(names: list[str]) -> alt.Scale:
    """A colour for each of the names, in turn."""
    import altair as alt

    return alt.Scale(domain=names, range=[style.SERIES[i % len(style.SERIES)] for i in range(len(names))])


def pick(field: str) -> alt.Parameter:
    """The selection that a click on a mark sets; a click beside the marks clears it."""
    import altair as alt

    return alt.selection_point(name=f"pick_{field}", fields=[field], on="click", clear="dblclick")


def follow(field: str) -> alt.Parameter:
    """The same selection in a chart that only shows what was picked elsewhere."""
    import altair as alt

    return alt.selection_point(name=f"pick_{field}", fields=[field], on=_NEVER, clear=False)


def faint(*fields: str) -> Any:
    """Full opacity for what is picked, or for everything while nothing is."""
    import altair as alt

    chosen: Any = {"and": [{"param": f"pick_{field}", "empty": True} for field in fields]}
    return alt.OpacityValue(value=FAINT, condition={"test": chosen, "value": 1})


def as_csv(frame: pl.DataFrame) -> alt.InlineData:
    """The rows as CSV, a quarter of the size of JSON rows; types are given, not guessed, and text is fit to print."""
    import altair as alt

    for name, kind in frame.schema.items():
        if kind == pl.String:
            spelt = {text: plain_line(text) for text in frame[name].drop_nulls().unique()}
            odd = {text: shown for text, shown in spelt.items() if shown != text}
            frame = frame.with_columns(pl.col(name).replace(odd)) if odd else frame
    parse: Any = {name: "number" if kind.is_numeric() else "string" for name, kind in frame.schema.items()}
    return alt.InlineData(values=frame.write_csv(), format=alt.CsvDataFormat(type="csv", parse=parse))
