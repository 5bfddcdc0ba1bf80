"""`tracekit view`: a run in the Perfetto UI, served on this machine."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from tracekit.cli.options import CycleOption, NoCacheOption, run_path

if TYPE_CHECKING:
    from collections.abc import Generator

TRACE_SUFFIX = ".pftrace"


def add_to(app: typer.Typer) -> None:
    """Adds the command to the app."""
    app.command(
        "view",
        epilog="Examples: [bold]tracekit view out/demo/report[/]  ·  "
        "[bold]tracekit view out/demo/fsdp2 --no-browser[/]",
    )(command)


def command(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="PATH",
            help="A run, a report's folder, or a .pftrace file.",
            show_default=False,
            parser=run_path,
        ),
    ],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1; 0 takes a free one.")] = 0,
    cycle: CycleOption = None,
    no_cache: NoCacheOption = False,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open a browser on it.")] = True,
) -> None:
    """Open a run in a Perfetto UI that is served on this machine and needs no network."""
    from tracekit.cli.console import say_now
    from tracekit.export.viewer import ui_folder, view

    ui_folder()  # says so before the trace is made where the UI is missing
    with perfetto_trace(path, cycle=cycle, cache=not no_cache) as trace:
        view(trace, port=port, browser=browser, say=say_now)


@contextmanager
def perfetto_trace(path: Path, *, cycle: int | None = None, cache: bool = True) -> Generator[Path]:
    """The path's Perfetto trace: the file itself, a report's, or one made of the run while the block lasts."""
    if path.suffix == TRACE_SUFFIX:
        yield path
        return
    in_report = path / f"trace{TRACE_SUFFIX}"
    if in_report.is_file():
        yield in_report
        return
    import tracekit
    from tracekit.cli.console import reading
    from tracekit.export.perfetto import write_trace

    with reading() as tell:
        run = tracekit.open(path, cache=cache, cycle=cycle, progress=tell)
    with TemporaryDirectory(prefix="tracekit-") as folder:
        made = Path(folder) / f"trace{TRACE_SUFFIX}"
        write_trace([run], made)
        yield made
