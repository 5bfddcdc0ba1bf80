"""Compute that hid each collective, by name, layer and phase."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from tracekit import common_columns as c
from tracekit import intervals
from tracekit.analyzers.overlap import KIND, communication
from tracekit.model.device_time import DEVICE_KEY
from tracekit.table_schema import Column, Schema

if TYPE_CHECKING:
    import numpy.typing as npt

    from tracekit.intervals import Intervals
    from tracekit.model.run import Run

HIDDEN_BY_SCHEMA = Schema(
    c.RANK,
    c.STEP,
    c.LAYER,
    c.PHASE,
    KIND,
    c.SEQ,
    c.START_NS,
    c.DUR_NS,
    c.OVERLAPPED_NS.but(meaning="Time of the collective that compute hid: the sum of its `hidden_ns`."),
    Column("hidden_by", pl.String, "Name of the compute that ran beside it.", "nothing hid it"),
    Column("hidden_by_layer", pl.String, "Layer of that compute.", "nothing hid it, or the layer is unknown"),
    Column("hidden_by_phase", pl.String, "Phase of that compute.", "nothing hid it"),
    Column(
        "hidden_ns",
        pl.Int64,
        "Time that this compute hid; where several computed at once, it counts for the one that started first.",
    ),
)
_BY = ("hidden_by", "hidden_by_layer", "hidden_by_phase")
# A name with a size or address inside a template is long enough to fill a page; its head identifies it.
_LONGEST_NAME = 200


def hidden_by(run: Run) -> pl.DataFrame:
    """Compute beside which each piece of communication ran, the longest first: HIDDEN_BY_SCHEMA.

    One row for each name, layer and phase of compute (`hidden_by` and the next two); the `hidden_ns` of a piece add
    up to its `overlapped_ns`. Where several computed at once, the time counts for the one that started first.
    Communication that nothing hid has one row with null there and 0.
    """
    cover = run.compute_cover
    compute = run.work.filter(pl.col("class") == "compute").sort("start_ns", "index")
    kernels = compute.partition_by(DEVICE_KEY, as_dict=True)
    ran = (
        communication(run)
        .filter(pl.col("dur_ns").is_not_null(), ~pl.col("is_further"))
        .sort("start_ns", "index")
        .with_row_index("piece")
    )
    parts = [
        _beside(group, _free(kernels[device], run.work), cover[device])
        for device, group in ran.partition_by(DEVICE_KEY, as_dict=True, maintain_order=True).items()
        if device in kernels
    ]
    found = pl.concat(parts) if parts else ran.head(0).select("piece", *_nothing())
    return (
        ran.join(found, on="piece", how="left", maintain_order="left")
        .with_columns(pl.col("hidden_ns").fill_null(0))
        .with_columns(pl.col("hidden_ns").sum().over("piece").alias("overlapped_ns"))
        .sort("rank", "start_ns", "piece", "hidden_ns", *_BY, descending=[False, False, False, True, *[False] * 3])
        .select(pl.col(name).cast(dtype) for name, dtype in HIDDEN_BY_SCHEMA.items())
    )


def _free(kernels: pl.DataFrame, work: pl.DataFrame) -> pl.DataFrame:
    """Kernels of a device, less what crosses communication of their own lane, which hides nothing."""
    here = kernels.select(*DEVICE_KEY).unique()
    comm = work.filter(pl.col("class") == "comm").join(here, on=DEVICE_KEY, how="semi")
    whole, pieces = kernels, list[pl.DataFrame]()
    for (lane,), sent in comm.partition_by("lane", as_dict=True).items():
        busy = intervals.union(sent["start_ns"], sent["start_ns"] + sent["dur_ns"])
        ends = kernels["start_ns"] + kernels["dur_ns"]
        crosses = (intervals.covered(kernels["start_ns"], ends, busy) > 0) & (kernels["lane"] == lane).to_numpy()
        whole = whole.join(kernels.filter(crosses), on="index", how="anti")
        pieces += [_without(kernel, busy) for kernel in kernels.filter(crosses).iter_slices(1)]
    return pl.concat([whole, *pieces]).sort("start_ns", "index")


def _without(kernel: pl.DataFrame, busy: Intervals) -> pl.DataFrame:
    """The pieces of one kernel outside `busy`."""
    start = kernel["start_ns"][0]
    left = intervals.subtract(intervals.union([start], [start + kernel["dur_ns"][0]]), busy)
    pieces = {"start_ns": left.starts, "dur_ns": left.ends - left.starts}
    return kernel[[0] * left.starts.size].with_columns(**{name: pl.Series(ns) for name, ns in pieces.items()})


def _beside(pieces: pl.DataFrame, kernels: pl.DataFrame, cover: Intervals) -> pl.DataFrame:
    """Time of each piece that each compute hid, in ns, where it is more than 0."""
    ends = (kernels["start_ns"] + kernels["dur_ns"]).to_numpy()
    # What each kernel ran alone or was the first to run: disjoint, in order, and together all of the compute.
    reach = np.concatenate(([np.iinfo(np.int64).min], np.maximum.accumulate(ends)[:-1])) if ends.size else ends
    starts = np.maximum(kernels["start_ns"].to_numpy(), reach)
    ends = np.maximum(ends, starts)
    begin = pieces["start_ns"].to_numpy()
    end = begin + pieces["dur_ns"].to_numpy()
    nth, kernel = _crossing(np.searchsorted(ends, begin, side="right"), np.searchsorted(starts, end, side="left"))
    hidden = intervals.covered(np.maximum(starts[kernel], begin[nth]), np.minimum(ends[kernel], end[nth]), cover)
    names = kernels.select(
        pl.col("name").str.head(_LONGEST_NAME).alias("hidden_by"),
        pl.col("layer").alias("hidden_by_layer"),
        pl.col("phase").alias("hidden_by_phase"),
    )
    return (
        names[kernel]
        .with_columns(pieces["piece"].gather(nth), pl.Series("hidden_ns", hidden, dtype=pl.Int64))
        .group_by("piece", *_BY)
        .agg(pl.col("hidden_ns").sum())
        .filter(pl.col("hidden_ns") > 0)
        .select("piece", *_BY, "hidden_ns")
    )


def _crossing(first: npt.NDArray[np.int64], last: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], ...]:
    """All pairs (i, k) with first[i] <= k < last[i]."""
    counts = np.maximum(last - first, 0)
    nth = np.repeat(np.arange(counts.size), counts)
    before = np.repeat(np.cumsum(counts) - counts, counts)
    return nth, first[nth] + np.arange(nth.size) - before


def _nothing() -> list[pl.Expr]:
    return [
        *(pl.lit(None, pl.String).alias(name) for name in _BY),
        pl.lit(None, pl.Int64).alias("hidden_ns"),
    ]
