"""Device rows on lanes on which work is serial, whatever the trace calls a stream.

Work on one stream is serial. A kernel may start while the one before it drains (programmatic dependent launch), and
clocks are rounded: such crossings are kept. A row that outlasts the *whole* of a later row on its stream, by more than
any of that explains, is one of two things:

- A wrong end: seven such rows of 55,423 held 16 s of time that never was (AMD-AGI/TraceLens#669). They are few, and
  compute among compute. Such an end is cut at the next start, as viewers draw it.
- A stream that is not one: nodes of a graph drawn on one logical stream, copies that all say stream 0, several streams
  of the program on one queue (ROCm). There nothing is wrong, and rows may hide one another: they are parted into lanes
  of their own, "stream 0", "stream 0 (2)" and so on, each of them serial.
"""

from __future__ import annotations

import heapq

import polars as pl

# Far beyond launch latencies and clock rounding, far below the damage that matters.
TOLERANCE_NS = 100_000
# Among the nodes of a graph only the rounding of clocks has to be told from a row inside another.
_ROUNDING_NS = 1_000
# Wrong ends are rare: a lane on which more rows, and more than one in so many, outlast others is not serial.
_FEW = 2
_FEW_OF = 50
# What a lane beside the first is called, with the name of that.
PARTED = r"^(.*) \(\d+\)$"
_LANE = ["rank", "cycle", "device", "lane"]


def on_serial_lanes(rows: pl.DataFrame) -> pl.DataFrame:
    """Return device rows with wrong ends cut (`dur_ns`, and `overrun_ns` cut off) and `lane` parted if need be."""
    uncut = pl.lit(None, pl.Int64).alias("overrun_ns")
    ordered = rows.sort(*_LANE, "start_ns", "index")
    end = pl.col("start_ns") + pl.col("dur_ns")
    tolerance = pl.when(pl.col("graph_node").is_not_null()).then(_ROUNDING_NS).otherwise(TOLERANCE_NS)
    least_end = end.cum_min(reverse=True).shift(-1).over(_LANE)
    if not ordered.select((end > least_end + tolerance).any()).item():
        return ordered.with_columns(uncut)
    # The first start and the first end of the rows that start later.
    is_later = pl.col("start_ns").shift(-1).over(_LANE) > pl.col("start_ns")
    first_start = pl.when(is_later).then(pl.col("start_ns").shift(-1).over(_LANE)).backward_fill().over(_LANE)
    first_end = pl.when(is_later).then(least_end).backward_fill().over(_LANE)
    found = ordered.with_columns(
        pl.when(end > first_end + tolerance).then(end - first_start).alias("overrun_ns"),
        (end + tolerance < end.cum_max().shift(1).over(_LANE)).fill_null(value=False).alias("__inside"),
    )
    lanes = found.filter(pl.col("overrun_ns").is_not_null().any().over(_LANE))
    parts = [found.join(lanes.select(_LANE).unique(), on=_LANE, how="anti").with_columns(uncut)]
    parts += [
        _cut(lane) if _has_wrong_ends(lane) else _parted(lane).with_columns(uncut)
        for lane in lanes.partition_by(_LANE, maintain_order=True)
    ]
    return pl.concat(parts).drop("__inside").sort(*_LANE, "start_ns", "index")


def _has_wrong_ends(lane: pl.DataFrame) -> bool:
    """Return whether what outlasts others has a wrong end: few rows, compute by compute, no graph, no copy engine."""
    longer = lane.drop_nulls("overrun_ns")
    inside = lane.filter("__inside")["class"].to_list()
    # A graph's nodes have the correlation of its one launch.
    launched_together = longer.filter(pl.col("correlation") > 0).join(
        lane.group_by("correlation").len().filter(pl.col("len") > 1), on="correlation", how="semi"
    )
    return (
        longer.height <= max(_FEW, lane.height // _FEW_OF)
        and (longer["class"] == "compute").all()
        and "compute" in inside
        and "comm" not in inside
        and not longer["graph_node"].count()
        and launched_together.is_empty()
    )


def _cut(lane: pl.DataFrame) -> pl.DataFrame:
    return lane.with_columns(pl.col("dur_ns") - pl.col("overrun_ns").fill_null(0))


def _parted(lane: pl.DataFrame) -> pl.DataFrame:
    """Return the rows on as many lanes as run at once, each row on the first that is free."""
    free = [0]
    busy: list[tuple[int, int]] = []  # (end, place): the heap's head is the next to be free
    places: list[int] = []
    for start, length in lane.select("start_ns", "dur_ns").iter_rows():
        while busy and busy[0][0] <= start:
            heapq.heappush(free, heapq.heappop(busy)[1])
        place = heapq.heappop(free) if free else len(busy)
        heapq.heappush(busy, (start + length, place))
        places.append(place)
    number = pl.Series("place", places, dtype=pl.Int64)
    parted = pl.when(number > 0).then(pl.format("{} ({})", "lane", number + 1)).otherwise("lane")
    return lane.with_columns(parted.alias("lane"))
