"""Device rows that cannot have lasted as long as they say: work on one stream is serial.

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
    least_end = end.cum_min(reverse=True).shift(-1).over(_LANE)
    if not ordered.select((end > least_end + TOLERANCE_NS).any()).item():
        return ordered.with_columns(pl.lit(None, pl.Int64).alias("overrun_ns"))
    # The first start and the first end of the rows that start later.
    is_later = pl.col("start_ns").shift(-1).over(_LANE) > pl.col("start_ns")
    first_start = pl.when(is_later).then(pl.col("start_ns").shift(-1).over(_LANE)).backward_fill().over(_LANE)
    first_end = pl.when(is_later).then(least_end).backward_fill().over(_LANE)
    return (
        ordered.with_columns(first_start.alias("__start"), first_end.alias("__end"))
        .with_columns(
            pl.when(end > pl.col("__end") + TOLERANCE_NS).then(end - pl.col("__start")).alias("overrun_ns"),
        )
        .with_columns(pl.col("dur_ns") - pl.col("overrun_ns").fill_null(0))
        .drop("__start", "__end")
    )
