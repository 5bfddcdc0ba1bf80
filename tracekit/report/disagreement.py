"""Sentences on what the plan and the trace do not agree on, although their totals may: kinds, bytes, units."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from tracekit.analyzers.complete_steps import complete_steps
from tracekit.analyzers.expectation import expectation
from tracekit.analyzers.ledger import LOOPS, UNEXPLAINED
from tracekit.analyzers.loop_calls import loop_calls
from tracekit.analyzers.recognition import in_words, looks_like
from tracekit.layer_names import ROOT
from tracekit.text import plain
from tracekit.units import counted, size

if TYPE_CHECKING:
    from tracekit.manifest import Manifest
    from tracekit.model.run import Run

# Of units that differ so many are named; the ones that differ most come first.
_NAMED = 3
_VERBS = {"all_gather": "Gathered", "reduce_scatter": "Reduced"}


def disagreement(run: Run) -> str | None:
    """What of a step's volume no term explains: by kind, in bytes, or by unit; None where all is explained.

    A total in which kinds make up for one another is a disagreement all the same, and is said so.
    """
    if run.manifest is None:
        return None
    kinds = _unexplained(run, ("kind", "axis"))
    if kinds.is_empty():
        return None
    elements = kinds.filter(pl.col("numel") != 0)
    if elements.is_empty():
        return _bytes(run, kinds)
    told = [_of_kind(row) for row in elements.sort(pl.col("numel").abs(), "kind", descending=[True, False]).to_dicts()]
    units = _units(run)
    return " ".join(
        part
        for part in (
            f"The plan and the trace disagree: {', '.join(told)}{_looks(run)}.",
            units and f"{units}.",
        )
        if part
    )


def agrees(run: Run) -> bool:
    """Whether no element of any complete step is unexplained, by kind and axis."""
    return run.manifest is None or (_unexplained(run, ("kind", "axis"))["numel"].fill_null(0) == 0).all()


def loops_own(run: Run) -> str | None:
    """What the loop sends by itself in a step; None where nothing is known of that."""
    if run.manifest is None or not (run.table("ledger")["term"] == LOOPS).any():
        return None
    steps = complete_steps(run)
    calls = loop_calls(run, expectation(run), steps, ("kind",))
    each = calls.group_by("kind").agg(pl.col("num").sum()).sort("num", "kind", descending=[True, False])
    named = [f"{plain(kind)} {_number(num / max(steps.height, 1))}" for kind, num in each.iter_rows()]
    return (
        f"Beside the strategy the loop itself sends short collectives outside of forward and backward, a step: "
        f"{', '.join(named)} (metrics, losses, norms)."
    )


def _unexplained(run: Run, by: tuple[str, ...]) -> pl.DataFrame:
    """The groups of which something is unexplained in some step, by the step that is explained worst."""
    rest = run.table("ledger", by=by).filter(pl.col("term") == UNEXPLAINED)
    off = rest.filter((pl.col("numel").fill_null(0) != 0) | (pl.col("payload_bytes").fill_null(0) != 0))
    worst = off.sort(pl.col("numel").abs(), pl.col("payload_bytes").abs(), descending=True, nulls_last=True)
    return worst.unique(list(by), keep="first", maintain_order=True)


def _of_kind(row: dict[str, Any]) -> str:
    kind, numel = row["kind"], row["numel"]
    axis = f" over {plain(row['axis'])}" if row["axis"] else ""
    side = "more than planned" if numel > 0 else "less than planned"
    return f"{plain(kind or 'unnamed')}{axis} {abs(row['psi']):.2f}Ψ {side}" if row["psi"] is not None else (
        f"{plain(kind or 'unnamed')}{axis} {abs(numel):,} elements {side}"
    )  # fmt: skip


def _bytes(run: Run, kinds: pl.DataFrame) -> str | None:
    off = kinds.filter(pl.col("payload_bytes").fill_null(0) != 0).sort(pl.col("payload_bytes").abs(), descending=True)
    told = [
        f"{plain(kind or 'unnamed')} {size(abs(held))} {'more' if held > 0 else 'less'}{_types(run, kind)}"
        for kind, held in off.select("kind", "payload_bytes").iter_rows()
    ]
    return (
        f"The elements are as planned, the bytes are not: {', '.join(told)} a step. Something is sent in another type "
        "than the manifest tells (a communication hook, or a precision of single units?)."
    )


def _types(run: Run, kind: str) -> str:
    """The types in which a kind is sent and not planned, and those planned and not sent; empty where all are alike."""
    whole = run.collectives.join(complete_steps(run), on=["rank", "step"], how="semi")
    sent, planned = (
        set(calls.filter(pl.col("kind") == kind)["dtype"].drop_nulls()) for calls in (whole, expectation(run).calls)
    )
    if not sent - planned:
        return ""
    instead = f" and not as {' or '.join(sorted(planned - sent))}" if planned - sent else ""
    return f" (sent as {' and '.join(plain(name) for name in sorted(sent - planned))}{instead})"


def _looks(run: Run) -> str:
    """What the trace looks like, where that is another strategy than the manifest names."""
    names = looks_like(run)
    if not names or run.manifest is None or run.manifest.strategy in names:
        return ""
    return f"; it looks like {in_words(names)}"


def _units(run: Run) -> str | None:
    """Units that are gathered, or reduced, more or less often than planned, with what may be why."""
    if run.manifest is None:
        return None
    told = [_counts(run, run.manifest, kind, verb) for kind, verb in _VERBS.items()]
    return ". ".join(part for part in told if part) or None


def _counts(run: Run, manifest: Manifest, kind: str, verb: str) -> str | None:
    """Units of which a step has more calls of a kind than planned, else those with fewer; neighbours are one entry."""
    calls = (pl.col("kind") == kind) & pl.col("layer").is_not_null()
    planned = expectation(run).calls.filter(calls).group_by("layer", maintain_order=True).agg(pl.len().alias("planned"))
    steps = complete_steps(run)
    each = steps.join(planned, how="cross").join(
        run.collectives.filter(calls).group_by("rank", "step", "layer").agg(pl.len().alias("times")),
        on=["rank", "step", "layer"],
        how="left",
    )
    counts = each.group_by("layer", "planned", maintain_order=True).agg(
        pl.col("times").fill_null(0).max().alias("most"), pl.col("times").fill_null(0).min().alias("least")
    )
    more, fewer = counts.filter(pl.col("most") > pl.col("planned")), counts.filter(pl.col("least") < pl.col("planned"))
    off, column = (more, "most") if more.height else (fewer, "least")
    if off.is_empty():
        return None
    order = {unit.name: place for place, unit in enumerate(manifest.units)}
    rows = sorted(off.select("layer", column, "planned").rows(), key=lambda row: order.get(row[0], len(order)))
    runs = _neighbours(rows, order)
    runs.sort(key=lambda rows: rows[0][2] - rows[0][1] if more.height else rows[0][1] - rows[0][2])
    named = [f"{' to '.join(_ends(rows))} {rows[0][1]} times, planned {rows[0][2]}" for rows in runs[:_NAMED]]
    left = sum(len(rows) for rows in runs[_NAMED:])
    others = f", and {counted(left, 'other unit')}" if left else ""
    why = _why_more(manifest) if more.height else _why_fewer(manifest, kind)
    return f"{verb} {'; '.join(named)}{others}: {why}"


def _neighbours(rows: list[tuple[str, int, int]], order: dict[str, int]) -> list[list[tuple[str, int, int]]]:
    """The rows of units cut where the counts change or the next unit is not the one after."""
    runs: list[list[tuple[str, int, int]]] = []
    for row in rows:
        last = runs[-1][-1] if runs else None
        next_to = last is not None and order.get(row[0], -1) == order.get(last[0], -1) + 1
        if last is not None and next_to and row[1:] == last[1:]:
            runs[-1].append(row)
        else:
            runs.append([row])
    return runs


def _ends(rows: list[tuple[str, int, int]]) -> list[str]:
    return [plain(name or ROOT) for name in dict.fromkeys((rows[0][0], rows[-1][0]))]


def _why_more(manifest: Manifest) -> str:
    seen = sorted({step.micro_batches for step in manifest.observed})
    if seen and seen != [manifest.micro_batches]:
        number = counted(seen[0], "forward") if len(seen) == 1 else f"{' or '.join(map(str, seen))} forwards"
        return (
            f"the recorder saw {number} with a backward in a step where the plan has {manifest.micro_batches}: tell it "
            "micro_batches"
        )
    if any(step.other_forwards for step in manifest.observed):
        return "the recorder saw forwards without a backward in the step, as an evaluation makes"
    return "a second forward in the step, such as an evaluation, or micro-batches that the recorder was not told of?"


def _why_fewer(manifest: Manifest, kind: str) -> str:
    if kind == "reduce_scatter" and manifest.micro_batches > 1:
        return "micro-batches whose gradients are not reduced (set_requires_gradient_sync, no_sync)?"
    return "units that did not run in the step, or were kept gathered (reshard_after_forward)?"


def _number(value: float) -> str:
    return f"{value:.0f}" if value == round(value) else f"{value:.1f}"
