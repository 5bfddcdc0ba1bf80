"""The sentence on exposed communication: how much of a step it is, and what most of it comes from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from tracekit.analyzers.complete_steps import of_complete_steps
from tracekit.layer_names import ends, is_root
from tracekit.report.by_device import by_device, several_devices
from tracekit.text import plain
from tracekit.units import duration, number

if TYPE_CHECKING:
    from tracekit.model.run import Run

# What exposed communication of each cause does, as "… of it" goes on.
_DOES = {
    "late rank": "waits for ranks that come later",
    "waits for its sender": "waits for the rank that sends",
    "waits for its receiver": "waits for the rank that receives",
    "point-to-point": "is between two ranks",
    "first use": "runs before anything is computed",
    "end of step": "runs when forward and backward are over",
    "serialised": "stood behind other collectives on its lane",
    "launched late": "was issued when the device had run dry",
    "no prefetch": "brings what the next layer needs at once",
    "synchronous": "holds up the computing thread",
    "link": "takes longer than the compute that could hide it",
}
# Causes that lie with another rank, wherever the time is spent.
_WAITING = ("late rank", "waits for its sender", "waits for its receiver")
# A cause is named where it has most of the exposed time; a place where it has a part worth looking at.
_MOST, _WORTH = 0.5, 0.1
# Exposed time of so much of a step that waits for others is the first thing to say.
_MUCH = 0.25
# Late ranks are named where they are so few, and come last to collectives with so much of all waiting. A rank whose own
# wait is so small a part of the longest came about last.
_MOST_NAMED, _NEARLY_ALL, _ABOUT_LAST = 3, 0.8, 0.1


def exposed(run: Run) -> str | None:
    """Exposed communication as a share of the mean step of a rank, with its cause, place or kind; None without any."""
    steps = of_complete_steps(run, run.table("breakdown"))
    length, total = number(steps["step_ns"].sum()), number(steps["exposed_comm_ns"].sum())
    if not length or not total:
        return None
    told = f"Exposed communication took {by_device(run, steps, _share)}"
    # Of devices of one rank the parts stand apart, so that nothing is a part of their sum.
    clause = None if several_devices(run, steps) else _clause(run, total, steps.height)
    return f"{told}; {clause}." if clause else f"{told}."


def comes_first(run: Run) -> bool:
    """Whether exposed time is what to say first: much of a step waits for other ranks, and it is known for which."""
    if not _late_ranks(run):
        return False
    steps = of_complete_steps(run, run.table("breakdown"))
    length, total = number(steps["step_ns"].sum()), number(steps["exposed_comm_ns"].sum())
    by = of_complete_steps(run, run.table("exposure", by=("rank", "step", "cause")))
    waited = number(by.filter(pl.col("cause").is_in(_WAITING))["exposed_ns"].sum())
    return total >= _MUCH * length > 0 and waited >= _MOST * total


def _share(steps: pl.DataFrame) -> tuple[float, str] | None:
    """The exposed part of these steps, and it in words."""
    length, total = number(steps["step_ns"].sum()), number(steps["exposed_comm_ns"].sum())
    if not length:
        return None
    times = f"{duration(total / steps.height)} of a step of {duration(length / steps.height)}"
    return total / length, f"{times} ({100 * total / length:.0f} %)"


def _clause(run: Run, total: float, num_steps: int) -> str | None:
    """What most of it comes from: one cause, else one place, else one kind; None where no part stands out."""
    cause, caused = _largest(of_complete_steps(run, run.table("exposure", by=("rank", "step", "cause"))), ["cause"])
    by = ["kind", "layer", "phase"]
    place, placed = _largest(of_complete_steps(run, run.table("overlap", by=("rank", "step", *by))), by)
    # What a step launched may run beyond its window, and then is no part of what the windows add up to.
    if cause and _MOST * total <= caused <= total and (caused > placed or cause[0] in _WAITING):
        return f"{duration(caused / num_steps)} of it {_late(run) if cause[0] == 'late rank' else _DOES[cause[0]]}"
    if place and _WORTH * total <= placed <= total:
        return f"the largest part, {duration(placed / num_steps)}, is {place_text(*place)}"
    kind, of_kind = _largest(
        of_complete_steps(run, run.table("overlap", by=("rank", "step", "kind", "phase"))), by[::2]
    )
    if kind and _WORTH * total <= of_kind <= total:
        return f"{duration(of_kind / num_steps)} of it is {place_text(kind[0], None, kind[1])}, spread over the layers"
    return None


def _largest(table: pl.DataFrame, by: list[str]) -> tuple[tuple[Any, ...] | None, float]:
    """The group of these columns with the most exposed time, and that time; collectives of unknown kind left out."""
    groups = (
        table.drop_nulls(by[0])
        .group_by(by)
        .agg(pl.col("exposed_ns").sum())
        # The rest only makes the order, and so the sentence, the same each time.
        .sort("exposed_ns", *by, descending=[True, *[False] * len(by)], nulls_last=True)
    )
    return (None, 0.0) if groups.is_empty() else (groups.select(by).row(0), number(groups["exposed_ns"][0]))


def _late(run: Run) -> str:
    """Whom the ranks wait for, by number where these are known."""
    late = _late_ranks(run)
    if not late:
        return _DOES["late rank"]
    if len(late) == 1:
        return f"waits for rank {late[0]}, which comes later than the others"
    return f"waits for ranks {', '.join(map(str, late[:-1]))} and {late[-1]}, which come later than the others"


def _late_ranks(run: Run) -> list[int]:
    """The few ranks that come last to nearly all that is waited for; none where many do, or now one and now another."""
    call = ["step", "kind", "group", "seq"]
    waits = of_complete_steps(run, run.table("skew")).drop_nulls("wait_ns")
    longest = pl.col("wait_ns").max().over(call)
    last = waits.with_columns(longest.alias("longest")).filter(pl.col("wait_ns") <= _ABOUT_LAST * pl.col("longest"))
    total = number(waits.group_by(call).agg(pl.col("wait_ns").max())["wait_ns"].sum())
    by_rank = last.group_by("rank").agg(pl.col("longest").sum())
    late = by_rank.filter(pl.col("longest") >= _NEARLY_ALL * total)["rank"].sort().to_list()
    are_few = len(late) <= _MOST_NAMED and 2 * len(late) <= run.ranks["rank"].n_unique()
    return late if total and are_few else []


def place_text(kind: str, layer: str | None, phase: str | None) -> str:
    """A kind of collective with the layer and phase that are known of it."""
    known = phase if phase in {"forward", "backward", "optimizer"} else None
    kind = plain(kind)
    if layer is None:
        return f"{kind} in {known}" if known else f"{kind}, layer and phase unknown"
    owner = " to ".join("the root unit" if is_root(name) else plain(name) for name in ends(layer))
    return f"{kind} of {owner} in {known}" if known else f"{kind} of {owner}"
