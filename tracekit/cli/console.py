"""Consoles that commands print on: Rich on a terminal, plain and unwrapped text otherwise."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

from rich.console import Console

from tracekit.text import plain, plain_line

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

# Rich cuts at 80 columns when there is no terminal; a file or pipe has no such edge.
_NO_EDGE = 10_000


def console(stream: IO[str] | None = None) -> Console:
    """A console on the stream, stdout by default: no colour where there is no terminal or NO_COLOR is set."""
    target: IO[str] = sys.stdout if stream is None else stream
    is_terminal = target.isatty()
    return Console(
        file=target, width=None if is_terminal else _NO_EDGE, force_terminal=is_terminal, highlight=False, markup=False
    )


def say_now(line: str) -> None:
    """Prints a line that a reader in a pipe gets at once, as a terminal does."""
    print(line, flush=True)


@contextmanager
def reading() -> Generator[Callable[[int, int, str], None] | None]:
    """Progress for `tracekit.open`: on a terminal a bar that goes away in the end, otherwise nothing."""
    screen = console(sys.stderr)
    if not screen.is_terminal:
        yield None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    # File names are data, not markup.
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=screen, transient=True) as bar:
        task = bar.add_task("reading", total=None)
        yield lambda done, total, name: bar.update(task, completed=done, total=total, description=f"read {plain(name)}")


@contextmanager
def progress(what: str) -> Generator[Callable[[str], None]]:
    """A function that tells how far the work is: beside a spinner on a terminal, as lines on stderr otherwise."""
    screen = console(sys.stderr)
    if not screen.is_terminal:
        screen.print(what)
        yield lambda line: screen.print(f"  {plain_line(line)}", soft_wrap=True)
        return
    from rich.text import Text

    with screen.status(Text(what)) as status:
        yield lambda line: status.update(Text(f"{what}: {plain_line(line)}"))
