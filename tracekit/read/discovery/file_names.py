"""Parts of a trace file's name: rank, host and process, positions on the axes of a mesh, number in a series."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod
from typing import NamedTuple

# The least ambiguous word first: "worker0_rank3" and "local_rank1_rank3" are rank 3. More than six digits are a time
# or a process, not a rank.
_RANK_WORDS = [
    re.compile(rf"(?:^|[^a-z]){word}[-_=.]?(\d{{1,6}})(?!\d)", re.IGNORECASE)
    for word in (r"(?<!local[-_.])(?<!node[-_.])rank", "rank", "worker")
]
# Hosts are called like that too ("gpu-r5"), but have neither underscores nor dots in their names.
_RANK_LETTER = re.compile(r"(?:^|[_./])r[-_=.]?(\d{1,6})(?![\da-z])", re.IGNORECASE)
# What tensorboard_trace_handler calls a file: host, process and time of writing.
_HANDLER = re.compile(r"^(?P<host>.+)_(?P<pid>\d{1,10})\.\d{1,30}\.pt\.trace\.json", re.IGNORECASE)
# Serving frameworks write no rank but the process' positions on their axes, the slowest one first.
_AXIS = re.compile(r"(?<![a-z])(dcp|tp|dp|pp|ep|cp|sp)[-_=]?(\d{1,6})(?!\d)", re.IGNORECASE)
_NUMBER = re.compile(r"(\d+)")
# Fewer files than these that begin at another number than 0 are no series of ranks: a number can be anything.
_FEW = 4
_MOST_RANKS = 4096


class Writer(NamedTuple):
    """The host and process that wrote a file."""

    host: str
    pid: int


def rank_in(name: str) -> int | None:
    """Return the rank that a file's name tells; None where it tells none."""
    if found := next((m for pattern in _RANK_WORDS if (m := pattern.search(name))), None):
        return int(found[1])
    handler = _HANDLER.match(name)
    found = _RANK_LETTER.search(name[handler.end("host") :] if handler else name)
    return int(found[1]) if found else None


def writer_in(name: str) -> Writer | None:
    """Return host and process in the name that tensorboard_trace_handler gives a file; None where it is another name.

    A worker's name that somebody chose ("worker_3", "rank0") is no host.
    """
    found = _HANDLER.match(name)
    if found is None or any(pattern.search(name) for pattern in _RANK_WORDS):
        return None
    return Writer(found["host"], int(found["pid"]))


def axes_in(name: str) -> dict[str, int]:
    """Return the position on each axis that a file's name tells, in the order of the name ({"tp": 1, "dp": 0})."""
    return {found[1].lower(): int(found[2]) for found in _AXIS.finditer(name)}


def by_number(name: str) -> tuple[str | int, ...]:
    """Return the sort key of text in which numbers count as numbers: profile_2 comes before profile_10."""
    # Text and digits alternate, so that keys compare text with text; of 2 and 02 the text decides.
    return (*(int(part) if n % 2 else part for n, part in enumerate(_NUMBER.split(name))), name)


def ranks_by_axes(names: Sequence[str]) -> list[int] | None:
    """Return a rank for each file by its position on the axes, the last axis running fastest.

    None where a name has no axes or others than the first, or where two have the same positions. The size of an axis is
    one more than the last position seen.
    """
    found = [axes_in(name) for name in names]
    if not found or not found[0] or any(list(f) != list(found[0]) for f in found):
        return None
    places = [tuple(f.values()) for f in found]
    sizes = [max(along) + 1 for along in zip(*places, strict=True)]
    if len(set(places)) < len(places) or prod(sizes) > 2**31:
        return None
    return [sum(p * prod(sizes[n + 1 :]) for n, p in enumerate(place)) for place in places]


def ranks_by_series(names: Sequence[str]) -> list[int] | None:
    """Return a rank for each file by the one number in which the names differ (profile_0 to profile_11).

    None where they differ otherwise, or where the numbers are not the ranks of a job or of a whole node of it: those
    begin with 0 or with a multiple of their count, and leave out fewer than they have.
    """
    parts = [_NUMBER.split(name) for name in names]
    if len(names) < 2 or len({len(p) for p in parts}) > 1 or any(writer_in(name) for name in names):
        return None
    differ = [n for n, values in enumerate(zip(*parts, strict=True)) if len(set(values)) > 1]
    stem = parts[0][differ[0] - 1] if len(differ) == 1 and differ[0] % 2 else ""
    if not any(letter.isalpha() for letter in stem):
        return None
    numbers = [int(p[differ[0]]) for p in parts]
    count, first, last = len(set(numbers)), min(numbers), max(numbers)
    is_job = first == 0 and last < 2 * count
    is_node = count >= _FEW and first % count == 0 and last == first + count - 1 and last < _MOST_RANKS
    return numbers if count == len(numbers) and (is_job or is_node) else None
