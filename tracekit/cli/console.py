"""Consoles that commands print on: Rich on a terminal, plain and unwrapped text otherwise."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

from rich.console import Console

from tracekit import units
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
    """Progress for `tracekit.open`: on a terminal a bar that goes away in the end, otherwise nothing.

    Beside the files read it tells what the largest one that is being expanded has come to.
    """
    screen = console(sys.stderr)
    if not screen.is_terminal:
        yield None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn
    from rich.text import Text

    class Expanded(ProgressColumn):
        def render(self, task: Task) -> Text:  # noqa: ARG002 - as rich calls it
            return Text(expanding())

    # File names are data, not markup.
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), Expanded())
    with Progress(*columns, console=screen, transient=True) as bar:
        task = bar.add_task("reading", total=None)
        yield lambda done, total, name: bar.update(task, completed=done, total=total, description=f"read {plain(name)}")


def expanding() -> str:
    """How much text the largest file that is being expanded has come to; nothing where none is."""
    from tracekit.read.decoding.content import EXPANDED

    name, text = max(
        ((path.name, size) for path, size in EXPANDED.copy().items()), key=lambda one: one[1], default=("", 0)
    )
    return f"{plain(name)}: {units.size(text)} of text" if text else ""


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
