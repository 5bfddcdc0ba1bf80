"""The user's own names of communication kernels, which tracekit does not know: one small file.

The file ``tracekit-patterns.toml`` beside the run (in its folder, or the folder above), or the one that
``TRACEKIT_PATTERNS`` names, or the one given to ``tracekit.open(run, patterns=…)``::

    [[communication]]
    name = "^my_ring_reduce"      # a regular expression, searched in the names of device rows
    kind = "all_reduce"           # one of the kinds of the collectives table

It is read once, when a run is opened.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import polars as pl

from tracekit.collective_kinds import PASSES
from tracekit.errors import UsageError
from tracekit.model.names import kind_of

FILE_NAME = "tracekit-patterns.toml"
_VARIABLE = "TRACEKIT_PATTERNS"
_KINDS = (*PASSES, "other")


class Pattern(NamedTuple):
    """Device rows whose name matches the regular expression `name` are communication of this kind."""

    name: str
    kind: str = "other"


Patterns = tuple[Pattern, ...]


def find_patterns(given: str | os.PathLike[str] | Sequence[Pattern] | None, folders: Iterable[Path]) -> Patterns:
    """Return the given patterns (a file of them, or these), else those of the environment, else those in `folders`.

    Raises:
        UsageError: a file cannot be read, or a pattern is not one.
    """
    if given is not None and not isinstance(given, str | os.PathLike):
        return tuple(_checked("patterns=", pattern.name, pattern.kind) for pattern in given)
    return tuple(pattern for file in pattern_files(given, folders) for pattern in _read(file))


def pattern_files(given: str | os.PathLike[str] | Sequence[Pattern] | None, folders: Iterable[Path]) -> list[Path]:
    """Return the files that :func:`find_patterns` reads."""
    if given is None:
        given = os.environ.get(_VARIABLE) or None
    if isinstance(given, str | os.PathLike):
        return [Path(given)]
    return [] if given is not None else [file for folder in folders if (file := folder / FILE_NAME).is_file()]


def kind_by_name(name: str, patterns: Patterns) -> str | None:
    """Return the kind of collective that a kernel's name means, by the user's patterns first; None if unknown."""
    own = next((pattern.kind for pattern in patterns if _matches(name, pattern.name)), None)
    return own or kind_of(name)


def _matches(name: str, pattern: str) -> bool:
    """Return whether a name holds the pattern, in time that no pattern makes long, as Python's own can."""
    return pl.Series([name]).str.contains(pattern).item()


def _read(path: Path) -> Patterns:
    try:
        entries = tomllib.loads(path.read_bytes().decode()).get("communication", [])
        return tuple(_checked(str(path), entry.get("name"), entry.get("kind", "other")) for entry in entries)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, AttributeError, TypeError) as error:
        raise UsageError(
            f"{path}: not a file of patterns ({error}); see tracekit/model/patterns.py for its form"
        ) from None


def _checked(source: str, name: object, kind: object) -> Pattern:
    if not isinstance(name, str) or not isinstance(kind, str) or kind not in _KINDS:
        raise UsageError(
            f"{source}: the pattern {name!r} of kind {kind!r} needs text as its name and a kind out of "
            f"{', '.join(_KINDS)}"
        )
    try:
        _matches("", name)
    except pl.exceptions.PolarsError as error:
        raise UsageError(f"{source}: {name!r} is not a regular expression ({error})") from None
    return Pattern(name, kind)
