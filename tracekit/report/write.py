"""The report: dashboard, numbers and Perfetto trace of one run, or of several side by side, written as three files."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple

from tracekit import table_registry
from tracekit.errors import UsageError
from tracekit.export.files import replacing
from tracekit.export.perfetto import write_trace
from tracekit.report.description import description, summary
from tracekit.report.drawing.chart_rows import run_names
from tracekit.report.page import dashboard
from tracekit.report.sections import HTA, Analysed
from tracekit.report.sentences import sentences

if TYPE_CHECKING:
    from pathlib import Path
    from typing import BinaryIO

    from tracekit.model.run import Run

FORMAT = 1
"""Of report.json. 1: the first."""

HTML_NAME, JSON_NAME, TRACE_NAME = "report.html", "report.json", "trace.pftrace"


class ReportPaths(NamedTuple):
    """Paths that were written, and the sentences it opens with (of several runs, each begins with the run's name)."""

    html: Path
    json: Path
    trace: Path
    sentences: list[str]


def write_report(runs: list[Run], out: Path, *, force: bool = False, hta: bool = False) -> ReportPaths:
    """Write report.html, report.json and trace.pftrace into the folder `out`; all of them or none.

    report.json is ``{"format": 1, "runs": [{"name", "facts", "summary", "verdicts", "tables": {name:
    rows}}]}``: times in ns and sizes in bytes, whole; null where unknown. Several runs share one trace, a
    process a run and rank. With `hta`, the page and report.json also hold what HTA says.

    Raises:
        UsageError: there is no run, a file exists already and `force` was not given or it cannot be written, or HTA is
            asked for and not installed.
    """
    if not runs:
        raise UsageError("a report needs at least one run: name a folder that holds one")
    paths = [out / name for name in (HTML_NAME, JSON_NAME, TRACE_NAME)]
    with ExitStack() as stack:
        inputs = [path for run in runs for path in run.paths]
        html, numbers, trace = (stack.enter_context(replacing(path, force=force, runs=inputs)) for path in paths)
        analysed = [analyse(run, name, hta=hta) for run, name in zip(runs, run_names(runs), strict=True)]
        html.write_text(dashboard(analysed), encoding="utf-8")
        with numbers.open("wb") as stream:
            write_numbers(analysed, stream)
        write_trace(runs, trace)
    several = len(runs) > 1
    said = [f"{run.name}: {text}" if several else text for run in analysed for text in run.sentences]
    return ReportPaths(paths[0], paths[1], paths[2], said)


def analyse(run: Run, name: str, *, hta: bool = False) -> Analysed:
    """All that a report says of the run; with HTA's tables where `hta` is set."""
    names = [table.name for table in table_registry.TABLES if table.in_report]
    kept = {table: run.table(table) for table in (*names, *(HTA.tables if hta else ()))}
    return Analysed(run, name, description(run), summary(run), sentences(run), kept)


def write_numbers(runs: list[Analysed], stream: BinaryIO) -> None:
    """Write report.json, a row of a table a line."""
    import msgspec

    encode = msgspec.json.Encoder().encode
    stream.write(b'{"format": %d, "runs": [' % FORMAT)
    for number, run in enumerate(runs):
        about: dict[str, Any] = {
            "name": run.name,
            "facts": run.description,
            "summary": run.summary,
            "verdicts": run.sentences,
        }
        stream.write((b",\n" if number else b"\n") + encode(about)[:-1] + b', "tables": {')
        for place, (name, frame) in enumerate(run.tables.items()):
            stream.write((b",\n" if place else b"\n") + encode(name) + b": [")
            lines = enumerate(frame.iter_rows(named=True))
            stream.writelines((b",\n" if index else b"\n") + encode(row) for index, row in lines)
            stream.write(b"]")
        stream.write(b"}}")
    stream.write(b"\n]}\n")
