"""The dashboard: runs as one HTML page that holds all it needs and asks nothing of any network.

Names in a page come from traces, so nothing is trusted: text goes through the template's escaping, charts
and their data stand in the page as JSON in which no tag can end, and a content policy in the page forbids
every request.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

from tracekit.report import wording
from tracekit.report.drawing.library import library
from tracekit.report.page_tables import Table
from tracekit.report.sections import Analysed, file_tables, sections, trusted
from tracekit.text import plain_line


def dashboard(runs: list[Analysed]) -> str:
    """The page as HTML."""
    from tracekit import __version__

    shown = [
        {
            "name": run.name,
            "sentences": run.sentences,
            "description": wording.description_lines(run.description),
            "tables": file_tables(run),
        }
        for run in runs
    ]
    template = _environment().get_template("page.html")
    return template.render(
        title=" and ".join(run.name for run in runs) if len(runs) < 4 else f"{len(runs)} runs",
        lead=" · ".join(dict.fromkeys(wording.lead(run.description) for run in runs)),
        generator=f"tracekit {__version__}",
        sections=sections(runs),
        runs=shown,
        draw=_draw,
        css=trusted(_asset("page.css")),
        script=trusted(_asset("page.js")),
        library=trusted(library()),
    )


@cache
def _environment() -> Any:
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    return Environment(
        loader=FunctionLoader(_asset), autoescape=True, undefined=StrictUndefined, finalize=_without_unprintable
    )


def _without_unprintable(value: Any) -> Any:
    """The value for the templates, its text made fit to print unless it is HTML of our own."""
    return plain_line(value) if isinstance(value, str) and not hasattr(value, "__html__") else value


def _draw(table: Table) -> Any:
    """The table as HTML, escaped by its own template."""
    return trusted(_environment().get_template("table.html").render(table=table))


def _asset(name: str) -> str:
    return files("tracekit.report").joinpath("assets", name).read_text("utf-8")
