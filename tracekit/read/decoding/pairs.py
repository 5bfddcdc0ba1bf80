"""Begin and end events (``B`` and ``E``) made into complete ones; some exporters write nothing else for a device."""

from __future__ import annotations

import polars as pl


def paired(events: pl.DataFrame) -> pl.DataFrame:
    """Return the events with each begin and its end as one complete event (X) where the begin stood.

    An end closes the last begin that is open on its thread. Begins and ends without the other stay as they are.
    """
    is_half = events["ph"].is_in(["B", "E"])
    if not is_half.any():
        return events
    halves = events.filter(is_half).drop_nulls("ts_ns").sort("ts_ns", "index")
    opened: dict[tuple[int | None, int | None], list[tuple[int, int]]] = {}
    begins: list[int] = []
    ends: list[int] = []
    lengths: list[int] = []
    for ph, index, pid, tid, at in halves.select("ph", "index", "pid", "tid", "ts_ns").iter_rows():
        stack = opened.setdefault((pid, tid), [])
        if ph == "B":
            stack.append((index, at))
        elif stack:
            begin, start = stack.pop()
            begins.append(begin)
            ends.append(index)
            lengths.append(at - start)
    whole = pl.DataFrame({"index": begins, "length": lengths}, schema={"index": pl.Int64, "length": pl.Int64})
    table = events.filter(~pl.col("index").is_in(ends)).join(whole, on="index", how="left", maintain_order="left")
    is_whole = pl.col("length").is_not_null()
    return table.with_columns(
        pl.when(is_whole).then(pl.lit("X")).otherwise("ph").alias("ph"),
        pl.when(is_whole).then("length").otherwise("dur_ns").alias("dur_ns"),
    ).drop("length")
