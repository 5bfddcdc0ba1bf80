"""Memory over time: the highest allocated bytes in each of equal stretches of the recording, on every device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
import script

import tracekit

if TYPE_CHECKING:
    import altair as alt

PLACE = ["rank", "device"]
TOTALS = ("allocated_bytes", "reserved_bytes")


def memory_timeline(run: tracekit.Run, stretches: int) -> pl.DataFrame:
    """The highest point of each stretch: rank, device, since_ns, allocated_bytes and what made up most of it."""
    memory = run.table("memory")
    categories = [name for name in memory.columns if name.endswith("_bytes") and name not in TOTALS]
    since = pl.col("ts_ns") - pl.col("ts_ns").min()
    most = pl.concat_list(categories).list.arg_max().replace_strict(dict(enumerate(categories)), return_dtype=pl.String)
    return (
        memory.with_columns(since.alias("since_ns"), most.str.strip_suffix("_bytes").alias("mostly"))
        .with_columns((pl.col("since_ns") * stretches // (pl.col("since_ns").max() + 1)).alias("stretch"))
        .sort("allocated_bytes", descending=True, maintain_order=True)
        .unique([*PLACE, "stretch"], keep="first", maintain_order=True)
        .sort(*PLACE, "since_ns")
        .select(*PLACE, "since_ns", "allocated_bytes", "mostly")
    )


def chart(table: pl.DataFrame) -> alt.Chart:
    """A line a rank."""
    import altair as alt

    place = pl.format("rank {}, {}", *PLACE).alias("place")
    scaled = table.select(place, pl.col("since_ns") / 1e6, pl.col("allocated_bytes") / 2**20, "mostly")
    return (
        alt.Chart(scaled, title="Allocated memory", width=640, height=240)
        .mark_line(interpolate="step-after")
        .encode(
            x=alt.X("since_ns:Q", title="ms since the recording began"),
            y=alt.Y("allocated_bytes:Q", title="MiB"),
            color=alt.Color("place:N", title=None),
            tooltip=["place", "since_ns", "allocated_bytes", "mostly"],
        )
    )


if __name__ == "__main__":
    parser = script.parser(__doc__)
    parser.add_argument(
        "--stretches", type=script.positive, default=20, help="how many stretches of the recording (20)"
    )
    given = parser.parse_args()
    with script.one_sentence():
        script.write(memory_timeline(tracekit.open(given.run), given.stretches), given, chart)
