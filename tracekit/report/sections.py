"""What the page holds: sections, each with one question and a panel a run, with figures and tables in it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import polars as pl

from tracekit.report import chart_rows as frames
from tracekit.report import charts, waterfall
from tracekit.report import timeline as lanes
from tracekit.report import wording as words
from tracekit.text import plain_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tracekit.model.run import Run

MAX_TABLE_ROWS = 200


@dataclass(frozen=True)
class Analysed:
    """A run with what the report says of it: every table by its name, the verdicts, the facts and the summary."""

    run: Run
    name: str
    facts: Mapping[str, Any]
    summary: Mapping[str, float | None]
    verdicts: list[str]
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
class Table:
    """A table as text: columns (header, numeric) and rows of cells."""

    title: str
    columns: list[Any]
    rows: list[tuple[str, ...]]
    note: str = ""
    open: bool = False


@dataclass(frozen=True)
class Panel:
    """What a section says of one run, or of all (no title)."""

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


def sections(runs: list[Analysed]) -> list[Section]:
    """Return the sections of the page in reading order; with several runs, they come side by side first."""
    return [*_compared(runs), *(_section(runs, *parts) for parts in _SECTIONS)]


def file_tables(run: Analysed) -> list[Table]:
    """Return the tables on how a run was read."""
    return [table_of(run, name, title) for name, title in _FILES.items()]


def table_of(run: Analysed, name: str, title: str) -> Table:
    """Return the run's table as text, its first rows where it is long."""
    frame = run.tables[name]
    note = ""
    if frame.height > MAX_TABLE_ROWS:
        note = f"The first {MAX_TABLE_ROWS} of {frame.height:,} rows; report.json has all of them."
    return as_table(frame.head(MAX_TABLE_ROWS), title, note, is_open=name in _OPEN)


def as_table(frame: pl.DataFrame, title: str, note: str = "", *, is_open: bool = False) -> Table:
    """Return a frame as text: units in the headers, unknown as –, what is the same in every row as a note."""
    from tracekit.export.terminal import columns, constant_notes, split_constant

    shown, constant = split_constant(columns(frame), frame.height)
    rows = list(zip(*(column.cells for column in shown), strict=True))
    told = "; ".join(constant_notes(constant))
    notes = [note, told and f"{told[0].upper()}{told[1:]}."]
    return Table(title, shown, rows, " ".join(filter(None, notes)), is_open)


