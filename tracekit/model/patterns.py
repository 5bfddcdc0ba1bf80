"""Names of communication kernels that a user knows and we do not: one small file.

``tracekit-patterns.toml`` in the working folder, or the file that ``TRACEKIT_PATTERNS`` names::

    [[communication]]
    name = "^my_ring_reduce"      # a regular expression, searched in the names of device rows
    kind = "all_reduce"           # one of the kinds of the collectives table
"""

from __future__ import annotations

import os
import re
import tomllib
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tracekit.dtypes import PASSES
from tracekit.errors import UsageError
from tracekit.model.names import kind_of

FILE_NAME = "tracekit-patterns.toml"
_VARIABLE = "TRACEKIT_PATTERNS"
_KINDS = (*PASSES, "other")


class Pattern(NamedTuple):
    """Rows whose name matches `name` are communication of this kind."""

    name: str
    kind: str


def patterns() -> tuple[Pattern, ...]:
    """Return the user's patterns; none where there is no file.

    Raises:
        UsageError: the file cannot be read, or a pattern in it is none.
    """
    told = os.environ.get(_VARIABLE)
    path = Path(told or FILE_NAME).absolute()
    if not told and not path.is_file():
        return ()
    try:
        return _read(path, path.read_bytes())
    except OSError as error:
        raise _no_patterns(path, error) from None


def kind_by_name(name: str) -> str | None:
    """Return the kind of collective that a kernel's name tells, the user's patterns first; null where none does."""
    told = next((pattern.kind for pattern in patterns() if re.search(pattern.name, name)), None)
    return told or kind_of(name)


@cache
def _read(path: Path, content: bytes) -> tuple[Pattern, ...]:
    try:
        entries = tomllib.loads(content.decode()).get("communication", [])
        return tuple(_checked(path, entry) for entry in entries)
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, AttributeError, TypeError) as error:
        raise _no_patterns(path, error) from None


def _no_patterns(path: Path, error: Exception) -> UsageError:
    return UsageError(f"{path}: not a file of patterns ({error}); see tracekit/model/patterns.py for its form")


def _checked(path: Path, entry: dict[str, str]) -> Pattern:
    name, kind = entry.get("name"), entry.get("kind", "other")
    if not isinstance(name, str) or kind not in _KINDS:
        raise UsageError(f"{path}: {entry} needs a name and a kind out of {', '.join(_KINDS)}")
    try:
        re.compile(name)
    except re.error as error:
        raise UsageError(f"{path}: {name!r} is no regular expression ({error})") from None
    return Pattern(name, kind)
