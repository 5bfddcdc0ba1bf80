"""What ran on GPUs and other accelerators, and when the CPU launched it."""

from __future__ import annotations

import polars as pl

from tracekit.model import names
from tracekit.model.kinds import Kinds, by_value, timed
from tracekit.model.runs import RUN, joined, with_first
from tracekit.read.columns import Columns


def device_rows(columns: Columns, kinds: Kinds) -> pl.DataFrame:
    """Return the events of devices with their arguments and `start_ns`; `role`: kernel, copy, other or null.

    `launched_ns`, `launched_tid`: when and on which thread the CPU launched it, null where that was not seen;
    `linked_by`: how that was found, by correlation, else flow, else the operator's external id, else only by time.
    """
    others = timed(kinds.others)
    role = by_value(others["cat"], names.role_of).alias("role")
    rows = joined(others.with_columns(role), columns.device, "index")
    rows = rows.filter(pl.col("role").is_not_null() | pl.col("stream").is_not_null())
    rows = joined(rows, columns.comm.select(*RUN, "index", "collective"), "index")
    # Until torch 2.0 a kernel's external id repeats its correlation and says nothing about the operator.
    own_id = pl.when(pl.col("external_id") != pl.col("correlation").fill_null(-1)).then("external_id")
    return _launched(rows.with_columns(own_id.alias("op_id")).rename({"ts_ns": "start_ns"}), columns.flows, kinds)


def _launched(rows: pl.DataFrame, flows: pl.DataFrame, kinds: Kinds) -> pl.DataFrame:
    calls = kinds.launches.filter(pl.col("ph") == "X", pl.col("correlation") > 0)
    rows = rows.with_columns(
        pl.lit(None, pl.Int64).alias("launched_ns"),
        pl.lit(None, pl.Int64).alias("launched_tid"),
        pl.lit("time").alias("linked_by"),
    )
    rows = _linked(rows, calls, "correlation", "correlation")
    rows = _linked(rows, flows, "correlation", "flow")
    operators = kinds.operators.drop("correlation").rename({"external_id": "op_id"})
    return _linked(rows, operators.filter(pl.col("ph") == "X", pl.col("op_id") > 0), "op_id", "external id")


def _linked(rows: pl.DataFrame, launches: pl.DataFrame, key: str, source: str) -> pl.DataFrame:
    """Fill in the launches of rows that have none yet."""
    if not rows["launched_ns"].null_count():
        return rows
    at = launches.select(*RUN, key, pl.col("ts_ns").alias("at_ns"), pl.col("tid").alias("at_tid"))
    found = pl.col("launched_ns").is_null() & pl.col("at_ns").is_not_null()
    return (
        with_first(rows, at, key)
        .with_columns(
            pl.coalesce("launched_ns", "at_ns").alias("launched_ns"),
            pl.coalesce("launched_tid", "at_tid").alias("launched_tid"),
            pl.when(found).then(pl.lit(source)).otherwise("linked_by").alias("linked_by"),
        )
        .drop("at_ns", "at_tid")
    )
