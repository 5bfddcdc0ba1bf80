"""What a Perfetto trace shows beside slices: counters of memory and of bytes moved, and where memory peaked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.analyzers.memory.curve import categories, column_of
from tracekit.analyzers.memory.peak import RESERVED
from tracekit.model.memory.categories import BEFORE_WINDOW
from tracekit.units import size

if TYPE_CHECKING:
    from tracekit.model.run import Run

_TOTALS = {"allocated_bytes": "allocated memory", "reserved_bytes": "reserved memory"}


def counters(run: Run) -> pl.DataFrame:
    """The counters of a run: rank, name, device, `value` in bytes at `ts_ns`, in order of time.

    Memory is the curve of `tracekit.analyzers.memory`, in all and by category. Bytes moved is the sum of the payloads
    of the collectives that have ended, those with a known payload.
    """
    moved = (
        run.collectives.filter(pl.col("dur_ns").is_not_null() & pl.col("payload_bytes").is_not_null())
        .select("rank", ts_ns=pl.col("start_ns") + pl.col("dur_ns"), value="payload_bytes")
        .sort("rank", "ts_ns", maintain_order=True)
        .with_columns(
            pl.col("value").cum_sum().over("rank"),
            name=pl.lit("bytes moved"),
            device=pl.lit(None, pl.String),
        )
    )
    columns = ["rank", "name", "device", "ts_ns", "value"]
    names = _TOTALS | {column_of(name): f"memory: {name}" for name in (*categories(run), BEFORE_WINDOW)}
    memory = (
        run.table("memory")
        .unpivot(list(names), index=["rank", "device", "ts_ns"], variable_name="name", value_name="value")
        .with_columns(pl.col("name").replace(names))
    )
    # A counter stays where it is until its next value.
    changed = (pl.col("value") != pl.col("value").shift(1).over("rank", "name", "device")).fill_null(value=True)
    memory = memory.filter(changed)
    kinds = (pl.Int32, pl.String, pl.String, pl.Int64, pl.Int64)
    casts = [pl.col(column).cast(kind) for column, kind in zip(columns, kinds, strict=True)]
    # An allocator that reserves nothing (the CPU's) has nothing to show.
    used = pl.col("value").max().over("rank", "name", "device") > 0
    parts = [part.select(casts).filter(used) for part in (memory, moved)]
    return pl.concat(parts).drop_nulls(["ts_ns", "value"]).sort("rank", "name", "device", "ts_ns", maintain_order=True)


def peaks(run: Run) -> pl.DataFrame:
    """Where each device held most: rank, device, ts_ns, a label, and lists of `category` and `bytes`."""
    parts = run.table("peak").filter(pl.col("category") != RESERVED)
    tops = parts.group_by("rank", "device", "ts_ns", maintain_order=True).agg(
        pl.col("category"), pl.col("bytes"), pl.col("bytes").sum().alias("total")
    )
    label = pl.col("total").map_elements(lambda nbytes: f"peak: {size(nbytes)}", pl.String).alias("label")
    return tops.select("rank", "device", "ts_ns", label, "category", "bytes")
