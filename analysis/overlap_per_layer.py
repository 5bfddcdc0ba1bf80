"""Communication of each layer, hidden under compute or exposed: the mean of a rank's complete step, in ns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
import script

import tracekit
from tracekit.layer_names import layer_label

if TYPE_CHECKING:
    import altair as alt

STEP = ["rank", "step"]


def overlap_per_layer(run: tracekit.Run) -> pl.DataFrame:
    """Layers in the order in which they first communicate; times are means over complete steps and ranks."""
    steps = run.steps.filter("complete").select(STEP)
    table = run.table("overlap", by=[*STEP, "layer"]).join(steps, on=STEP, how="semi")
    order = run.collectives.sort("start_ns").select("layer").unique(maintain_order=True)
    means = table.group_by("layer").agg(pl.col("num_collectives", "comm_ns", "overlapped_ns", "exposed_ns").sum())
    return (
        order.join(means, on="layer", nulls_equal=True, maintain_order="left")
        .with_columns(pl.exclude("layer") / max(steps.height, 1))
        .with_columns((pl.col("overlapped_ns") / pl.col("comm_ns")).fill_nan(None).alias("overlap_ratio"))
        .with_columns(layer_label().alias("layer"))
    )


def chart(table: pl.DataFrame) -> alt.Chart:
    """A bar a layer, hidden and exposed stacked."""
    import altair as alt

    parts = table.rename({"overlapped_ns": "hidden", "exposed_ns": "exposed"}).unpivot(
        ["hidden", "exposed"], index="layer", variable_name="part", value_name="ns"
    )
    return (
        alt.Chart(parts.with_columns((pl.col("ns") / 1e6).alias("ms")), title="Communication a step, by layer")
        .mark_bar()
        .encode(
            x=alt.X("ms:Q", title="ms a step, mean"),
            y=alt.Y("layer:N", sort=table["layer"].to_list(), title=None),
            color=alt.Color("part:N", title=None).scale(domain=["hidden", "exposed"], range=["#7cc4ba", "#d9512c"]),
            order=alt.Order("part:N", sort="descending"),
        )
    )


if __name__ == "__main__":
    given = script.parser(__doc__).parse_args()
    with script.one_sentence():
        script.write(overlap_per_layer(tracekit.open(given.run)), given, chart)