def chart_json(chart: Any) -> str:
    """Return a chart as JSON that is safe inside a script element: no tag and no line separator can occur in it."""
    text = json.dumps(_fit_to_print(chart.to_dict()), sort_keys=True, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return trusted(text)


def _fit_to_print(node: Any) -> Any:
    """The chart with what does not print in its text spelt out, as in its data: labels are names from traces."""
    if isinstance(node, dict):
        return {key: _fit_data(value) if key == "datasets" else _fit_to_print(value) for key, value in node.items()}
    if isinstance(node, list):
        return [_fit_to_print(value) for value in node]
    return plain_line(node) if isinstance(node, str) else node


def _fit_data(datasets: dict[str, Any]) -> dict[str, Any]:
    """Data in rows likewise; what is CSV was made so (:func:`tracekit.report.chart_parts.as_csv`)."""
    return {name: data if isinstance(data, str) else _fit_to_print(data) for name, data in datasets.items()}


def trusted(text: str) -> Any:
    """Text of our own that must not be escaped again."""
    from markupsafe import Markup

    return Markup(text)  # noqa: S704 - never given anything that a trace holds, but what a template escaped


def _volume(runs: list[Analysed]) -> list[list[Figure]]:
    drawn = [frames.volume_rows(run.run) for run in runs]
    empty = "Ψ is unknown without a manifest, so volume cannot be told in multiples of it; the table has bytes."
    top = _highest(each.rows["total_psi"] for each in drawn)
    label = "Volume by source and kind"
    bars = [_figure(f"volume-{i}", label, charts.volume, each, empty, top=top) for i, each in enumerate(drawn)]
    return [list(both) for both in zip(bars, _ledger(runs), strict=True)]


def _ledger(runs: list[Analysed]) -> list[Figure]:
    drawn = [waterfall.rows(run.run) for run in runs]
    empty = "Without Ψ and a strategy that the lesson knows there is no theory from which to walk to the trace."
    top = _highest(each.rows[end] for each in drawn for end in ("from_psi", "to_psi"))
    label = "From theory to the trace"
    return [
        _figure(f"ledger-{i}", label, waterfall.chart, each, empty, caption=label, top=top)
        for i, each in enumerate(drawn)
    ]


def _overlap(runs: list[Analysed]) -> list[list[Figure]]:
    drawn = [frames.overlap_rows(run.run) for run in runs]
    empty = "No communication ran in this trace, so none was hidden or exposed."
    label = "Hidden and exposed time by layer and phase"
    bars = [each.rows.group_by("rank", "row").agg(pl.col("ms").sum()) for each in drawn]
    top = _highest(each["ms"] for each in bars)
    return [[_figure(f"overlap-{i}", label, charts.overlap, each, empty, top=top)] for i, each in enumerate(drawn)]


def _timeline(runs: list[Analysed]) -> list[list[Figure]]:
    empty = "No work was recorded on any device."
    label = "One step as lanes"
    return [
        [_figure(f"timeline-{i}", label, charts.timeline, lanes.timeline_rows(run.run), empty, renderer="canvas")]
        for i, run in enumerate(runs)
    ]


def _breakdown(runs: list[Analysed]) -> list[list[Figure]]:
    drawn = [frames.breakdown_rows(run.run) for run in runs]
    empty = "There are no steps with work to take apart."
    top = _highest(run.tables["breakdown"]["step_ns"] / 1e6 for run in runs)
    label = "Parts of every step"
    return [[_figure(f"breakdown-{i}", label, charts.breakdown, each, empty, top=top)] for i, each in enumerate(drawn)]


def _blame(runs: list[Analysed]) -> list[list[Figure]]:
    drawn = [frames.blame_rows(run.run) for run in runs]
    empty = "No communication was exposed, so there is nothing to blame."
    top = _highest(each.rows.group_by("cause").agg(pl.col("ms").sum())["ms"] for each in drawn)
    label = "Exposed time by cause"
    return [[_figure(f"blame-{i}", label, charts.blame, each, empty, top=top)] for i, each in enumerate(drawn)]


def _waiting(runs: list[Analysed]) -> list[list[Figure]]:
    drawn = [frames.waiting_rows(run.run) for run in runs]
    empty = "Who waited for whom needs the traces of all ranks of a group; they are not all here."
    top = _highest(each.rows.group_by("row").agg(pl.col("ms").sum())["ms"] for each in drawn)
    label = "Transfer and waiting of each rank"
    return [[_figure(f"waiting-{i}", label, charts.waiting, each, empty, top=top)] for i, each in enumerate(drawn)]


def _memory(runs: list[Analysed]) -> list[list[Figure]]:
    curves = [frames.memory_rows(run.run) for run in runs]
    top = _highest(each.peaks["mib"] for each in curves)
    return [_memory_of(i, run, each, top) for i, (run, each) in enumerate(zip(runs, curves, strict=True))]


def _memory_of(number: int, run: Analysed, curves: frames.Curves, top: float | None) -> list[Figure]:
    empty = "The trace has no memory events: record with profile_memory to have the curve."
    if curves.rows.is_empty():
        return [Figure(f"memory-{number}", "Memory over time", empty=empty)]
    curve = charts.memory(curves.rows, curves.floor_mib, curves.peaks, top)
    parts = frames.peak_rows(run.run)
    return [
        Figure(f"memory-{number}", "Memory over time", chart_json(curve), note=curves.note),
        _figure(f"peak-{number}", "Memory at its peak", charts.peak, parts, empty, caption="At the peak"),
    ]


def _hta(runs: list[Analysed]) -> list[list[Figure]]:
    empty = "HTA has nothing to take apart: no work was recorded."
    return [[Figure("", "", empty=empty)] if run.tables["hta-breakdown"].is_empty() else [] for run in runs]


def _highest(columns: Iterable[pl.Series]) -> float | None:
    """The largest value of all columns: the scale that the runs share."""
    values = [value for column in columns if isinstance(value := column.max(), int | float)]
    return float(max(values)) if values else None


def _figure(
    key: str,
    label: str,
    chart: Any,
    drawn: frames.Drawn,
    empty: str,
    *,
    caption: str = "",
    renderer: str = "svg",
    **options: Any,
) -> Figure:
    """The chart of the rows, or the sentence for none."""
    if drawn.rows.is_empty():
        return Figure(key, label, empty=empty)
    spec = chart_json(chart(drawn.rows, **options))
    return Figure(key, label, spec, note=drawn.note, caption=caption, renderer=renderer)


def _section(
    runs: list[Analysed], key: str, title: str, question: str, figures: Any, tables: dict[str, str]
) -> Section:
    panels = [
        Panel(run.name, drawn, [table_of(run, name, text) for name, text in tables.items()])
        for run, drawn in zip(runs, figures(runs), strict=True)
    ]
    return Section(key, title, question, panels)


def _compared(runs: list[Analysed]) -> list[Section]:
    """The runs beside each other, where there are several."""
    if len(runs) < 2:
        return []
    drawn = frames.comparison_rows([run.run for run in runs])
    empty = "None of the runs has a complete step."
    figure = _figure("comparison-0", "The mean step of each run", charts.comparison, drawn, empty)
    rows = words.comparison([(run.name, run.summary) for run in runs])
    header = [{"header": text, "numeric": i > 0} for i, text in enumerate(rows[0])]
    table = Table("Side by side", header, rows[1:], open=True)
    question = "The mean complete step of each run, over its ranks."
    return [Section("compared", "Side by side", question, [Panel("", [figure], [table])])]


# key, title, question, figures, tables
_SECTIONS: list[tuple[Any, ...]] = [
    (
        "volume",
        "How much moved",
        (
            "Elements a step sends, times how often they cross, over the number of parameters Ψ: what the lesson says, "
            "what this strategy has to send for this model, and what the trace shows."
        ),
        _volume,
        {
            "ledger": "From theory to the trace, term by term",
            "volume": "Volume of every rank, step and kind",
            "backend": "What the backend ran",
        },
    ),
    (
        "overlap",
        "What was hidden",
        (
            "Communication that ran under compute costs nothing; the exposed rest is what a step waits for. What runs "
            "at the same time counts in each of its rows. Click a bar to follow its layer through the page."
        ),
        _overlap,
        {"overlap": "Overlap of every rank, step, layer, phase and kind", "hidden-by": "What hid each collective"},
    ),
    (
        "blame",
        "Why it was exposed",
        "Every exposed nanosecond has one cause, from the evidence in the trace; hover for the knob that changes it.",
        _blame,
        {"exposure": "Causes by rank, step, layer and phase", "ideal": "How short a step could be"},
    ),
    (
        "waiting",
        "Who waited for whom",
        (
            "A collective ends on all of its ranks together: the rank that came last shows the transfer, and what the "
            "others spent beyond it was waiting."
        ),
        _waiting,
        {
            "stragglers": "Who came last",
            "skew": "Every collective on every rank",
            "bandwidth": "Bandwidth from transfer time",
            "groups": "Process groups",
            "concurrency": "In flight at the same time",
            "mismatches": "Collectives that not every rank has",
            "clocks": "Clocks of the hosts",
        },
    ),
    (
        "timeline",
        "One step",
        "When it happened. Drag over the upper strip to zoom; hover for the layer.",
        _timeline,
        {"steps": "Steps"},
    ),
    (
        "breakdown",
        "Where the time went",
        "The parts of a step add up to its length. Click a bar to see its rank elsewhere.",
        _breakdown,
        {"breakdown": "Breakdown of every rank and step"},
    ),
    (
        "memory",
        "Where the memory went",
        (
            "What a rank held over time, beside what the formula of its ZeRO stage asks for: parameters, gradients and "
            "optimizer state at once. Between steps gradients may be gone, so the curve can dip below it."
        ),
        _memory,
        {"model-states": "The floor, part by part", "peak": "The peak, part by part", "memory": "Every change"},
    ),
    (
        "hta",
        "What HTA says",
        "The same trace through HolisticTraceAnalysis, as a second opinion. To HTA, waits are not idle time.",
        _hta,
        {
            "hta-breakdown": "Temporal breakdown",
            "hta-idle": "Idle time by cause",
            "hta-kernels": "Longest-running work",
        },
    ),
]
_FILES = {
    "ranks": "Files and ranks",
    "repairs": "Repairs",
    "unclassified": "Guesses and unknown rows",
    "collectives": "Every collective",
}
_OPEN = frozenset({"hta-breakdown"})
