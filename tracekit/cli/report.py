"""`tracekit report`: the whole analysis of one run, or of several side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracekit.cli.options import CycleOption, ForceOption, NoCacheOption, PatternsOption, RunArgument
from tracekit.text import plain_line

if TYPE_CHECKING:
    from tracekit.report.write import ReportPaths


def add_to(app: typer.Typer) -> None:
    """Adds the command to the app."""
    app.command(
        "report",
        epilog="Examples: [bold]tracekit report out/demo/fsdp2[/]  ·  "
        "[bold]tracekit report out/demo/fsdp2 out/demo/zero2 -o compared[/]",
    )(command)


def command(
    runs: RunArgument,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FOLDER", help="Where to write it.")] = Path(
        "out/report"
    ),
    force: ForceOption = False,
    cycle: CycleOption = None,
    no_cache: NoCacheOption = False,
    patterns: PatternsOption = None,
    hta: Annotated[bool, typer.Option("--hta", help="Add what HolisticTraceAnalysis says of the same trace.")] = False,
) -> None:
    """Write the dashboard (report.html), its numbers (report.json) and a Perfetto trace (trace.pftrace).

    Each RUN is a run of its own; two or more are shown side by side.
    """
    import tracekit
    from tracekit.cli.console import progress
    from tracekit.report.write import write_report

    with progress("analysing") as tell:
        opened = []
        for path in runs:
            tell(f"reading {path}")
            opened.append(tracekit.open(path, cache=not no_cache, cycle=cycle, patterns=patterns))
        tell(f"writing {output}")
        paths = write_report(opened, output, force=force, hta=hta)
    tell_report(paths)


def tell_report(paths: ReportPaths) -> None:
    """Prints the sentences and which files to open."""
    from rich.text import Text

    from tracekit.cli.console import console

    screen = console()
    for sentence in paths.sentences:
        screen.print(Text(f"• {plain_line(sentence)}"), soft_wrap=not screen.is_terminal)
    for what, path in (("dashboard", paths.html), ("numbers", paths.json), ("Perfetto trace", paths.trace)):
        screen.print(Text(f"{what:<15} {plain_line(str(path))}"), soft_wrap=True)
