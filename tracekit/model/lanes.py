"""Device rows that cannot have lasted as long as they say: work on one stream is serial.

A kernel may start while the one before it drains (programmatic dependent launch), and clocks are rounded: such
crossings are kept. A row that outlasts the *whole* of the next row on its stream, by more than any of that explains,
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
    next_start = pl.col("start_ns").shift(-1).over(_LANE)
    next_end = end.shift(-1).over(_LANE)
    overruns = (end > next_end + TOLERANCE_NS) & (next_start > pl.col("start_ns"))
    return ordered.with_columns(
        pl.when(overruns).then(end - next_start).alias("overrun_ns"),
        pl.when(overruns).then(next_start - pl.col("start_ns")).otherwise("dur_ns").alias("dur_ns"),
    )


def overrun_repairs(work: pl.DataFrame) -> list[dict[str, object]]:
    """Return a row of the repairs table for each rank with overruns."""
    found = work.drop_nulls("overrun_ns").group_by("rank", "cycle").agg(pl.len(), pl.col("overrun_ns").sum())
    return [
        {
            "rank": rank,
            "cycle": cycle,
            "what": "device rows that outlast the next one on their stream",
            "count": count,
            "done": f"ends cut at the next start, {overrun} ns in all",
        }
        for rank, cycle, count, overrun in found.sort("rank", "cycle").iter_rows()
    ]
