"""Sections of the page, each with one question and a panel a run, with figures and tables in it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tracekit.report import wording
from tracekit.report.busy import is_without_communication
from tracekit.report.drawing import chart_rows, chart_specs
from tracekit.report.drawing.charts import CHARTS
from tracekit.report.page_tables import Table, first_rows
from tracekit.text import plain_line

if TYPE_CHECKING:
    from collections.abc import Mapping

    import polars as pl

    from tracekit.model.run import Run
    from tracekit.report.drawing.vega_lite import Spec


@dataclass(frozen=True)
class Analysed:
    """A run with what the report says of it: sentences, description, summary and every table by its name."""

    run: Run
    name: str
    description: Mapping[str, Any]
    summary: Mapping[str, float | None]
    sentences: list[str]
    tables: Mapping[str, pl.DataFrame]


@dataclass(frozen=True)
class Figure:
    """A chart as JSON, or the sentence that stands in its place."""

    key: str
    label: str
    spec: str = ""
    empty: str = ""
    note: str = ""
    caption: str = ""
    renderer: str = "svg"


@dataclass(frozen=True)
class Panel:
    """Content of a section for one run, or of all (no title)."""

    title: str
    figures: list[Figure] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)


@dataclass(frozen=True)
class Section:
    """One question, with a panel a run."""

    key: str
    title: str
    question: str
    panels: list[Panel]

    @property
    def is_empty(self) -> bool:
        """Whether no panel has a chart or a row of a table."""
        return not any(
            any(figure.spec for figure in panel.figures) or any(table.rows for table in panel.tables)
            for panel in self.panels
        )


@dataclass(frozen=True)
class Outline:
    """Parts of a section: names of charts, and names of tables with their titles."""

    key: str
    title: str
    question: str
    charts: tuple[str, ...]
    tables: Mapping[str, str]
    needs_communication: bool = False


def sections(runs: list[Analysed]) -> list[Section]:
    """The sections of the page in reading order; with several runs, they come side by side first."""
    asked = all(name in run.tables for run in runs for name in HTA.tables)
    hta = _section(runs, HTA) if asked else Section(HTA.key, HTA.title, _WITHOUT_HTA, [])
    quiet = all(is_without_communication(run.run) for run in runs)
    every = [(_section(runs, outline), quiet and outline.needs_communication) for outline in OUTLINES]
    silent = [section for section, folds in every if folds or section.is_empty]
    folded = [_folded(silent)] if silent else []
    return [*_compared(runs), *(section for section, _ in every if section not in silent), *folded, hta]


def _folded(silent: list[Section]) -> Section:
    """The sections in which there is nothing to see, as one line."""
    titles = ", ".join(f"“{section.title}”" for section in silent)
    return Section("nothing", "Nothing to show", f"The trace holds nothing for {titles}.", [])


def file_tables(run: Analysed) -> list[Table]:
    """The tables on how a run was read."""
    return [first_rows(run.tables[name], title) for name, title in _FILES.items()]


def chart_json(spec: Spec) -> str:
    """A chart as JSON that is safe inside a script element: no tag and no line separator can occur in it."""
    text = json.dumps(_fit_to_print(spec), sort_keys=True, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return trusted(text)


def _fit_to_print(node: Any) -> Any:
    """The chart with what does not print in its text spelt out, as it is in its data: labels are names from traces."""
    if isinstance(node, dict):
        return {key: value if key == "data" else _fit_to_print(value) for key, value in node.items()}
    if isinstance(node, list):
        return [_fit_to_print(value) for value in node]
    return plain_line(node) if isinstance(node, str) else node


def trusted(text: str) -> Any:
    """Text of our own that must not be escaped again."""
    from markupsafe import Markup

    return Markup(text)  # noqa: S704 - never given anything that a trace holds, but what a template escaped


def _section(runs: list[Analysed], outline: Outline) -> Section:
    charts = [_figures(runs, name) for name in outline.charts]
    panels: list[Panel] = []
    for i, run in enumerate(runs):
        figures = [figure for of_runs in charts if (figure := of_runs[i])]
        tables = [
            first_rows(run.tables[name], title)
            for name, title in outline.tables.items()
            if run.tables[name].height or name not in _ONLY_WITH_ROWS
        ]
        # A section without charts shows something before it is clicked.
        opened = [replace(tables[0], open=True), *tables[1:]] if not charts else tables
        panels.append(Panel(run.name, figures, opened))
    return Section(outline.key, outline.title, outline.question, panels)


def _figures(runs: list[Analysed], name: str) -> list[Figure | None]:
    """The chart of each run, all on one scale; the sentence for none, or nothing, where a run has no rows for it."""
    chart = CHARTS[name]
    every = [chart.rows(run.run) for run in runs]
    top = chart.top(every)
    figures: list[Figure | None] = []
    for i, drawn in enumerate(every):
        key = f"{name}-{i}"
        if drawn.rows.is_empty():
            figures.append(Figure(key, chart.label, empty=chart.empty) if chart.empty else None)
            continue
        spec = chart_json(chart.draw(drawn, top))
        figures.append(Figure(key, chart.label, spec, note=drawn.note, caption=chart.caption, renderer=chart.renderer))
    return figures


def _compared(runs: list[Analysed]) -> list[Section]:
    """The runs beside each other, where there are several."""
    if len(runs) < 2:
        return []
    rows = chart_rows.comparison_rows([run.run for run in runs]).rows
    key, label = "comparison-0", "The mean step of each run"
    if rows.is_empty():
        figure = Figure(key, label, empty="None of the runs has a complete step.")
    else:
        figure = Figure(key, label, chart_json(chart_specs.comparison(rows)))
    measures = wording.comparison([(run.name, run.summary) for run in runs])
    header = [{"header": text, "numeric": i > 0} for i, text in enumerate(measures[0])]
    table = Table("Side by side", header, measures[1:], open=True)
    question = "The mean complete step of each run, over its ranks."
    return [Section("compared", "Side by side", question, [Panel("", [figure], [table])])]


OUTLINES = [
    Outline(
        "volume",
        "How much moved",
        "Elements a step sends, times how often they cross, over the number of parameters Ψ: what the ZeRO paper's "
        "closed form says, what this strategy has to send for this model, and what the trace shows.",
        ("volume", "ledger"),
        {
            "ledger": "From theory to the trace, term by term",
            "volume": "Volume of every rank, step and kind",
            "backend": "What the backend ran",
        },
        needs_communication=True,
    ),
    Outline(
        "overlap",
        "What was hidden",
        "Communication that ran under compute costs nothing; the exposed rest is what a step waits for. What runs "
        "at the same time counts in each of its rows, and in the step that launched it, even where it ended later. "
        "Click a bar to follow its layer through the page.",
        ("overlap",),
        {"overlap": "Overlap of every rank, step, layer, phase and kind", "hidden-by": "What hid each collective"},
        needs_communication=True,
    ),
    Outline(
        "exposure",
        "Why it was exposed",
        "Every exposed nanosecond has one cause, from the evidence in the trace; hover for the knob that changes it.",
        ("exposure",),
        {"exposure": "Causes by rank, step, layer and phase", "ideal": "How short a step could be"},
        needs_communication=True,
    ),
    Outline(
        "waiting",
        "Who waited for whom",
        "A collective ends on all of its ranks together: the rank that came last shows the transfer, and what the "
        "others spent beyond it was waiting.",
        ("waiting",),
        {
            "stragglers": "Who came last",
            "skew": "Every collective on every rank",
            "bandwidth": "Bandwidth from transfer time",
            "link": "Transfer time by size, beside its fit",
            "groups": "Process groups",
            "concurrency": "In flight at the same time",
            "mismatches": "Collectives that not every rank has",
            "clocks": "Clocks of the hosts",
        },
        needs_communication=True,
    ),
    Outline(
        "timeline",
        "One step",
        "When it happened. Drag over the upper strip to zoom; hover for the layer.",
        ("timeline",),
        {"steps": "Steps"},
    ),
    Outline(
        "breakdown",
        "Where the time went",
        "The parts of a step add up to its length. Time counts where it passed: what a step launched and its device "
        "did after the next one had begun is the next one's. Click a bar to see its rank elsewhere.",
        ("breakdown", "pipeline", "idle", "kernels"),
        {
            "breakdown": "Breakdown of every rank and step",
            "pipeline": "Stages of the pipeline by micro-batch",
            "idle": "Idle time by what the device waited for",
            "kernels": "The work that took longest",
        },
    ),
    Outline(
        "memory",
        "Where the memory went",
        "What a rank held over time, beside what the closed form of its ZeRO stage asks for: parameters, gradients and "
        "optimizer state at once. Between steps gradients may be gone, so the curve can dip below it.",
        ("memory", "memory-categories", "peak"),
        {
            "model-states": "The model states, part by part",
            "peak": "The peak, part by part",
            "memory-ledger": "From the closed form to the peak",
            "growth": "What every step leaves behind",
            "memory": "Every change",
        },
    ),
]
"""The sections of the page, in reading order."""

HTA = Outline(
    "hta",
    "What HTA says",
    "The same trace through HolisticTraceAnalysis, as a second opinion. To HTA, waits are not idle time.",
    (),
    {
        "hta-breakdown": "Temporal breakdown",
        "hta-idle": "Idle time by cause",
        "hta-kernels": "Longest-running work",
    },
)
"""The section that is made only when asked for: HTA takes as long as all the rest."""
# Tables about what few runs have: others are shown empty, which is an answer, too.
_ONLY_WITH_ROWS = ("pipeline",)
_WITHOUT_HTA = (
    "HolisticTraceAnalysis' view of the same trace takes as long as all the rest: tracekit report --hta adds it."
)

_FILES = {
    "ranks": "Files and ranks",
    "repairs": "Repairs",
    "unclassified": "Guesses and unknown rows",
    "collectives": "Every collective",
}
