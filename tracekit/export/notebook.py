"""HTML of a run for a notebook: the recording, and the tables by name."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from tracekit import table_registry
from tracekit.text import plain, plain_line

if TYPE_CHECKING:
    from tracekit.model.run import Run


def run_html(run: Run) -> str:
    """One paragraph on the run, then every table with what it answers; names from files are escaped."""
    told = "".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in _lines(run))
    rows = "".join(
        f"<tr><td><code>run[&quot;{escape(table.name)}&quot;]</code></td><td>{escape(table.answers)}</td></tr>"
        for table in table_registry.tables()
    )
    left = ' style="text-align: left"'
    return (
        f"<div><strong>{escape(plain(run.name))}</strong><table{left}>{told}</table>"
        f"<details><summary>tables</summary><table{left}>{rows}</table></details></div>"
    )


def _lines(run: Run) -> list[tuple[str, str]]:
    """Lines about the run: name and value."""
    steps = run.steps.drop_nulls("step")
    num_steps = steps["step"].n_unique()
    cut = num_steps - steps.filter("complete")["step"].n_unique()
    read = run.ranks.drop_nulls("num_events")
    of = f" of {run.world_size:,}" if run.world_size else ""
    lines = [
        ("ranks", f"{read['rank'].n_unique():,}{of}"),
        ("steps", f"{num_steps:,}" + (f", {cut:,} of them incomplete on every rank" if cut else "")),
        ("events", f"{read['num_events'].sum():,}"),
    ]
    if run.manifest is not None:
        lines += [("strategy", plain(run.manifest.strategy)), ("Ψ", f"{run.manifest.psi:,} parameters")]
    if run.repairs.height:
        lines.append(("repairs", f"{run.repairs.height:,}: see run.repairs"))
    return [(name, plain_line(value)) for name, value in lines]
