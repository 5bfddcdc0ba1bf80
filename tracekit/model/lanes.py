"""Device rows whose times cannot be: work on one stream is serial, and nothing runs before it is launched.

A kernel may start while the one before it drains (programmatic dependent launch), and clocks are rounded: such
crossings are kept. A row that outlasts the *whole* of a later row on its stream, by more than any of that explains,
has a wrong end: seven such rows of 55,423 held 16 s of time that never was (AMD-AGI/TraceLens#669). Its end is cut at
the next start, as viewers draw it.
"""

from __future__ import annotations

import polars as pl

# Far beyond launch latencies and clock rounding, far below the damage that matters.
TOLERANCE_NS = 100_000
_LANE = ["rank", "cycle", "device", "lane"]


def cut_overruns(rows: pl.DataFrame) -> pl.DataFrame:
    """Return device rows with `dur_ns` cut where it overran the next row, and `overrun_ns`, what was cut off."""
    ordered = rows.sort(*_LANE, "start_ns", "index")
    end = pl.col("start_ns") + pl.col("dur_ns")
    # Of the rows that start later, wherever they are: the first start, and the first end.
    is_later = pl.col("start_ns").shift(-1).over(_LANE) > pl.col("start_ns")
    first_start = pl.when(is_later).then(pl.col("start_ns").shift(-1).over(_LANE)).backward_fill().over(_LANE)
    least_end = end.cum_min(reverse=True).shift(-1).over(_LANE)
    first_end = pl.when(is_later).then(least_end).backward_fill().over(_LANE)
    return (
        ordered.with_columns(first_start.alias("__start"), first_end.alias("__end"))
        .with_columns(
            pl.when(end > pl.col("__end") + TOLERANCE_NS).then(end - pl.col("__start")).alias("overrun_ns"),
        )
        .with_columns(pl.col("dur_ns") - pl.col("overrun_ns").fill_null(0))
        .drop("__start", "__end")
    )


def overrun_repairs(work: pl.DataFrame) -> list[dict[str, object]]:
    """Return rows of the repairs table for each rank's device rows with overruns, and with starts before their launch.

    The clocks of CPU and device are converted into each other, so that a kernel can seem to start early
    (pytorch/kineto#1380). What it belongs to rests on ids, not on times.
    """
    linked = pl.col("linked_by").is_in(["correlation", "flow"]) & (pl.col("device") != "cpu")
    early = work.filter(linked, pl.col("launched_ns") > pl.col("start_ns"))
    lead = (pl.col("launched_ns") - pl.col("start_ns")).max()
    return [
        *_repairs(
            work.drop_nulls("overrun_ns"),
            pl.col("overrun_ns").sum(),
            "device rows that outlast the next one on their stream",
            "ends cut at the next start, {} ns in all",
        ),
        *_repairs(
            early,
            lead,
            "device rows that start before their launch",
            "linked by their ids all the same, up to {} ns early",
        ),
    ]


def _repairs(found: pl.DataFrame, measure: pl.Expr, what: str, done: str) -> list[dict[str, object]]:
    table = found.group_by("rank", "cycle").agg(pl.len(), measure.alias("ns")).sort("rank", "cycle")
    return [
        {"rank": rank, "cycle": cycle, "what": what, "count": count, "done": done.format(ns)}
        for rank, cycle, count, ns in table.iter_rows()
    ]
