"""Sentences on what a run does not tell: what was never recorded, what is damaged, what lies outside steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.analyzers.breakdown import outside_steps
from tracekit.analyzers.complete_steps import of_complete_steps_alone
from tracekit.analyzers.recognition import in_words, looks_like
from tracekit.analyzers.skew import start_wait
from tracekit.model.collectives.matching import SEQ_DIFFERS, SYMMETRIC
from tracekit.model.devices.device_rows import BEFORE
from tracekit.model.devices.serial_lanes import PARTED
from tracekit.model.step_marks import BY_OPTIMIZER
from tracekit.model.steps import is_damage
from tracekit.read.discovery.ranks import spans
from tracekit.read.findings import MEMORY_ASKED_FOR
from tracekit.report.gathers import gathered_often
from tracekit.text import plain_line
from tracekit.units import counted, duration

if TYPE_CHECKING:
    from tracekit.model.run import Run

# So many kinds of a fault are named; a sentence with more is not read.
_NAMED = 3
# A first step is told where it is so many times as long as the median of more than so many others.
_LONGER, _FEW_STEPS = 1.5, 2
# Work outside all steps below this part of the device's busy time changes no conclusion.
_WORTH_SAYING = 0.01


def caveats(run: Run) -> list[str]:
    """Caveats of the run, a sentence an entry."""
    sentences = [
        _no_manifest(run),
        _no_memory(run),
        "The trace has no step marks, so all of it is one window." if run.steps["step"].is_null().all() else None,
        _incomplete(run.steps),
        _repaired(run.repairs),
        _unmet(run),
        _other_numbers(run),
        _start(run),
        _before(run),
        _outside(run),
        _beside_devices(run),
        _cpu_memory_alone(run),
        gathered_often(run),
        _of_unknown_kind(run),
        _first_step(run),
        _not_serial(run),
        _marked_by_optimizer(run.steps),
    ]
    return [sentence for sentence in sentences if sentence]


def _incomplete(steps: pl.DataFrame) -> str | None:
    """Number of steps left out of means, and the reason."""
    cut = steps.filter(~pl.col("complete"))
    if cut.is_empty():
        return None
    known = cut.drop_nulls("reason").group_by("reason").agg(pl.len()).sort("len", "reason", descending=[True, False])
    reasons = [f"{plain_line(reason)} ({counted(number, 'step')})" for reason, number in known.iter_rows()]
    why = f": {_few(reasons, 'reason')}" if reasons else ""
    if cut.height == steps.height:
        every = "The one recorded step is" if cut.height == 1 else f"All {cut.height} recorded steps are"
        return f"{every} incomplete, so no mean is one of whole steps{why}."
    is_are = "is incomplete and stands" if cut.height == 1 else "are incomplete and stand"
    return f"{cut.height} of {steps.height} recorded steps {is_are} outside comparisons{why}."


def _repaired(repairs: pl.DataFrame) -> str | None:
    """Faults of the files by rank, the worst first, and the effect on counts."""
    told = pl.col("what") == MEMORY_ASKED_FOR
    found = repairs.filter(pl.col("file").is_not_null() | pl.col("rank").is_not_null(), ~told)
    if found.is_empty():
        return None
    kinds = (
        found.with_columns(is_damage().alias("damage"))
        .group_by("what", "damage")
        .agg(pl.col("count").sum(), pl.col("rank").drop_nulls().unique().sort())
        .sort("damage", "count", "what", descending=[True, True, False])
    )
    told = [
        f"{_who(ranks)}, {plain_line(what)}{f' ({count} times)' if count > 1 else ''}"
        for what, count, ranks in kinds.select("what", "count", "rank").iter_rows()
    ]
    damaged = found.filter(is_damage())["rank"].drop_nulls().unique().sort().to_list()
    bound = f"; counts of {spans(damaged)} are lower bounds" if damaged else ""
    number = counted(int(found["count"].sum()), "repair")
    return f"Reading took {number}: {_few(told, 'kind')}{bound}."


def _unmet(run: Run) -> str | None:
    """For how many collectives that ran waits and skew are unknown, and why."""
    bound = run.collectives.filter(
        pl.col("kind").is_in(SYMMETRIC), pl.col("dur_ns").is_not_null(), pl.col("num_needed").fill_null(2) > 1
    )
    unmet = bound.filter(pl.col("transfer_ns").is_null())
    if unmet.is_empty() or run.world_size == 1:
        return None
    which = f"all {unmet.height}" if unmet.height == bound.height else f"{unmet.height} of {bound.height}"
    return f"Waits and skew of {which} collectives are unknown: {_why_unmet(run, unmet)}."


def _why_unmet(run: Run, unmet: pl.DataFrame) -> str:
    few = unmet.filter(pl.col("num_matched") < pl.col("num_needed"))
    size = run.world_size or 0
    missing = f"no file of {spans(run.missing_ranks)}" if run.missing_ranks else None
    if missing and few.height and (few["num_needed"] == size).all():
        return f"needs {size} of {size} ranks, has {size - len(run.missing_ranks)} ({missing})"
    if not missing and unmet["rank"].n_unique() == 1:
        return "only one rank is here"
    if few.height:
        return "not all ranks of their groups recorded them" + (f" ({missing})" if missing else "")
    return "the trace does not tell for certain which of them belong together on which ranks"


def _other_numbers(run: Run) -> str | None:
    """How many collectives have sequence numbers that ranks do not share."""
    number = int((run.collectives["matched_by"] == SEQ_DIFFERS).sum())
    if not number:
        return None
    told = counted(number, "collective")
    return f"Seq disagrees between ranks for {told}: they were matched by their order in the step."


def _start(run: Run) -> str | None:
    """That the first collective holds seconds of waiting, which say when recordings began."""
    first = start_wait(run)
    if first is None:
        return None
    return (
        f"The first collective ({plain_line(first['kind'])}) holds {duration(first['wait_ns'])} of waiting on rank "
        f"{first['rank']}: ranks whose profilers start at other times show so; stragglers leaves it out."
    )


def _before(run: Run) -> str | None:
    """How much work of devices was launched before the recording began."""
    found = run.work.filter(linked_by=BEFORE)
    if found.is_empty():
        return None
    number, busy = counted(found.height, "device row"), duration(int(found["dur_ns"].sum()))
    return (
        f"{number} with {busy} in all {'was' if found.height == 1 else 'were'} launched before the recording began: of "
        "no step, layer or phase, and busy time of the window it ran in."
    )


def _beside_devices(run: Run) -> str | None:
    """What a CPU backend carried out on ranks that have other devices."""
    accelerated = run.work.filter(pl.col("device") != "cpu")["rank"].unique().to_list()
    beside = run.collectives.filter(pl.col("device") == "cpu", pl.col("rank").is_in(accelerated))
    if beside.is_empty():
        return None
    which = counted(beside.height, "collective")
    return f"A backend on the CPU carried out {which} beside the devices: they are in no hidden share of the devices."


def _cpu_memory_alone(run: Run) -> str | None:
    """That a curve of the CPU does not speak for the devices of the run."""
    devices = run.work.filter(pl.col("device") != "cpu")["device"].unique().sort().to_list()
    if not devices or run.allocations.is_empty() or (run.allocations["device"] != "cpu").any():
        return None
    return f"The memory events are of the CPU alone: the memory of {', '.join(devices)} is unknown."


def _no_manifest(run: Run) -> str | None:
    """That there is no manifest, or one that names no strategy, and what the trace looks like."""
    names = looks_like(run)
    alike = f" By its collectives this looks like {in_words(names)}." if names else ""
    if run.manifest is None:
        return f"There is no manifest, so Ψ is unknown and nothing can be compared with 2Ψ or 3Ψ.{alike}"
    if run.manifest.unknown_because is None:
        return None
    return f"No strategy is named, for {plain_line(run.manifest.unknown_because)}.{alike}"


def _no_memory(run: Run) -> str | None:
    """That there are no memory events, and whether the recording was asked for them."""
    asked = run.repairs.filter(what=MEMORY_ASKED_FOR)["rank"].drop_nulls().unique().sort().to_list()
    if not run.allocations.is_empty():
        return f"Memory was asked for on {spans(asked)} too, but has no events there." if asked else None
    if asked:
        return "The recording was asked for memory (profile_memory), but has no memory events: its memory is unknown."
    return "The trace has no memory events, so its memory is unknown."


def _of_unknown_kind(run: Run) -> str | None:
    """That all rows of a device are of unknown kind, so that none of them counts as busy."""
    on_device = run.work.filter(pl.col("device") != "cpu").group_by("rank", "device")
    counts = on_device.agg(pl.len(), (pl.col("class") == "other").all().alias("unknown")).filter("unknown")
    if counts.is_empty():
        return None
    devices = ", ".join(counts["device"].unique().sort().to_list())
    number = int(counts["len"].sum())
    return (
        f"All {counted(number, 'row')} of {devices} {'is' if number == 1 else 'are'} of unknown kind: what it computed "
        "or communicated cannot be told, and none of it counts as busy time."
    )


def _first_step(run: Run) -> str | None:
    """That the first step is so much longer than the others that it holds more than they do; means count it."""
    steps = of_complete_steps_alone(run, run.table("breakdown")).sort("rank", "device", "step")
    of_one = ["rank", "device"]
    first = pl.col("step") == pl.col("step").min().over(of_one)
    others = pl.col("step_ns").filter(~first).median().over(of_one)
    compared = steps.with_columns(others.alias("usual_ns"), pl.len().over(of_one).alias("num")).filter(first)
    long = compared.filter(pl.col("num") > _FEW_STEPS, pl.col("step_ns") > _LONGER * pl.col("usual_ns"))
    if long.is_empty():
        return None
    rank, step, ns, usual = long.sort("step_ns", descending=True).select("rank", "step", "step_ns", "usual_ns").row(0)
    return (
        f"Step {step}, the first, took {duration(ns)} on rank {rank}, {ns / usual:.1f} times the median of the others: "
        "it may hold set-up or the profiler's own start; means count it all the same."
    )


def _not_serial(run: Run) -> str | None:
    """That rows which ran inside one another on what the trace calls one stream were parted, and nothing cut."""
    lane = pl.col("lane").str.extract(PARTED, 1)
    parted = run.work.filter(pl.col("device") != "cpu").with_columns(lane.alias("of")).drop_nulls("of")
    if parted.is_empty():
        return None
    places = parted.select("device", "of").unique().sort("device", "of").rows()
    named = _few([f"{plain_line(of)} of {device}" for device, of in places], "lane")
    return f"Rows on {named} run inside one another: they were taken as lanes of their own, and no time was cut."


def _marked_by_optimizer(steps: pl.DataFrame) -> str | None:
    """That steps are those of the optimizer's marks."""
    marked = steps.filter(pl.col("reason").str.starts_with(BY_OPTIMIZER))
    if marked.is_empty():
        return None
    reasons = marked["reason"].unique().sort().to_list()
    marks = _few([plain_line(reason) for reason in reasons], "mark")
    return f"There are no ProfilerStep marks: steps are {marks}; of two optimizers of one class each ends a step."


def _outside(run: Run) -> str | None:
    """Share of device work that was launched in no step, where it is worth saying."""
    outside, busy = outside_steps(run)
    if outside <= _WORTH_SAYING * busy:
        return None
    return (
        f"{100 * outside / busy:.0f} % of the time that devices were busy was launched outside all steps: "
        "overlap shows it with step null, breakdown leaves it out."
    )


def _who(ranks: list[int]) -> str:
    return spans(ranks) if ranks else "a file of unknown rank"


def _few(parts: list[str], name: str) -> str:
    """The first parts, and how many more there are."""
    rest = len(parts) - _NAMED
    more = [f"{counted(rest, f'other {name}')}"] if rest > 0 else []
    return "; ".join([*parts[:_NAMED], *more])
