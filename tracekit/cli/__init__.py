"""The `tracekit` command: one app, one module a command, one place where errors become exit codes.

0   done
1   the question was answered "no"
2   the user's input or options are wrong: one sentence on stderr
3   our own fault: one sentence, and how to see the traceback
130 interrupted, 141 the reader of our output went away
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from tracekit import __version__
from tracekit.cli import demo, plan, predict, record, report, show, view
from tracekit.errors import TracekitError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]

_OWN_FAULT = 3
_INTERRUPTED = 130
_READER_GONE = 141

app = typer.Typer(
    name="tracekit",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"tracekit {__version__}")
        raise typer.Exit


@app.callback()
def tracekit(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Records and explains the communication, overlap and memory of DDP, ZeRO and FSDP training steps.

    Start with [bold]tracekit demo[/]: it trains twice on this machine and explains both runs.
    """


for module in (demo, record, report, show, plan, predict, view):
    module.add_to(app)


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Runs the command line and ends the process with its exit code."""
    sys.exit(run(sys.argv[1:] if args is None else args))


def run(args: Sequence[str]) -> int:
    """The exit code of the command line `args`; the error, if any, is a sentence on stderr."""
    try:
        code = _invoke(args)
        sys.stdout.flush()
    except TracekitError as error:
        _say(str(error))
        return error.exit_code
    except typer.TyperException as error:
        # Called with nothing, Typer has printed the help and has nothing to add.
        if message := _sentence(error.format_message()):
            _say(f"{message} (see tracekit --help)")
        return error.exit_code
    except KeyboardInterrupt:
        _say("interrupted")
        return _INTERRUPTED
    except BrokenPipeError:
        return _leave_quietly()
    except Exception as error:
        if os.environ.get("TRACEKIT_DEBUG"):
            raise
        _say(
            f"this is a fault of tracekit's own ({type(error).__name__}: {_sentence(str(error))}); "
            "run again with TRACEKIT_DEBUG=1 for the traceback"
        )
        return _OWN_FAULT
    return code


def _invoke(args: Sequence[str]) -> int:
    """Runs the command that `args` name. Typer's own main is not used: it would print errors its way."""
    command = typer.main.get_command(app)
    try:
        with command.make_context("tracekit", list(args)) as context:
            command.invoke(context)
    except typer.Exit as leave:
        return leave.exit_code
    except SystemExit as leave:
        # Rich answers a closed pipe by leaving the program.
        if isinstance(leave.__context__, BrokenPipeError):
            raise leave.__context__ from None
        raise
    return 0


def _say(sentence: str) -> None:
    print(f"tracekit: {sentence}", file=sys.stderr)


def _sentence(text: str) -> str:
    """The text on one line, without its full stop."""
    return " ".join(text.split()).rstrip(".")


def _leave_quietly() -> int:
    """Points stdout at nothing, so that the interpreter's last flush does not complain, and returns the exit code."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return _READER_GONE
