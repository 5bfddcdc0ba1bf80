"""The few numbers of a run that answer the first questions, a column a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracekit.text import plain
from tracekit.units import ABSENT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console

_QUESTIONS: tuple[tuple[str, str, float, str], ...] = (
    # what is asked, the number that answers (of tracekit.report.description), what to multiply it by, how to write it
    ("parameters, Ψ", "psi", 1, "{:,.0f}"),
    ("sent in a step", "measured_psi", 1, "{:.3f} Ψ"),
    ("what the textbook says", "theory_psi", 1, "{:.0f} Ψ"),
    ("hidden behind compute", "hidden_ratio", 100, "{:.0f} % of its time"),
    ("exposed communication", "exposed_comm_ns", 1e-6, "{:.1f} ms"),
    ("time of a step", "step_ns", 1e-6, "{:.1f} ms"),
    ("peak memory of a rank", "peak_bytes", 2**-20, "{:.1f} MiB"),
)


def draw(runs: Mapping[str, Mapping[str, Any]], losses: Sequence[tuple[float, float] | None], console: Console) -> None:
    """Prints a row a question and a column a run; unknown is –. Losses are those of the first and the last step."""
    from rich.table import Table
    from rich.text import Text

    table = Table()
    table.add_column("a rank, mean over the recorded steps")
    for name in runs:
        table.add_column(Text(plain(name)), justify="right")
    table.add_row(
        "loss, first to last step", *(ABSENT if pair is None else f"{pair[0]:.2f} → {pair[1]:.2f}" for pair in losses)
    )
    for asked, field, scale, form in _QUESTIONS:
        table.add_row(asked, *(_answer(numbers.get(field), scale, form) for numbers in runs.values()))
    console.print(table)


def _answer(value: float | None, scale: float, form: str) -> str:
    return ABSENT if value is None else form.format(value * scale)
