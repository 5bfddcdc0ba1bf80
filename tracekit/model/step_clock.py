"""Steps whose window disagrees with the recorder's monotonic clock: the wall clock that dates a trace can jump.

The recorder times the steps of rank 0 by `time.perf_counter_ns`; ranks do their steps together, so that each rank's
window is held against it. Only what is beyond doubt is told: more than twice as long, or less than half, and by more
than a second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.units import TIME_UNITS, largest_unit

if TYPE_CHECKING:
    from tracekit.manifest import Manifest

_FACTOR, _SLACK_NS = 2, 10**9


def mark_jumps(table: pl.DataFrame, manifest: Manifest | None) -> pl.DataFrame:
    """Return the steps, those whose window disagrees with the recorder's clock incomplete, with both durations."""
    timed = measured(manifest)
    if not timed or table.is_empty():
        return table
    rows = pl.DataFrame(
        {"step": list(timed), "_ns": list(timed.values())}, schema={"step": table.schema["step"], "_ns": pl.Int64}
    )
    window = pl.col("end_ns") - pl.col("start_ns")
    longer = window > _FACTOR * pl.col("_ns") + _SLACK_NS
    shorter = pl.col("_ns") > _FACTOR * window + _SLACK_NS
    held = table.join(rows, on="step", how="left", maintain_order="left").with_columns(
        window.alias("_window"), (longer | shorter).fill_null(value=False).alias("_jumped")
    )
    told = [
        _sentence(window_ns, ns) if jumped else None
        for window_ns, ns, jumped in held.select("_window", "_ns", "_jumped").iter_rows()
    ]
    why = pl.concat_str("reason", pl.Series("_told", told, pl.String), separator="; ", ignore_nulls=True)
    return held.with_columns(
        (pl.col("complete") & ~pl.col("_jumped")).alias("complete"),
        pl.when("_jumped").then(why).otherwise("reason").alias("reason"),
    ).select(table.columns)


def measured(manifest: Manifest | None) -> dict[int, int]:
    """Return the recorder's ns of each profiled step by its number; empty where it is not known which are which."""
    first = next((rank for rank in manifest.ranks if rank.rank == 0), None) if manifest else None
    if manifest is None or first is None:
        return {}
    times, steps = manifest.step_times.profiled_ns, list[int]()
    for trace in sorted(first.traces, key=lambda trace: trace.cycle):
        if trace.first_step is None or trace.last_step is None or trace.last_step - trace.first_step >= len(times):
            return {}
        steps += range(trace.first_step, trace.last_step + 1)
    return dict(zip(steps, times, strict=True)) if len(steps) == len(times) == len(set(steps)) else {}


def _sentence(window_ns: int, timed_ns: int) -> str:
    return (
        f"it lasts {_time(window_ns)} by the clock of the trace, but {_time(timed_ns)} by the recorder's own: "
        "the clocks disagree"
    )


def _time(ns: int) -> str:
    scale, unit = largest_unit(ns, TIME_UNITS)
    return f"{ns / scale:,.1f} {unit}"
