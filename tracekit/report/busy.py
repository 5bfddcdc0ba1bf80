"""Sentences on a run without communication: how busy its devices were, what they waited for, what took longest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.analyzers.complete_steps import of_complete_steps
from tracekit.model.devices.device_rows import LOST_ACTIVITY
from tracekit.read.decoding.labelled import NOT_UNDERSTOOD
from tracekit.report.by_device import by_device, several_devices
from tracekit.text import kernel_name
from tracekit.units import duration, number

if TYPE_CHECKING:
    from tracekit.model.run import Run

NO_COMMUNICATION = (
    "No communication was recorded: nothing can be said of how much moved, what was hidden, why it was exposed, and "
    "who waited for whom."
)
# What idle time of each cause is, as "… of it" goes on.
_IS = {
    "launched late": "because the CPU issued the next work after the device had run dry",
    "waiting on the device": "before work that was issued in time and did not start",
    "launch latency": "in gaps of at most 20 µs between pieces of work",
    "launch not recorded": "before work whose launch is not in the trace",
    "between operators": "between operators: Python, or a wait that is no operator",
    "nothing followed": "after the last work of the recording",
}
# A cause or a name below this part of the whole changes no conclusion.
_WORTH_SAYING = 0.05


def is_without_communication(run: Run) -> bool:
    """Whether the trace holds neither a collective nor work of communication."""
    return run.collectives.is_empty() and not (run.work["class"] == "comm").any()


def no_communication(run: Run) -> str:
    """That no communication was recorded, or that a device was not, so that there may have been some."""
    lost = run.steps["reason"].drop_nulls().str.starts_with(LOST_ACTIVITY)
    unknown = run.repairs["what"].str.contains(NOT_UNDERSTOOD, literal=True)
    if lost.any() or unknown.any():
        return "No communication was recognised, and not all of what the devices did: there may have been some."
    return NO_COMMUNICATION


def busy(run: Run) -> str | None:
    """Busy and idle share of the mean step of a device, and what most of the idle time was; None without work."""
    steps = of_complete_steps(run, run.table("breakdown"))
    if not steps["step_ns"].sum() or run.work.is_empty():
        return "No work of any device was recorded." if run.steps.height else None
    told = f"Devices were busy {by_device(run, steps, _share)}"
    idle = of_complete_steps(run, run.table("idle", by=("rank", "device", "step", "cause")))
    causes = idle.group_by("cause").agg(pl.col("idle_ns").sum()).sort("idle_ns", "cause", descending=[True, False])
    total = float(idle["idle_ns"].sum())
    if several_devices(run, steps) or causes.is_empty() or total < _WORTH_SAYING * float(steps["step_ns"].sum()):
        return f"{told}."
    cause, ns = causes.row(0)
    return f"{told}; {100 * ns / total:.0f} % of the idle time passed {_IS[cause]}."


def longest(run: Run) -> str | None:
    """The work that took longest, with its share of all work; None without work."""
    table = run.table("kernels").filter(pl.col("class") != "other")
    sums = table.group_by("class", "name").agg(pl.col("sum_ns", "num").sum())
    top = sums.sort("sum_ns", "class", "name", descending=[True, False, False]).head(3)
    whole = float(sums["sum_ns"].sum())
    if not whole or top["sum_ns"][0] < _WORTH_SAYING * whole:
        return None
    named = [f"{kernel_name(name)} ({100 * ns / whole:.0f} %)" for name, ns in top.select("name", "sum_ns").iter_rows()]
    return f"The work that took longest, as a share of all of it: {', '.join(named)}."


def _share(steps: pl.DataFrame) -> tuple[float, str] | None:
    length, idle = number(steps["step_ns"].sum()), number(steps["idle_ns"].sum())
    if not length:
        return None
    part = (length - idle) / length
    mean = duration(length / steps.height)
    return part, f"{100 * part:.0f} % of {'a step of' if steps['step'].count() else 'the'} {mean}"
