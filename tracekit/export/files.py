"""Outputs: refused when they exist, written beside their place, moved there when whole, announced."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any

from tracekit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path


def refuse_existing(path: Path, *, force: bool) -> None:
    """Nothing, unless the output exists and may not be replaced.

    Raises:
        UsageError: the path is a folder, or exists without `force`.
    """
    if path.is_dir():
        raise UsageError(f"{path} is a folder, not a file that can be written: name a file in it")
    if not force and path.is_file():
        raise UsageError(f"{path} exists already: pass --force to replace it, or name another output")


@contextmanager
def replacing(path: Path, *, force: bool = False) -> Generator[Path]:
    """A path to write to that becomes `path` when the block ends well, and is removed when it does not.

    Missing parent folders are made. A device or a pipe, such as /dev/null, is written in place.

    Raises:
        UsageError: the output may not be replaced, or its place cannot be written.
    """
    refuse_existing(path, force=force)
    if path.exists() and not path.is_file():
        yield path
        return
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.touch(exist_ok=False)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {_reason(error)}") from error
    try:
        yield partial
        partial.replace(path)
    except OSError as error:
        # A full disk is the user's to mend; an error about another file is not about this output.
        if error.filename not in (None, str(partial), partial):
            raise
        raise UsageError(f"{path} cannot be written: {_reason(error)}") from error
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def open_output(path: Path, *, force: bool = False, binary: bool = False) -> Generator[IO[Any]]:
    """A stream, UTF-8 text or bytes, whose content appears at `path` only when the block ends well.

    Raises:
        UsageError: as `replacing`.
    """
    with replacing(path, force=force) as partial:
        mode, encoding = ("wb", None) if binary else ("w", "utf-8")
        with partial.open(mode, encoding=encoding) as stream:
            yield stream


def announce(path: Path) -> None:
    """Says on stderr which output was written, so that stdout stays for data."""
    print(f"wrote {path}", file=sys.stderr)


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
