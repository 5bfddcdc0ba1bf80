"""Exposed communication by its cause, and the knob that would change it: the mean of a rank's complete step, in ns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
import script

import tracekit

if TYPE_CHECKING:
    import altair as alt

STEP = ["rank", "step"]


def exposed_time(run: tracekit.Run) -> pl.DataFrame:
    """Causes, largest first, each with its share of all exposed time; times are means over complete steps and ranks."""
    steps = run.steps.filter("complete").select(STEP)
    causes = run.table("exposure").join(steps, on=STEP, how="semi").group_by("cause", "advice")
    return (
        causes.agg(pl.col("exposed_ns").sum() / max(steps.height, 1))
        .with_columns((pl.col("exposed_ns") / pl.col("exposed_ns").sum()).alias("share"))
        .sort("exposed_ns", "cause", descending=[True, False])
        .select("cause", "exposed_ns", "share", "advice")
    )


def chart(table: pl.DataFrame) -> alt.Chart:
    """A bar a cause."""
    import altair as alt

    return (
        alt.Chart(table.with_columns((pl.col("exposed_ns") / 1e6).alias("ms")), title="Exposed communication by cause")
        .mark_bar(color="#d9512c")
        .encode(
            x=alt.X("ms:Q", title="ms a step, mean"),
            y=alt.Y("cause:N", sort=table["cause"].to_list(), title=None),
            tooltip=["cause", "ms", alt.Tooltip("share:Q", format=".0%"), "advice"],
        )
    )


if __name__ == "__main__":
    given = script.parser(__doc__).parse_args()
    with script.one_sentence():
        script.write(exposed_time(tracekit.open(given.run)), given, chart)
