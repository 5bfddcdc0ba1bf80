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
    from tracekit.model.run import Run

# Of units that differ so many are named; the ones that differ most come first.
_NAMED = 3


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
    """Units that are gathered more often than planned, with what the recorder saw that may be why."""
    manifest = run.manifest
    if manifest is None:
        return None
    gathers = (pl.col("kind") == "all_gather") & pl.col("layer").is_not_null()
    planned = expectation(run).calls.filter(gathers).group_by("layer").agg(pl.len().alias("planned"))
    steps = complete_steps(run)
    found = (
        run.collectives.filter(gathers)
        .join(steps, on=["rank", "step"], how="semi")
        .group_by("rank", "step", "layer")
        .agg(pl.len().alias("times"))
        .group_by("layer")
        .agg(pl.col("times").max())
    )
    both = found.join(planned, on="layer", how="inner", nulls_equal=True).filter(pl.col("times") > pl.col("planned"))
    if both.is_empty():
        return None
    worst = both.sort(pl.col("times") - pl.col("planned"), "layer", descending=[True, False])
    named = [
        f"{plain(layer or ROOT)} {times} times, planned {expected}"
        for layer, times, expected in worst.head(_NAMED).select("layer", "times", "planned").iter_rows()
    ]
    more = f", and {counted(worst.height - _NAMED, 'other unit')}" if worst.height > _NAMED else ""
    why = (
        "the recorder saw forwards without a backward in the step, as an evaluation makes"
        if any(step.other_forwards for step in manifest.observed)
        else "a second forward in the step, such as an evaluation, or micro-batches that the recorder was not told of?"
    )
    return f"Gathered {'; '.join(named)}{more}: {why}"


def _number(value: float) -> str:
    return f"{value:.0f}" if value == round(value) else f"{value:.1f}"
