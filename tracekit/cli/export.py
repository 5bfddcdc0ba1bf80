"""`tracekit export`: a recorded file made over for other tools."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from tracekit.cli.options import CycleOption, ForceOption, NoCacheOption, run_path
from tracekit.errors import UsageError


def add_to(app: typer.Typer) -> None:
    """Adds the command to the app."""
    app.command(
        "export",
        epilog="Example: [bold]tracekit export traces/fsdp2 --transfer-only -o out/profile.json[/]",
    )(command)


def command(
    path: Annotated[
        Path,
        typer.Argument(metavar="RUN", help="A run's folder, or a trace file.", show_default=False, parser=run_path),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE.json", help="Where to write it.", show_default=False)
    ],
    transfer_only: Annotated[
        bool, typer.Option("--transfer-only", help="Collectives last their transfer, without the wait for other ranks.")
    ] = False,
    rank: Annotated[int | None, typer.Option(min=0, help="Whose file; the lowest rank's if not given.")] = None,
    force: ForceOption = False,
    cycle: CycleOption = None,
    no_cache: NoCacheOption = False,
) -> None:
    """Write a rank's file as plain JSON for tools that take a kernel's duration for its cost.

    torch's profile-guided overlap scheduling is one: it would count the wait for other ranks as communication.
    """
    import tracekit
    from tracekit.cli.console import reading, say_now
    from tracekit.export.files import refuse_existing, replacing
    from tracekit.export.transfers import transfers

    if not transfer_only:
        raise UsageError("say what to export: --transfer-only")
    refuse_existing(output, force=force, runs=[path])
    with reading() as tell:
        run = tracekit.open(path, cache=not no_cache, cycle=cycle, progress=tell)
    made = transfers(run, rank)
    with replacing(output, force=force, runs=run.paths) as file:
        file.write_text(json.dumps(made.document), "utf-8")
    say_now(f"{output}: {made}")
