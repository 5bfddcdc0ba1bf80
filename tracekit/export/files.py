"""Outputs: refused when they exist, written beside their place, moved there when whole, announced."""

from __future__ import annotations

import re
import sys
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING, Any
from uuid import uuid4

from tracekit.errors import UsageError
from tracekit.text import plain_line

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable
    from pathlib import Path


def refuse_existing(path: Path, *, force: bool, runs: Iterable[Path] = ()) -> None:
    """Nothing, unless the output exists and may not be replaced.

    Raises:
        UsageError: the path is a folder, exists without `force`, also as a link to nothing, or is a file of one of the
            runs, by whichever name.
    """
    try:
        if path.is_dir():
            raise UsageError(f"{path} is a folder, not a file that can be written: name a file in it")
        if path.is_file() and (read := _read_as(path, runs)):
            raise UsageError(f"{path} is an input of this command ({read}), which no output replaces: name another one")
        leads_nowhere = path.is_symlink() and not path.exists()
        if not force and (path.is_file() or leads_nowhere):
            what = "is a link to nothing" if leads_nowhere else "exists already"
            raise UsageError(f"{path} {what}: pass --force to replace it, or name another output")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {_reason(error)}") from error


def _read_as(path: Path, runs: Iterable[Path]) -> Path | None:
    """The input that is the same file as the output, also through links; None where none is."""
    from tracekit.read.discovery.sources import input_files

    for read in input_files(runs):
        with suppress(OSError):
            if path.samefile(read):
                return read
    return None


@contextmanager
def replacing(path: Path, *, force: bool = False, runs: Iterable[Path] = ()) -> Generator[Path]:
    """A path to write to that becomes `path` when the block ends well, and is removed when it does not.

    Missing parent folders are made. A device or a pipe, such as /dev/null, is written in place. What a writer of the
    same output left behind when it was killed is removed.

    Raises:
        UsageError: the output may not be replaced, or its place cannot be written.
    """
    refuse_existing(path, force=force, runs=runs)
    if path.exists() and not path.is_file():
        with _told(path, path):
            yield path
        return
    partial = path.with_name(f".{path.name}.{uuid4().hex[:12]}.partial")
    try:
        with _held(path, partial), _told(path, partial):
            yield partial
            partial.replace(path)
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


@contextmanager
def open_output(
    path: Path, *, force: bool = False, binary: bool = False, runs: Iterable[Path] = ()
) -> Generator[IO[Any]]:
    """A stream, UTF-8 text or bytes, whose content appears at `path` only when the block ends well.

    Raises:
        UsageError: as `replacing`.
    """
    with replacing(path, force=force, runs=runs) as partial:
        mode, encoding = ("wb", None) if binary else ("w", "utf-8")
        with partial.open(mode, encoding=encoding) as stream:
            yield stream


def announce(path: Path) -> None:
    """Says on stderr which output was written, so that stdout stays for data."""
    print(f"wrote {plain_line(str(path))}", file=sys.stderr)


@contextmanager
def _told(path: Path, written: Path) -> Generator[None]:
    """Makes a sentence of what the system refuses while `written` is written in place of `path`."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        # A full disk is the user's to mend; an error about another file is not about this output.
        if error.filename not in (None, str(written), written):
            raise
        raise UsageError(f"{path} cannot be written: {_reason(error)}") from error


def _held(path: Path, partial: Path) -> IO[bytes]:
    """The new file that will become `path`, locked for as long as it is open."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _sweep(path)
        held = partial.open("xb")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {_reason(error)}") from error
    _lock(held)
    return held


def _sweep(path: Path) -> None:
    """Removes what killed writers of this output left: whoever still writes holds a lock on it."""
    left = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{12}}\.partial")
    with suppress(OSError):
        for partial in path.parent.iterdir():
            if left.fullmatch(partial.name):
                with suppress(OSError), partial.open("r+b") as held:
                    if _lock(held):
                        partial.unlink()


def _lock(file: IO[bytes]) -> bool:
    """True where the file is now locked until it is closed, also by the end of this process; else false."""
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (ImportError, OSError):
        return False
    return True


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
