"""Launches that no row of a device answers: captured into a graph, or lost."""

from __future__ import annotations

import polars as pl

from tracekit.model import names
from tracekit.model.event_kinds import Kinds
from tracekit.model.recordings import RUN

_THREAD = [*RUN, "pid", "tid"]
_BEGINS, _ENDS = r"(?i)^(cuda|hip)streambegincapture", r"(?i)^(cuda|hip)streamendcapture"


def unanswered(kinds: Kinds) -> pl.DataFrame:
    """Return launches without a device row on ranks that have others: rank, cycle, is_captured.

    A launch counts if its thread captures a graph at that time, or if it lies between launches of its thread that have
    rows: what the recording missed at its beginning or end is not meant.
    """
    answered = kinds.others.filter(pl.col("correlation") > 0).select(*RUN, "correlation").unique()
    has_captures = kinds.launches.select(pl.col("name").str.contains(_BEGINS).any()).item()
    if answered.is_empty() and not has_captures:
        return _none(kinds)
    calls = kinds.launches.filter(pl.col("ph") == "X").sort(*_THREAD, "ts_ns", "index")
    begins, ends = pl.col("name").str.contains(_BEGINS), pl.col("name").str.contains(_ENDS)
    depth = (begins.cast(pl.Int32) - ends.cast(pl.Int32)).cum_sum().over(_THREAD)
    starts = pl.col("name").str.contains(names.STARTS_WORK) & (pl.col("correlation") > 0)
    launches = calls.with_columns((depth > 0).alias("is_captured")).filter(starts)
    launches = launches.join(
        answered.with_columns(pl.lit(value=True).alias("has_row")), on=[*RUN, "correlation"], how="left",
        maintain_order="left",
    ).with_columns(pl.col("has_row").fill_null(value=False))  # fmt: skip
    seen = pl.col("has_row").cum_sum().over(_THREAD)
    is_between = (seen > 0) & (seen < pl.col("has_row").sum().over(_THREAD))
    return launches.filter(~pl.col("has_row"), pl.col("is_captured") | is_between).select(*RUN, "is_captured")


def _none(kinds: Kinds) -> pl.DataFrame:
    return kinds.launches.clear().select(*RUN, pl.lit(value=True).alias("is_captured"))
