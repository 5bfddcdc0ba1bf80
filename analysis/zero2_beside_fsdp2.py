"""ZeRO-2 beside FSDP2, or any runs side by side: volume, time and memory of a rank's mean complete step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
import script

import tracekit

if TYPE_CHECKING:
    import altair as alt

STEP = ["rank", "step"]
TIMES = ["compute_ns", "exposed_comm_ns", "exposed_copy_ns", "idle_ns"]


def mean_step(run: tracekit.Run) -> pl.DataFrame:
    """One row; the parts of the step add up to step_ns, and the peak is that of the fullest device."""
    steps = run.steps.filter("complete").select(STEP)
    time = run.table("breakdown").join(steps, on=STEP, how="semi").select(pl.col("step_ns", *TIMES).mean())
    hidden = run.table("overlap", by=STEP).join(steps, on=STEP, how="semi").sum()
    sent = run.table("totals").join(steps, on=STEP, how="semi").select(pl.col("measured_psi", "wire_bytes").mean())
    peak = run.table("memory").select(pl.col("allocated_bytes").max().alias("peak_bytes"))
    ratio = (pl.col("overlapped_ns") / pl.col("comm_ns")).fill_nan(None).alias("overlap_ratio")
    about = pl.DataFrame({"run": run.name, "num_ranks": run.world_size, "psi": run.psi})
    return pl.concat([about, sent, time, hidden.select(ratio), peak], how="horizontal")


def chart(table: pl.DataFrame) -> alt.Chart:
    """A bar a run: where its step's time went."""
    import altair as alt

    parts = table.unpivot(TIMES, index="run", variable_name="part", value_name="ns").with_columns(
        (pl.col("ns") / 1e6).alias("ms"), pl.col("part").str.strip_suffix("_ns").str.replace_all("_", " ")
    )
    return (
        alt.Chart(parts, title="Where the step's time went")
        .mark_bar()
        .encode(
            x=alt.X("ms:Q", title="ms a step, mean"),
            y=alt.Y("run:N", sort=table["run"].to_list(), title=None),
            color=alt.Color("part:N", title=None).scale(
                domain=["compute", "exposed comm", "exposed copy", "idle"],
                range=["#2f5d8a", "#d9512c", "#a678b4", "#d3d9df"],
            ),
            order="part:N",
        )
    )


if __name__ == "__main__":
    given = script.parser(__doc__, runs="several").parse_args()
    with script.one_sentence():
        script.write(pl.concat(mean_step(tracekit.open(run)) for run in given.runs), given, chart)
