"""The `tracekit` command: one app, one module a command, one place where errors become exit codes.

0   done
1   the question was answered "no"
2   the user's input or options are wrong: one sentence on stderr
3   our own fault: one sentence, and how to see the traceback
130 interrupted, 129 hung up on, 143 terminated: what was half written is removed first
141 the reader of our output went away
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
from contextlib import contextmanager, suppress
from importlib import import_module
from io import TextIOWrapper, UnsupportedOperation
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from tracekit import __version__
from tracekit.errors import TracekitError
from tracekit.text import plain_line

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

__all__ = ["main"]

#: Each is a module here that adds itself to the program, in the order of the help.
COMMANDS = ("demo", "record", "report", "show", "ledger", "plan", "predict", "export", "view")

_COMPLETING = "_TRACEKIT_COMPLETE"
_WRONG_INPUT = 2
_OWN_FAULT = 3
_INTERRUPTED = 130
_READER_GONE = 141
_ENDING_SIGNALS = ("SIGTERM", "SIGHUP")
# The disk is full, the quota or the largest file is reached, the terminal or the disk is gone.
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}


class _Ended(BaseException):
    """A signal asks the program to end; raised in the main thread, so that everything cleans up on the way out."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"tracekit {__version__}")
        raise typer.Exit


def tracekit(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Records and explains the communication, overlap and memory of DDP, ZeRO and FSDP training steps.

    Start with [bold]tracekit demo[/]: it trains twice on this machine and explains both runs.
    """


def _app(args: Sequence[str]) -> typer.Typer:
    """The program with the command that `args` begin with, or with all of them where help or a refusal lists them.

    Importing and building the others would take longer than many a table does.
    """
    made = typer.Typer(
        name="tracekit",
        add_completion=True,
        no_args_is_help=True,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    made.callback()(tracekit)
    for name in args[:1] if args and args[0] in COMMANDS else COMMANDS:
        import_module(f"tracekit.cli.{name}").add_to(made)
    return made


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Runs the command line and ends the process with its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # What the encoding does not have is spelt out (ASCII has no µ).
            stream.reconfigure(errors="backslashreplace")
    sys.exit(run(sys.argv[1:] if args is None else args))


def run(args: Sequence[str]) -> int:
    """The exit code of the command line `args`; the error, if any, is a sentence on stderr."""
    try:
        with _ended_by_signals():
            code = _invoke(args)
            sys.stdout.flush()
    except (Exception, KeyboardInterrupt, _Ended) as error:
        if os.environ.get("TRACEKIT_DEBUG") and _code(error) == _OWN_FAULT:
            raise
        if sentence := _sentence_of(error):
            _say(sentence)
        if isinstance(error, OSError):
            _silence_stdout()
        return _code(error)
    return code


def _code(error: BaseException) -> int:
    """The exit code that an error ends the program with."""
    match error:
        case TracekitError() | typer.TyperException():
            return error.exit_code
        case _Ended():
            return 128 + error.number
        case KeyboardInterrupt():
            return _INTERRUPTED
        case BrokenPipeError():
            return _READER_GONE
        case OSError(errno=number) if number in _NO_ROOM:
            return _WRONG_INPUT
        case _:
            return _OWN_FAULT


def _sentence_of(error: BaseException) -> str:
    """The sentence for the error; empty where nobody wants to know."""
    match error:
        case TracekitError():
            return str(error)
        case typer.TyperException():
            # Called with nothing, Typer has printed the help and has nothing to add.
            message = _one_line(error.format_message())
            return message and f"{message} (see {_place_of(error)})"
        case _Ended():
            return f"ended by {signal.Signals(error.number).name}"
        case KeyboardInterrupt() | BrokenPipeError():
            return "" if isinstance(error, BrokenPipeError) else "interrupted"
        case OSError(errno=number, strerror=reason) if number in _NO_ROOM:
            return f"the output cannot be written: {(reason or str(error)).lower()}"
        case _:
            return (
                f"this is a fault of tracekit's own ({type(error).__name__}: {_one_line(str(error))}); "
                "run again with TRACEKIT_DEBUG=1 for the traceback"
            )


def _place_of(error: typer.TyperException) -> str:
    """Where what was asked for is to be found: some options of the ledger are not those of `show`."""
    of_ledger = {"--sum", "--strategy", "--params", "--plan", "--partial"}
    inside = getattr(getattr(error, "ctx", None), "info_name", None) == "show"
    return "tracekit ledger --help" if inside and getattr(error, "option_name", "") in of_ledger else "tracekit --help"


def _invoke(args: Sequence[str]) -> int:
    """Runs the command that `args` name. Typer's own main is not used: it would print errors its way."""
    command = typer.main.get_command(_app(args))
    if _COMPLETING in os.environ:  # the shell asks what may come next
        command.main(prog_name="tracekit")
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


@contextmanager
def _ended_by_signals() -> Generator[None]:
    """Turns the first signal that would end the program into an exception; further ones wait for the cleaning up.

    Signals that somebody else handles or ignores, as nohup does, are left to them.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [getattr(signal, name) for name in _ENDING_SIGNALS if hasattr(signal, name)]
    ours = [number for number in numbers if signal.getsignal(number) == signal.SIG_DFL]

    def end(number: int, _: object) -> None:
        for each in ours:
            signal.signal(each, signal.SIG_IGN)
        raise _Ended(number)

    for number in ours:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


def _say(sentence: str) -> None:
    # Whoever reads stderr may be gone, or its disk full.
    with suppress(OSError):
        print(f"tracekit: {plain_line(sentence)}", file=sys.stderr)


def _one_line(text: str) -> str:
    """The text on one line, without its full stop."""
    return " ".join(text.split()).rstrip(".")


def _silence_stdout() -> None:
    """Points stdout at nothing where it takes no more, so that the interpreter's last flush does not complain."""
    try:
        sys.stdout.flush()
    except OSError:
        # A stdout that is no file has no such flush.
        with suppress(UnsupportedOperation):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
