"""`tracekit record`: a reference training program under torchrun, and the run folder that it leaves."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracekit.cli.console import say_now
from tracekit.errors import TracekitError, UsageError
from tracekit.extras import require
from tracekit.table_registry import suggestion
from tracekit.text import plain_line

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
            help="How to shard: ddp, zero1, zero2, fsdp1, fsdp2, hsdp, … (files of runners/strategies).",
            show_default=False,
        ),
    ],
    nproc: Annotated[int, typer.Option(min=1, help="Ranks on this machine.")] = 2,
    model: Annotated[str, typer.Option(help="Size of the decoder: nano, odd, tiny, small, 1b, 7b, 70b.")] = "tiny",
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
        print(program_options(strategy))
        return
    folder = out or Path("traces") / f"{strategy}-{model}-{nproc}"
    record(strategy, folder, nproc=nproc, model=model, force=force, args=context.args, on_line=say_now)
    print(f"next: tracekit report {plain_line(str(folder))}")


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
        UsageError: torch is missing, or there is no such model or strategy.
        RecordingError: the training program failed.
    """
    _require(strategy, model)
    from tracekit import training as launch

    if not force and (folder / "manifest.json").exists():
        raise UsageError(f"{folder} holds a run already: pass --force to replace it, or name another --out")
    replace = ["--overwrite"] if force else []
    try:
        launch.run(strategy, folder, num_ranks=nproc, args=["--model", model, *replace, *args], on_line=on_line)
    except launch.LaunchError as error:
        raise RecordingError(" ".join(str(error).split())) from error


def program_options(strategy: str) -> str:
    """What the training program takes for a strategy: the help of its parser.

    Raises:
        UsageError: torch is missing, or there is no such strategy.
    """
    _require(strategy, "tiny")
    from runners import strategies
    from runners.train import make_parser

    return make_parser(strategies.load(strategy)).format_help().rstrip()


def _require(strategy: str, model: str) -> None:
    require("record", "recording")
    from runners.strategies import MODULES
    from tracekit.reference_models import SIZES

    for option, name, known in (("--strategy", strategy, MODULES), ("--model", model, SIZES)):
        if name not in known:
            raise UsageError(f"{option} {name} is unknown: {suggestion(name, list(known))}")
