"""Time of each step on its device, by what it was spent on: compute, exposed communication, exposed copies, idle."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from tracekit import common_columns as c
from tracekit import intervals
from tracekit.model.device_time import DEVICE_KEY, Key, union_per_device
from tracekit.model.devices.device_rows import BEFORE
from tracekit.table_schema import Column, Schema

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracekit.model.run import Run

BREAKDOWN_SCHEMA = Schema(
    c.RANK,
    c.DEVICE,
    c.STEP.but(
        meaning="Optimizer step, by the number of its `ProfilerStep#` mark. Time counts where it passed: what a step "
        "launched and its device did later is the next step's here, and the launching step's in `overlap`.",
        null="the trace has no step marks",
    ),
    c.STEP_NS,
    Column("compute_ns", pl.Int64, "Time during which any compute ran, but for crossings with comm of its own lane."),
    Column("exposed_comm_ns", pl.Int64, "Time during which communication ran and no compute."),
    Column("exposed_copy_ns", pl.Int64, "Time during which copies ran and neither compute nor communication."),
    Column("idle_ns", pl.Int64, "The rest of the step: nothing ran, or only waits and rows of unknown kind."),
    Column("residual_ns", pl.Int64, "The step's length less the four parts: 0."),
)

_WINDOW = ("rank", "cycle", "device", "step", "start_ns", "end_ns")


class _Shares(NamedTuple):
    """Busy time of a device as disjoint sets, and their union."""

    compute: intervals.Intervals
    exposed_comm: intervals.Intervals
    exposed_copy: intervals.Intervals
    busy: intervals.Intervals


def breakdown(run: Run) -> pl.DataFrame:
    """Length of each step on its device and the four parts that it divides into, in ns, a row for each device and step.

    Time during which any compute runs counts as compute (but for a crossing with communication of its own lane, which
    hides nothing), else as exposed communication where any runs, else as exposed copy, else as idle: the parts never
    overlap, and `residual_ns`, the step less its parts, is 0. Work of class `other` (waits, rows of unknown kind)
    occupies nothing and counts as idle.

    On a GPU the window of a step runs from the start of its first work to the start of the next step's first work, so
    that windows never overlap: work that outlasts it counts in the next step's. A step that no step follows at once
    (the last one, one before a pause of the recording) ends with its last work. On the CPU the step marks are the
    windows.

    Work that no step launched belongs to no row; :func:`outside_steps` gives its amount.
    """
    work = on_device(run.work)
    shares = _shares(work, run.compute_cover)
    windows = step_windows(run, work).with_columns((pl.col("end_ns") - pl.col("start_ns")).clip(0).alias("step_ns"))
    measured = [
        _measured(group, shares.get(device))
        for device, group in windows.partition_by(DEVICE_KEY, as_dict=True, maintain_order=True).items()
    ]
    rows = pl.concat(measured) if measured else _measured(windows, None)
    parts = pl.col("compute_ns") + pl.col("exposed_comm_ns") + pl.col("exposed_copy_ns") + pl.col("idle_ns")
    return (
        rows.with_columns((pl.col("step_ns") - parts).alias("residual_ns"))
        .sort("rank", "cycle", "device", "step")
        .select(pl.col(name).cast(dtype) for name, dtype in BREAKDOWN_SCHEMA.items())
    )


def outside_steps(run: Run) -> tuple[int, int]:
    """Busy time of devices with work that no step launched, and with any work, in ns."""
    work = on_device(run.work).filter(pl.col("class").is_in(["compute", "comm", "copy"]))
    launched = work.filter(pl.col("linked_by").ne_missing(BEFORE))
    outside = launched.join(run.steps, on=["rank", "cycle", "step"], how="anti", nulls_equal=True)
    outside = pl.concat([outside, work.filter(pl.col("linked_by") == BEFORE)])
    some, all_of_it = (
        sum(intervals.length(union) for union in union_per_device(rows).values()) for rows in (outside, work)
    )
    return some, all_of_it


def _measured(windows: pl.DataFrame, share: _Shares | None) -> pl.DataFrame:
    """The windows of one device with the four parts of each, in ns."""
    starts, ends = windows["start_ns"], windows["end_ns"]
    sets = share or _Shares(*[intervals.EMPTY] * 4)
    compute, comm, copy, busy = (pl.Series(intervals.covered(starts, ends, part), dtype=pl.Int64) for part in sets)
    return windows.with_columns(
        compute.alias("compute_ns"),
        comm.alias("exposed_comm_ns"),
        copy.alias("exposed_copy_ns"),
        (windows["step_ns"] - busy).alias("idle_ns"),
    )


def on_device(work: pl.DataFrame) -> pl.DataFrame:
    """The work of each rank's accelerator where it has one, else of its CPU."""
    has_accelerator = (pl.col("device") != "cpu").any().over("rank")
    return work.filter((pl.col("device") != "cpu") | ~has_accelerator)


def _shares(work: pl.DataFrame, cover: Mapping[Key, intervals.Intervals]) -> dict[Key, _Shares]:
    by_class = {name: union_per_device(work.filter(pl.col("class") == name)) for name in ("compute", "comm", "copy")}
    busy = union_per_device(work.filter(pl.col("class").is_in(list(by_class))))
    shares: dict[Key, _Shares] = {}
    for device, union in busy.items():
        compute, comm, copy = (by_class[name].get(device, intervals.EMPTY) for name in by_class)
        exposed = intervals.subtract(comm, cover.get(device, intervals.EMPTY))
        exposed_copy = intervals.subtract(intervals.subtract(copy, compute), comm)
        shares[device] = _Shares(intervals.subtract(compute, exposed), exposed, exposed_copy, union)
    return shares


def step_windows(run: Run, work: pl.DataFrame) -> pl.DataFrame:
    """The window of each step on each device: rank, cycle, device, step, start_ns, end_ns."""
    on_cpu = run.steps.join(
        work.filter(pl.col("device") != "cpu").select("rank").unique(), on="rank", how="anti"
    ).with_columns(pl.lit("cpu").alias("device"))
    key = ["rank", "cycle", "step"]
    marked = run.steps.select(*key, pl.col("start_ns").alias("from_ns"), pl.col("end_ns").alias("to_ns"))
    stretches = (
        work.filter(pl.col("device") != "cpu", pl.col("linked_by").ne_missing(BEFORE))
        .join(marked, on=key, how="inner", nulls_equal=True)
        .with_columns((pl.col("start_ns") + pl.col("dur_ns")).alias("end_ns"))
        .group_by("rank", "cycle", "device", "step", "from_ns", "to_ns")
        .agg(pl.col("start_ns").min(), pl.col("end_ns").max())
        .sort("rank", "cycle", "device", "start_ns", "step")
    )
    device = ["rank", "cycle", "device"]
    # Time between steps that do not follow on one another was not recorded, or is that of a step without work.
    follows = pl.col("from_ns").shift(-1).over(device) == pl.col("to_ns")
    following = pl.col("start_ns").shift(-1).over(device)
    end = pl.when(follows).then(following).otherwise(pl.min_horizontal("end_ns", following))
    on_gpu = stretches.with_columns(end.alias("end_ns"))
    return pl.concat([on_cpu.select(_WINDOW), on_gpu.select(_WINDOW)], how="vertical_relaxed")
