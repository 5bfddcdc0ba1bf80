"""The few numbers of a run that answer the first questions, side by side for several runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from tracekit import theory
from tracekit.export.terminal import ABSENT, plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from tracekit.cli.demo import Losses
    from tracekit.model.run import Run


@dataclass(frozen=True)
class Summary:
    """Means over the complete steps of all ranks; null where unknown. Volumes are multiples of Ψ."""

    name: str
    num_ranks: int
    num_steps: int
    psi: int | None
    sent_psi: float | None
    theory_psi: int | None
    hidden_ratio: float | None
    step_ns: float | None
    exposed_comm_ns: float | None
    peak_bytes: int | None


def summarise(run: Run) -> Summary:
    """The summary of a run, from the tables that `show` prints."""
    from analysis.breakdown import breakdown
    from analysis.memory import timeline
    from analysis.overlap import overlap
    from analysis.volume import totals

    complete = run.steps.filter("complete", pl.col("step").is_not_null()).select("rank", "step").unique()

    def of_complete_steps(frame: pl.DataFrame) -> pl.DataFrame:
        return frame.join(complete, on=["rank", "step"], how="semi")

    times = of_complete_steps(breakdown(run))
    hidden = of_complete_steps(overlap(run, by=("rank", "step"))).select(pl.col("overlapped_ns", "comm_ns").sum())
    overlapped_ns, comm_ns = hidden.row(0)
    stage = theory.strategy_stage(run.manifest.strategy) if run.manifest else None
    held_bytes = timeline(run)["allocated_bytes"].drop_nulls()
    return Summary(
        name=run.name,
        num_ranks=run.ranks["rank"].n_unique(),
        num_steps=complete["step"].n_unique(),
        psi=run.psi,
        sent_psi=_mean(of_complete_steps(totals(run)), "measured_psi"),
        theory_psi=None if stage is None else theory.stage_passes(stage),
        hidden_ratio=overlapped_ns / comm_ns if comm_ns else None,
        step_ns=_mean(times, "step_ns"),
        exposed_comm_ns=_mean(times, "exposed_comm_ns"),
        peak_bytes=None if held_bytes.is_empty() else int(held_bytes.item(held_bytes.arg_max())),
    )


def draw(summaries: Sequence[Summary], losses: Sequence[Losses | None], console: Console) -> None:
    """Prints a row a question and a column a run."""
    from rich.table import Table
    from rich.text import Text

    table = Table()
    table.add_column("")
    for summary in summaries:
        table.add_column(Text(plain(summary.name)), justify="right")
    table.add_row("loss, first to last step", *(_loss(pair) for pair in losses))
    for asked, field, scale, form in _QUESTIONS:
        table.add_row(asked, *(_answer(summary, field, scale, form) for summary in summaries))
    console.print(table)
    first = summaries[0]
    console.print(
        Text(f"means over {first.num_steps} recorded steps of {first.num_ranks} ranks", style="dim"), soft_wrap=True
    )


_QUESTIONS: tuple[tuple[str, str, float, str], ...] = (
    # what is asked, the field that answers, what to multiply it by, how to write it
    ("parameters, Ψ", "psi", 1, "{:,.0f}"),
    ("sent in a step", "sent_psi", 1, "{:.3f} Ψ"),
    ("what the textbook says", "theory_psi", 1, "{:.0f} Ψ"),
    ("hidden behind compute", "hidden_ratio", 100, "{:.0f} % of its time"),
    ("exposed communication", "exposed_comm_ns", 1e-6, "{:.1f} ms"),
    ("time of a step", "step_ns", 1e-6, "{:.1f} ms"),
    ("peak memory of a rank", "peak_bytes", 2**-20, "{:.1f} MiB"),
)


def _answer(summary: Summary, field: str, scale: float, form: str) -> str:
    value = getattr(summary, field)
    return ABSENT if value is None else form.format(value * scale)


def _loss(pair: Losses | None) -> str:
    return ABSENT if pair is None else f"{pair.first:.2f} → {pair.last:.2f}"


def _mean(frame: pl.DataFrame, column: str) -> float | None:
    """The mean of the known values; null where there are none."""
    known = frame[column].drop_nulls()
    return None if known.is_empty() else float(known.sum()) / known.len()
