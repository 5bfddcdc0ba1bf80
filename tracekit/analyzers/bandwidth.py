"""Algorithm and bus bandwidth of each collective, from its transfer time: nccl-tests' definitions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit import common_columns as c
from tracekit.table_schema import Column, Schema

if TYPE_CHECKING:
    from tracekit.model.run import Run

BANDWIDTH_SCHEMA = Schema(
    c.STEP,
    c.KIND,
    c.GROUP,
    c.GROUP_SIZE.but(null=""),
    c.LAYER,
    c.PAYLOAD_BYTES.but(null=""),
    c.TRANSFER_NS.but(null=""),
    Column("algorithm_bytes_per_s", pl.Int64, "Payload over transfer time, rounded down."),
    Column(
        "bus_bytes_per_s",
        pl.Int64,
        "That times 2(n-1)/n for an all_reduce and (n-1)/n for an all_gather, reduce_scatter or all_to_all: what a "
        "link must carry (nccl-tests, PERFORMANCE.md).",
        "the passes of its kind are not known",
    ),
)


def bandwidth(run: Run) -> pl.DataFrame:
    """Bandwidth of each collective whose size and transfer time are known, once for all of its ranks, in time order.

    `algorithm_bytes_per_s` is the payload over the transfer time; `bus_bytes_per_s` is that times 2(n-1)/n for an
    all-reduce and (n-1)/n for an all-gather, reduce-scatter or all-to-all, so that it can be held against the speed of
    a link (nccl-tests, PERFORMANCE.md). Rounded down to whole bytes. Empty where waiting cannot be told from transfer.
    """
    n = pl.coalesce("group_size", "num_needed").cast(pl.Int64)
    # The transfers of a batch share its time, so none of them has a rate of its own.
    known = pl.col("payload_bytes").is_not_null() & pl.col("batch").is_null() & (pl.col("transfer_ns") > 0) & (n > 0)
    # 9.2 GB times 1e9 ns is more than 64 bits hold.
    rate = (pl.col("payload_bytes").cast(pl.Int128) * 1_000_000_000 // pl.col("transfer_ns")).cast(pl.Int64)
    return (
        run.collectives.filter(known)
        .sort("start_ns")
        .unique("match", keep="first", maintain_order=True)
        .with_columns(n.cast(pl.Int32).alias("group_size"), rate.alias("algorithm_bytes_per_s"))
        .with_columns((pl.col("algorithm_bytes_per_s") * pl.col("passes") * (n - 1) // n).alias("bus_bytes_per_s"))
        .select(pl.col(name).cast(dtype) for name, dtype in BANDWIDTH_SCHEMA.items())
    )
