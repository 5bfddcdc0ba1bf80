"""Idle time of devices by its cause, and the work that took longest: the first questions without communication."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from tracekit import common_columns as c
from tracekit import intervals
from tracekit.analyzers.breakdown import on_device, step_windows
from tracekit.analyzers.complete_steps import of_complete_steps
from tracekit.model.device_time import DEVICE_KEY, union_per_device
from tracekit.table_schema import Column, Groupings, Schema

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.model.run import Run

# What the device waited for, by what is known of the work that ended the gap.
CAUSES = {
    "launched late": "the CPU issued the next work only after the device had run dry",
    "waiting on the device": "the next work was issued in time and did not start; what it waited for is not looked at",
    "launch latency": "a gap of at most 20 µs before work that was issued in time",
    "launch not recorded": "the launch of the next work is not in the trace",
    "between operators": "on a CPU, no operator ran: Python, or a wait that is no operator",
    "nothing followed": "no more work followed in the recording",
}
LATENCY_NS = 20_000
_CAUSE = Column("cause", pl.String, f"What the device waited for: {'; '.join(f'{k}: {v}' for k, v in CAUSES.items())}.")
IDLE_BY = Groupings((c.RANK, c.DEVICE, c.STEP, _CAUSE), default=("rank", "device", "step", "cause"))
IDLE_SCHEMA = Schema(
    c.RANK,
    c.DEVICE,
    c.STEP.but(
        meaning="Optimizer step, by the number of its mark. Time counts where it passed, as in `breakdown`.",
        null="the trace has no step marks",
    ),
    _CAUSE,
    Column("num_gaps", pl.Int64, "Number of gaps."),
    Column("idle_ns", pl.Int64, "Idle time; over all causes it is the step's `idle_ns` in `breakdown`."),
    Column("longest_ns", pl.Int64, "The longest of the gaps."),
)
KERNELS_SCHEMA = Schema(
    c.RANK,
    c.DEVICE,
    Column("class", pl.String, "compute, comm, copy or other."),
    c.NAME,
    Column(
        "num",
        pl.Int64,
        "Number of times that it ran in steps that all ranks have in full (in all where there is none).",
    ),
    Column("sum_ns", pl.Int64, "Sum of its durations: what ran at the same time counts each time."),
    Column("median_ns", pl.Int64, "Median duration, rounded down."),
    Column("longest_ns", pl.Int64, "The longest."),
    Column("share", pl.Float64, "`sum_ns` over that of all work of the device."),
)


def idle(run: Run, *, by: Sequence[str] | None = None) -> pl.DataFrame:
    """Idle time of each step by cause (or other columns of IDLE_BY), largest first within a step: IDLE_SCHEMA.

    Idle is what `breakdown` calls so: time of the step's window in which no compute, communication or copy ran. A gap
    belongs to the work that ends it.

    Raises:
        UsageError: `by` names a column that idle time cannot be grouped by.
    """
    keys = IDLE_BY.keys(by, "idle")
    work = on_device(run.work).filter(pl.col("class").is_in(["compute", "comm", "copy"])).sort("start_ns", "index")
    ran = work.partition_by(DEVICE_KEY, as_dict=True, maintain_order=True)
    busy = union_per_device(work)
    parts = [
        _gaps(group, ran.get(key, work.clear()), busy.get(key, intervals.EMPTY))
        for key, group in step_windows(run, on_device(run.work)).partition_by(DEVICE_KEY, as_dict=True).items()
    ]
    gaps = pl.concat(parts) if parts else pl.DataFrame(schema={**IDLE_SCHEMA, "ns": pl.Int64})
    first = [key for key in ("rank", "device", "step") if key in keys]
    order = {**dict.fromkeys(first, False), "idle_ns": True, **{key: False for key in keys if key not in first}}
    ns = pl.col("ns")
    return (
        gaps.group_by(keys or [pl.lit(0).alias("all")])
        .agg(pl.len().cast(pl.Int64).alias("num_gaps"), ns.sum().alias("idle_ns"), ns.max().alias("longest_ns"))
        .sort(list(order), descending=list(order.values()))
        .select(*keys, "num_gaps", "idle_ns", "longest_ns")
    )


def kernels(run: Run) -> pl.DataFrame:
    """Work of each name on each device, the longest sum first: KERNELS_SCHEMA."""
    work = on_device(run.work)
    # Without marks a run is one window, and work launched before it belongs to no step.
    if run.steps["step"].count():
        work = of_complete_steps(run, work)
    ns, place = pl.col("dur_ns"), ["rank", "device"]
    return (
        work.group_by(*place, "class", "name")
        .agg(
            pl.len().alias("num"),
            ns.sum().alias("sum_ns"),
            ns.median().floor().alias("median_ns"),
            ns.max().alias("longest_ns"),
        )
        .with_columns((pl.col("sum_ns") / pl.col("sum_ns").sum().over(place)).fill_nan(None).alias("share"))
        .sort(*place, "sum_ns", "class", "name", descending=[False, False, True, False, False])
        .select(pl.col(name).cast(dtype) for name, dtype in KERNELS_SCHEMA.items())
    )


def _gaps(steps: pl.DataFrame, work: pl.DataFrame, busy: intervals.Intervals) -> pl.DataFrame:
    """The gaps of one device, a row for each and step that it lies in: rank, device, step, cause, ns."""
    starts, ends = steps["start_ns"].to_numpy(), steps["end_ns"].to_numpy()
    empty = intervals.subtract(intervals.union(starts, ends), busy)
    # A gap that crosses the border of two steps is one in each.
    points = np.unique(np.concatenate((empty.starts, empty.ends, starts, ends)))
    begin, end = points[:-1], points[1:]
    nth = np.searchsorted(empty.starts, begin, side="right") - 1
    inside = (nth >= 0) & (begin < empty.ends[np.maximum(nth, 0)]) if empty.starts.size else np.zeros(begin.shape, bool)
    begin, end = begin[inside], end[inside]
    after = np.searchsorted(work["start_ns"].to_numpy(), end, side="left")
    none = pl.DataFrame({name: pl.Series([None], dtype=pl.Int64) for name in ("start_ns", "launched_ns")})
    following = pl.concat([work.select("start_ns", "launched_ns"), none])
    found = following[after].with_columns(
        pl.Series("begin_ns", begin, dtype=pl.Int64), pl.Series("ns", end - begin, dtype=pl.Int64)
    )
    is_cpu = (steps["device"] == "cpu").all()
    cause = (
        pl.when(pl.col("start_ns").is_null()).then(pl.lit("nothing followed"))
        .when(pl.lit(is_cpu)).then(pl.lit("between operators"))
        .when(pl.col("launched_ns").is_null()).then(pl.lit("launch not recorded"))
        .when(pl.col("launched_ns") >= pl.col("begin_ns")).then(pl.lit("launched late"))
        .when(pl.col("ns") <= LATENCY_NS).then(pl.lit("launch latency"))
        .otherwise(pl.lit("waiting on the device"))
    )  # fmt: skip
    place = np.searchsorted(starts, begin, side="right") - 1
    return pl.concat(
        [steps.select("rank", "device", "step")[place], found.select(cause.alias("cause"), "ns")], how="horizontal"
    )
