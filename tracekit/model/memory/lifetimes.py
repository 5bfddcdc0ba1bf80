"""Blocks of memory: an allocation with the free of the same address that follows it."""

from __future__ import annotations

import numpy as np
import polars as pl

from tracekit.model.recordings import RUN

_PLACE = [*RUN, "device", "address"]
RECORDED, REUSED, CALL_DONE = "recorded", "its address was used again", "its call was done"


def with_blocks(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows, in time order, with `block`: the number of the row that allocated it; null where none did.

    A free belongs to the last allocation of its address on its device; a block without address to none but itself.
    """
    came, number = pl.col("delta_bytes") > 0, pl.col("number")
    last = pl.when(came).then(number).forward_fill().over(_PLACE)
    # Of two frees in a row the second frees what was there before the first allocation that was recorded.
    again = ~came & ~came.shift(1, fill_value=False).over(_PLACE)
    known = pl.col("address").is_not_null()
    # Counted before any window: inside one, a range of numbers would begin anew.
    counted = rows.with_row_index("number").with_columns(number.cast(pl.Int64))
    return counted.with_columns(pl.when(came).then(number).when(known & ~again).then(last).alias("block")).drop(
        "number"
    )


def with_ends(came: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    """Return the allocations `came` of `rows` with `end_ns` and `end_from`; null where the block outlives the window.

    A thread of the backend that drops the last reference to a tensor is not profiled, so the free of what a collective
    worked on may be missing. Such a block is gone at the latest when a later one begins inside it, and what the backend
    made for a call when that was done: `done_ns`, else when the phase of the call ends, since what follows needs it.
    """
    freed = rows.filter(pl.col("delta_bytes") < 0, pl.col("block").is_not_null())
    freed = freed.select("block", pl.col("ts_ns").alias("recorded_ns"))
    came = came.join(freed, on="block", how="left", maintain_order="left")
    open_ = came.filter(pl.col("recorded_ns").is_null(), pl.col("address").is_not_null())
    parts = [_reused(part, came) for part in open_.partition_by(*RUN, "device")]
    reused = pl.concat(parts) if parts else pl.DataFrame(schema={"block": pl.Int64, "reused_ns": pl.Int64})
    phases = rows.group_by("stretch").agg(pl.col("ts_ns").max().alias("phase_ns"))
    came = came.join(reused, on="block", how="left", maintain_order="left")
    came = came.join(phases, on="stretch", how="left", maintain_order="left")
    done = pl.when(pl.col("for_backend") & (pl.col("device") == "cpu")).then(pl.coalesce("done_ns", "phase_ns"))
    unseen = pl.min_horizontal("reused_ns", done)
    return came.with_columns(
        pl.coalesce("recorded_ns", unseen).alias("end_ns"),
        pl.when(pl.col("recorded_ns").is_not_null())
        .then(pl.lit(RECORDED))
        .when(unseen.is_not_null())
        .then(pl.when(unseen == pl.col("reused_ns")).then(pl.lit(REUSED)).otherwise(pl.lit(CALL_DONE)))
        .alias("end_from"),
    ).drop("recorded_ns", "reused_ns", "phase_ns")


def _reused(open_: pl.DataFrame, came: pl.DataFrame) -> pl.DataFrame:
    """Return `block` and `reused_ns` of the open blocks of one device: when the next one began inside each."""
    place = open_.select(*RUN, "device").head(1)
    others = came.join(place, on=[*RUN, "device"], how="semi", nulls_equal=True).drop_nulls("address").sort("address")
    starts, times = others["address"].to_numpy(), others["ts_ns"].to_numpy()
    low = np.searchsorted(starts, open_["address"].to_numpy(), side="left")
    high = np.searchsorted(starts, (open_["address"] + open_["delta_bytes"]).to_numpy(), side="left")
    found: list[int | None] = []
    for first, last, since in zip(low, high, open_["ts_ns"].to_list(), strict=True):
        later = times[first:last]
        later = later[later > since]
        found.append(int(later.min()) if later.size else None)
    return pl.DataFrame({"block": open_["block"], "reused_ns": pl.Series(found, dtype=pl.Int64)})
