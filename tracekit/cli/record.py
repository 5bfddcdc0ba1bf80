"""`tracekit record`: a reference training program under torchrun, and the run folder that it leaves."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracekit.cli.console import say_now
from tracekit.errors import TracekitError, UsageError
from tracekit.extras import require
from tracekit.reference_models import SIZES, find_size
from tracekit.strategies import Strategy, find, with_runner
from tracekit.text import plain_line, suggestion

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_HELP = (
    "Train a model for a few steps under torchrun and record it: a run folder with a manifest and a trace a rank.\n\n"
    "Options that are not listed below go to the training program (batch sizes, dtypes, schedule, and the strategy's "
    "own): [bold]tracekit record --strategy fsdp2 --list-options[/] prints them."
)


class RecordingError(TracekitError):
    """The training program could not record; the message says why."""


def add_to(app: typer.Typer) -> None:
    """Adds the command to the app."""
    app.command(
        "record",
        help=_HELP,
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
        epilog="Examples: [bold]tracekit record --strategy fsdp2 --nproc 2 --model tiny --out out/mine[/]  ·  "
        "[bold]tracekit record --strategy fsdp2 --reshard-after-forward true --micro-batches 2[/]",
    )(command)


def command(
    context: typer.Context,
    strategy: Annotated[
        str,
        typer.Option(
            help=f"How to shard: {', '.join(with_runner())}.",
            show_default=False,
        ),
    ],
    nproc: Annotated[int, typer.Option("--nproc", "-n", min=1, help="Ranks on this machine.")] = 2,
    model: Annotated[str, typer.Option(help=f"Size of the decoder: {', '.join(SIZES)}.")] = "tiny",
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FOLDER", help="Default: traces/STRATEGY-MODEL-NPROC.", show_default=False),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the run that the folder holds.")] = False,
    list_options: Annotated[
        bool, typer.Option("--list-options", help="Print what the training program takes for this strategy, and stop.")
    ] = False,
) -> None:
    """Runs the training program and says where its run is; `_HELP` is what a user reads."""
    if list_options:
        _list_options(strategy)
        return
    folder = out or Path("traces") / f"{strategy}-{model}-{nproc}"
    record(strategy, folder, nproc=nproc, model=model, force=force, args=context.args, on_line=say_now)
    print(f"next: tracekit report {plain_line(str(folder))}")


def _list_options(strategy: str) -> None:
    """Prints the help of the training program for a strategy.

    Raises:
        UsageError: torch is missing, or there is no such strategy, or none that is recorded.
        RecordingError: the program failed.
    """
    _recordable(strategy)
    require("record", "listing options")
    from tracekit import training as launch

    try:
        print(launch.options(strategy))
    except launch.LaunchError as error:
        raise RecordingError(f"the options of {strategy} cannot be listed: {' '.join(str(error).split())}") from error


def record(
    strategy: str,
    folder: Path,
    *,
    nproc: int,
    model: str,
    force: bool,
    args: Sequence[str] = (),
    on_line: Callable[[str], None],
) -> None:
    """Leaves a run in the folder; rank 0's lines go to `on_line`.

    Raises:
        UsageError: torch or DeepSpeed is missing, or there is no such model or strategy.
        RecordingError: the training program failed.
    """
    require(_recordable(strategy).extra, f"recording {strategy}")
    find_size(model)
    from tracekit import training as launch

    if not force and (folder / "manifest.json").exists():
        raise UsageError(f"{folder} holds a run already: pass --force to replace it, or name another --out")
    replace = ["--overwrite"] if force else []
    try:
        launch.run(strategy, folder, num_ranks=nproc, args=["--model", model, *replace, *args], on_line=on_line)
    except launch.LaunchError as error:
        raise RecordingError(" ".join(str(error).split())) from error


def _recordable(strategy: str) -> Strategy:
    """The strategy of that name. Raises UsageError where there is none, or nothing trains with it."""
    found = find(strategy)
    if found.runner is None:
        raise UsageError(
            f"--strategy {strategy} can be planned, but not recorded: {suggestion(strategy, with_runner())}"
        )
    return found
