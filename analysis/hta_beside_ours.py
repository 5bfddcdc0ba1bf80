"""HolisticTraceAnalysis beside tracekit: figures that answer the same question, of every rank, and their difference."""

from __future__ import annotations

import polars as pl
import script

import tracekit
from tracekit import intervals

PLACE = ["rank", "cycle", "device"]


def hta_beside_ours(run: tracekit.Run) -> pl.DataFrame:
    """The union of compute of each device, and the sums of durations by class, in ns; both tools were fed our events.

    `difference_ns` is HTA's figure minus ours.
    """
    work = run.work.filter(pl.col("dur_ns") >= 0, pl.col("class") != "other")
    sums = work.group_by(*PLACE, "class").agg(pl.col("dur_ns").sum().alias("ours_ns"))
    theirs = run.table("hta-kernels").group_by(*PLACE, "class").agg(pl.col("total_ns").sum().alias("hta_ns"))
    summed = sums.join(theirs, on=[*PLACE, "class"]).with_columns(
        pl.format("{}: sum of durations", "class").alias("question")
    )
    busy = run.table("hta-breakdown").select(
        *PLACE, pl.lit("compute: time with any").alias("question"), pl.col("compute_ns").alias("hta_ns")
    )
    united = busy.join(_unions(work.filter(pl.col("class") == "compute")), on=PLACE)
    columns = [*PLACE, "question", "ours_ns", "hta_ns"]
    both = pl.concat([united.select(columns), summed.select(columns)]).sort(*PLACE, "question")
    return both.with_columns((pl.col("hta_ns") - pl.col("ours_ns")).alias("difference_ns"))


def _unions(work: pl.DataFrame) -> pl.DataFrame:
    rows = [
        (*place, intervals.length(intervals.union(part["start_ns"], part["start_ns"] + part["dur_ns"])))
        for place, part in work.group_by(PLACE)
    ]
    return pl.DataFrame(rows, {**work.select(PLACE).schema, "ours_ns": pl.Int64}, orient="row")


if __name__ == "__main__":
    given = script.parser(__doc__, picture=False).parse_args()
    with script.one_sentence():
        script.write(hta_beside_ours(tracekit.open(given.run)), given)
