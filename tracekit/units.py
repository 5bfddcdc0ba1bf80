"""Numbers as people read them: bytes, times, counts and shares in their units."""

from __future__ import annotations

from typing import Any

ABSENT = "–"
"""What stands for a number that is not known."""

NS_PER_MS = 10**6
BYTES_PER_MIB = 2**20

TIME_UNITS = ((1, "ns"), (10**3, "µs"), (NS_PER_MS, "ms"), (10**9, "s"))
BYTE_UNITS = ((1, "B"), (2**10, "KiB"), (BYTES_PER_MIB, "MiB"), (2**30, "GiB"))

Units = tuple[tuple[int, str], ...]


def largest_unit(number: float, units: Units) -> tuple[int, str]:
    """The largest unit of which the number holds at least one; the smallest for less."""
    return next((unit for unit in reversed(units) if abs(number) >= unit[0]), units[0])


def size(number: float) -> str:
    """Bytes in the largest unit that they fill: 1.50 KiB."""
    unit, name = largest_unit(number, BYTE_UNITS)
    return f"{number / unit:,.2f} {name}" if unit > 1 else f"{number:,.0f} {name}"


def duration(ns: float) -> str:
    """A time in ms, in µs where it is shorter than one: 12.3 ms."""
    return f"{ns / 1e6:,.1f} ms" if ns >= NS_PER_MS else f"{ns / 1e3:.1f} µs"


def milliseconds(ns: float) -> str:
    """A time in ms: 0.12 ms."""
    return f"{ns / NS_PER_MS:,.2f} ms"


def share(part: float) -> str:
    """A share (0 to 1) in whole %, never rounded to all or nothing."""
    if 0 < part < 0.005:
        return "less than 1 %"
    return "more than 99 %" if 0.995 <= part < 1 else f"{100 * part:.0f} %"


def percent(part: float) -> str:
    """A share (0 to 1) in %: 26.5 %."""
    return f"{100 * part:.1f} %"


def count(number: float) -> str:
    """A count, in millions or billions where it is large: 4.46 million."""
    for unit, name in ((1e9, " billion"), (1e6, " million")):
        if number >= unit:
            return f"{number / unit:.3g}{name}"
    return f"{number:,.0f}"


def counted(number: float, name: str) -> str:
    """A number of things: 1 step, 2 steps, 2.5 calls."""
    written = f"{number:.0f}" if number == round(number) else f"{number:.1f}"
    return f"{written} {name}{'' if written == '1' else 's'}"


def number(value: Any) -> float:
    """A sum or mean as polars gives it, as a number: 0 where it is null."""
    return float(value or 0)
