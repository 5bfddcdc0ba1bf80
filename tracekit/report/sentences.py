"""Sentences that say what a run's tables mean, most important first; unknown is called unknown."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.analyzers.complete_steps import of_complete_steps
from tracekit.analyzers.ledger import LOOPS, MEASURED, UNEXPLAINED
from tracekit.analyzers.memory.curve import is_lower_bound
from tracekit.analyzers.memory.peak import RESERVED
from tracekit.analyzers.overlap import of_devices
from tracekit.analyzers.volume import known_sum
from tracekit.plan import shares as named
from tracekit.plan.schema import PADDING
from tracekit.report.busy import busy, is_without_communication, longest, no_communication
from tracekit.report.by_device import by_device
from tracekit.report.caveats import caveats
from tracekit.report.disagreement import agrees, disagreement, loops_own
from tracekit.report.exposed import comes_first, exposed
from tracekit.report.pipelined import pipelined
from tracekit.strategies import title
from tracekit.text import plain
from tracekit.units import counted, number, share, size

if TYPE_CHECKING:
    from tracekit.model.run import Run

# Why a term of the ledger is there, as the end of "because ...".
REASONS = {
    named.SAVED: "what forward gathered is kept for backward",
    named.TIED: "tied parameters are gathered at each of their uses",
    named.RELEASED: "some parameters are gathered more than twice",
    named.SPLIT: "the other tensor-parallel ranks hold part of the parameters",
    named.ACTIVATIONS: "tensor parallelism all-reduces activations",
    named.RECOMPUTED: "recomputed activations are all-reduced again",
    named.REPLICATED: "the replicas all-reduce gradients",
    named.BUFFERS: "buffers are broadcast before forward",
    named.IGNORED: "ignored parameters are not sent",
    named.ROOT_KEPT: "the root unit is not gathered again",
    named.UNITS_KEPT: "units kept gathered are not gathered again",
    named.NO_BACKWARD: "units before all that is trained have no backward to be gathered for",
    named.FROZEN: "frozen parameters are not reduced",
    named.FROZEN_UNSENT: "frozen parameters are not sent",
    named.NO_GRADIENT: "some parameters got no gradient",
    PADDING: "dim 0 is padded to a multiple of the ranks",
    named.ALIGNMENT: "the flat parameters are padded",
    named.AS_BYTES: "mixed types are gathered as bytes",
    named.MICRO_BATCHES: "every further micro-batch communicates anew",
    named.ALL_REDUCE: ("it all-reduces gradients (2Ψ) where the ZeRO paper reduce-scatters them (Ψ)"),
    named.USED: "it looks for unused parameters",
    named.UNUSED: "some units did not run",
    named.OVERFLOW: "it checks for overflow",
    named.NORM: "it sums the gradient norm",
    LOOPS: "the loop sends collectives of its own",
    named.SINGLE: "a group of one rank has nobody to send to",
    named.SINGLE_GATHER: "a group of one rank has nothing to gather",
}

# A term below this part of Ψ is not worth a clause: two decimals would show it as nothing.
_WORTH_SAYING = 0.005


def sentences(run: Run) -> list[str]:
    """Sentences about a run, one an entry: volume, exposed time, memory, what is missing.

    Of a run without communication the first ones are on how busy its devices were, and with what.

    Numbers of time are means over the complete steps of all ranks; a volume that is not the same in all of them is
    given as a range.
    """
    first = (
        [busy(run), longest(run), no_communication(run)]
        if is_without_communication(run)
        else [pipelined(run), *_volume_and_time(run)]
    )
    every = [
        *first,
        _memory(run),
        _growth(run),
        _overhead(run),
        *caveats(run),
    ]
    return [sentence for sentence in every if sentence]


def _volume_and_time(run: Run) -> list[str | None]:
    """The sentences on volume and on exposed time, the one that matters more first."""
    volume = [_volume(run), loops_own(run), _backend(run), _coverage(run)]
    time = exposed(run)
    ordered = [time, *volume] if time is not None and comes_first(run) else [*volume, time]
    return [disagreement(run), *ordered]


def _volume(run: Run) -> str | None:
    if run.collectives.is_empty():
        return "No collective was found, so there is no volume to account for."
    walk = _known_steps(run.table("ledger"))
    measured = walk.filter(pl.col("term") == MEASURED)["psi"].drop_nulls()
    if measured.is_empty():
        return _bytes_moved(run)
    low, high = number(measured.min()), number(measured.max())
    moved = f"{low:.2f}Ψ" if f"{low:.2f}" == f"{high:.2f}" else f"{low:.2f}Ψ to {high:.2f}Ψ"
    return f"{_subject(run)} moved {moved} a step{_difference(run, walk, moved)}; {_hidden(run)}."


def _difference(run: Run, walk: pl.DataFrame, moved: str) -> str:
    """Measured volume compared with the theory, with the reasons worth naming, as part of a sentence."""
    psi: dict[str, float | None] = dict(_telling_step(walk).select("term", "psi").iter_rows())
    theory, rest = psi.pop(named.THEORY, None), psi.pop(UNEXPLAINED, None)
    total = psi.pop(MEASURED, None)
    if theory is None:
        return "; what it should move is unknown"
    if total is None or rest is None:
        return f" at least; how that stands to {theory:.0f}Ψ is unknown, as not all sizes and terms are known"
    # Terms of a plan that the trace does not follow are reasons for nothing.
    if abs(rest) < _WORTH_SAYING and not agrees(run):
        return f", which is the plan's total and not its parts ({theory:.0f}Ψ in the closed form)"
    return _reasons(theory, total, rest, psi, moved)


def _reasons(theory: float, total: float, rest: float, psi: dict[str, float | None], moved: str) -> str:
    """The difference of a step all of which is known, by the terms `psi`."""
    gap = total - theory
    named = {term: part for term, part in psi.items() if part is not None and abs(part) >= _WORTH_SAYING}
    clauses = _clauses({term: part for term, part in named.items() if part * gap > 0 or abs(gap) < _WORTH_SAYING})
    against = _clauses({term: part for term, part in named.items() if part * gap < 0 and abs(gap) >= _WORTH_SAYING})
    if abs(rest) >= _WORTH_SAYING:
        return f", where its plan says {total - rest:.2f}Ψ: {rest:+.2f}Ψ stay unexplained"
    if not clauses:
        return ", as the closed form says" if abs(gap) < _WORTH_SAYING else f", not {theory:.0f}Ψ"
    if abs(gap) < _WORTH_SAYING:
        return f", which is {theory:.0f}Ψ although {clauses}"
    because = f"{clauses}, although {against}" if against else clauses
    if gap > 0 and moved.endswith(".00Ψ"):
        return f", not {theory:.0f}Ψ: {because}"
    return f", {abs(gap):.2f}Ψ {'more' if gap > 0 else 'less'} than {theory:.0f}Ψ because {because}"


def _clauses(terms: dict[str, float]) -> str:
    """The reasons of these terms, largest first."""
    return " and ".join(REASONS.get(term, term) for term in sorted(terms, key=lambda term: -abs(terms[term])))


def _known_steps(walk: pl.DataFrame) -> pl.DataFrame:
    """The walks of the steps all of whose sizes are known; all walks where there is no such step."""
    known = walk.filter(pl.col("term") == MEASURED, pl.col("coverage") == 1.0).select("rank", "step")
    return walk.join(known, on=["rank", "step"], how="semi") if known.height else walk


def _telling_step(walk: pl.DataFrame) -> pl.DataFrame:
    """The walk of the step that is explained worst: what holds of it holds of all."""
    unknown_first = pl.col("psi").abs().fill_null(float("inf"))
    worst = walk.filter(pl.col("term") == UNEXPLAINED).sort(unknown_first, descending=True, maintain_order=True)
    return walk.join(worst.select("rank", "step").head(1), on=["rank", "step"], how="semi", nulls_equal=True)


def _bytes_moved(run: Run) -> str:
    """Volume of a run without Ψ: bytes by kind, on each rank, or summed over all where they differ."""
    of_ranks = run.collectives.group_by("rank", "kind").agg(pl.len().alias("calls"), known_sum("payload_bytes"))
    each = of_ranks.group_by("kind", "calls", "payload_bytes").len()["len"] == run.collectives["rank"].n_unique()
    sums = (pl.col("calls").sum(), known_sum("payload_bytes"))
    kinds = (
        of_ranks.group_by("kind")
        .agg(pl.col("calls", "payload_bytes").first() if each.all() else sums)
        .sort("payload_bytes", "kind", descending=[True, False], nulls_last=True)
    )
    parts = [
        f"{plain(kind or 'unnamed')} {'of unknown size' if held is None else size(held)} in {counted(calls, 'call')}"
        for kind, calls, held in kinds.iter_rows()
    ]
    who = "Each rank" if each.all() else f"The {counted(run.collectives['rank'].n_unique(), 'rank')} together"
    return f"{who} moved, in {_steps(run)}: {', '.join(parts)}; {_hidden(run)}."


def _steps(run: Run) -> str:
    numbers = run.steps["step"].drop_nulls().n_unique()
    return "the whole trace" if numbers == 0 else "one step" if numbers == 1 else f"{numbers} steps together"


def _hidden(run: Run) -> str:
    """The hidden share of all communication time."""
    table = of_devices(run, of_complete_steps(run, run.table("overlap", by=("rank", "step", "device"))))
    if not number(table["comm_ns"].sum()):
        return "none of it was seen running (no communication kernels: was the device's activity recorded?)"
    return f"{by_device(run, table, _hidden_share)} of its time was hidden under compute"


def _hidden_share(table: pl.DataFrame) -> tuple[float, str] | None:
    comm, hidden = number(table["comm_ns"].sum()), number(table["overlapped_ns"].sum())
    return (hidden / comm, share(hidden / comm)) if comm else None


def _backend(run: Run) -> str | None:
    """That the backend did something else than it was asked for."""
    table = run.table("backend").filter(pl.col("kind") != pl.col("backend_kind"))
    swaps = table.select("kind", "backend_kind").unique().sort("kind", "backend_kind")
    if swaps.is_empty():
        return None
    name = plain(run.manifest.backend) if run.manifest and run.manifest.backend else "The backend"
    what = " and ".join(f"{plain(kind)} as {plain(did)}" for kind, did in swaps.iter_rows())
    moved = of_complete_steps(run, run.table("totals"))["backend_psi"].drop_nulls()
    extra = f", so {number(moved.mean()):.2f}Ψ a step really crossed" if moved.len() else ""
    return f"{name} ran {what}{extra}."


def _coverage(run: Run) -> str | None:
    total = run.collectives.height
    known = run.collectives["payload_bytes"].count()
    if known == total:
        return None
    if not known:
        return f"The sizes of all {total} collectives are unknown: only their durations can be told."
    return f"Sizes are known for {known} of {total} collectives, so totals are lower bounds."


def _memory(run: Run) -> str | None:
    """The highest point of the curve, what it was made of, and how it stands to the model states."""
    top = run.table("peak").filter(pl.col("category") != RESERVED)
    if top.is_empty():
        return None
    totals = top.group_by("rank", "device").agg(pl.col("bytes").sum()).sort("bytes", "rank")
    rank, device, total = totals.row(-1)
    parts = top.filter((pl.col("rank") == rank) & (pl.col("device") == device)).sort("bytes", descending=True)
    largest, held = parts.select("category", "bytes").row(0)
    is_least = is_lower_bound(run, rank, device)
    told = f"held at least {size(total)} at its peak" if is_least else f"peaked at {size(total)}"
    sentence = f"Memory {told} on rank {rank}, the largest part {_words(largest)} ({size(held)})"
    theory = run.table("model-states").filter((pl.col("rank") == rank) & (pl.col("component") == "total"))
    if theory.is_empty():
        return f"{sentence}; its model states are unknown."
    least = theory["theory_bytes"][0]
    side = "above" if total >= least else "below"
    return f"{sentence}, {size(abs(total - least))} {side} the {size(least)} of model states in the closed form."


def _growth(run: Run) -> str | None:
    """What every step leaves behind on the rank on which that is most, and where most of it is made."""
    left = run.table("growth")
    if left.is_empty():
        return None
    totals = left.group_by("rank", "device").agg(pl.col("bytes_per_step").sum()).sort("bytes_per_step", "rank")
    rank, device, total = totals.row(-1)
    most = left.filter((pl.col("rank") == rank) & (pl.col("device") == device)).row(0, named=True)
    layer = most["layer"]
    where = "in a layer that is not known" if layer is None else f"in {plain(layer) or 'the root'}"
    by = "" if most["operator"] is None else f" by {plain(most['operator'])}"
    part = "all" if most["bytes_per_step"] == total else size(most["bytes_per_step"])
    return (
        f"Each of {most['num_steps']} steps leaves {size(total)} behind on rank {rank} that is still there when the "
        f"next one ends, {part} of it made {where}{by}."
    )


def _overhead(run: Run) -> str | None:
    ratio = run.manifest.step_times.overhead_ratio if run.manifest else None
    if ratio is None or ratio < 1.05:
        return None
    return f"Recording made steps {100 * (ratio - 1):.0f} % longer, so read times as shares, not as speeds."


def _subject(run: Run) -> str:
    strategy = run.manifest.strategy if run.manifest else None
    return "The run" if strategy in (None, "unknown") else plain(title(strategy))


def _words(category: str) -> str:
    return plain(category).replace("_", " ")
