"""The arguments of events -> polars columns; each table decodes only what it needs, of the rows that have it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec
import polars as pl

from tracekit.read.events import ABSENT, Args, Event, Links

# Same thing, other spelling: the first one present counts.
_SPELLINGS = {
    "external_id": ("external_id", "external_id_2021"),
    "in_numel": ("in_numel", "in_numel_2023"),
    "out_numel": ("out_numel", "out_numel_2023"),
    "group": ("group", "group_id"),
}
_Kind = TypeVar("_Kind", Links, Args)


class Told(NamedTuple):
    """What arguments tell of any event: columns as long as the events, and rows of a device or of a collective."""

    values: dict[str, pl.Series]
    on_device: list[int]
    collective: list[int]


def links(events: Sequence[Event], rows: Sequence[int]) -> Told:
    """Return external_id, correlation and sequence of these rows, null for all others.

    Raises:
        msgspec.DecodeError: the arguments of an event are not what arguments should be.
    """
    present = [n for n in rows if events[n].args is not ABSENT]
    found = _decoded([events[n].args for n in present], Links)
    told = list(zip(present, found, strict=True))
    values: dict[str, pl.Series] = {}
    for name in ("external_id", "correlation", "sequence"):
        column: list[Any] = [None] * len(events)
        for (n, _), value in zip(told, _values(found, name), strict=True):
            column[n] = value
        values[name] = integers(column)
    return Told(
        values,
        [n for n, a in told if a.stream is not None or a.device is not None],
        [n for n, a in told if a.collective is not None],
    )


def arguments(
    events: Sequence[Event], rows: Sequence[int], first_index: int, schema: Mapping[str, pl.DataType]
) -> pl.DataFrame:
    """Return `schema` for these rows: `index`, counted from `first_index`, and columns that are arguments.

    Raises:
        msgspec.DecodeError: the arguments of an event are not what arguments should be.
    """
    found = _decoded([events[n].args for n in rows], Args)
    wanted = {name: _column(found, name, dtype) for name, dtype in schema.items() if name != "index"}
    return pl.DataFrame({"index": pl.Series([first_index + n for n in rows], dtype=pl.Int64), **wanted}, schema=schema)


def _decoded(raw: Sequence[msgspec.Raw], kind: type[_Kind]) -> list[_Kind]:
    """Decode many at once; no arguments are arguments without entries."""
    none = kind()
    present = [r for r in raw if r is not ABSENT]
    found = msgspec.json.decode(b"[" + b",".join(present) + b"]", type=list[kind | None])  # pyright: ignore[reportInvalidTypeForm]
    if len(present) == len(raw):
        return [none if f is None else f for f in found]
    following = iter(found)
    return [(next(following) or none) if r is not ABSENT else none for r in raw]


def _column(found: Sequence[Links | Args], name: str, dtype: pl.DataType) -> pl.Series:
    if name in ("input_dims", "input_type"):
        return pl.Series([bytes(getattr(a, name)).decode("utf-8", "replace") or None for a in found], dtype=pl.String)
    values = _values(found, name)
    return integers(values) if dtype == pl.Int64() else texts(values)


def _values(found: Sequence[Links | Args], name: str) -> list[Any]:
    """The argument in the first of its spellings that an event has."""
    first, *others = _SPELLINGS.get(name, (name,))
    values = [getattr(a, first) for a in found]
    for other in others:
        if None not in values:
            break
        values = [getattr(a, other) if v is None else v for v, a in zip(values, found, strict=True)]
    return values


def texts(values: Sequence[Any]) -> pl.Series:
    """Return text as it is and anything else as Python would print it."""
    try:
        return pl.Series(values, dtype=pl.String, strict=True)
    except (TypeError, pl.exceptions.PolarsError):
        return pl.Series([v if v is None or isinstance(v, str) else str(v) for v in values], dtype=pl.String)


def integers(values: Sequence[Any]) -> pl.Series:
    """Return integers as they are, text by the number it ends in ("stream 7" is 7), anything else null."""
    try:
        return pl.Series(values, dtype=pl.Int64, strict=True)
    except (TypeError, OverflowError, pl.exceptions.PolarsError):
        return pl.Series([v if type(v) is int and abs(v) < 2**63 else _integer(v) for v in values], dtype=pl.Int64)


def _integer(value: object) -> int | None:
    if isinstance(value, str):
        digits = value.rsplit(maxsplit=1)[-1] if value.strip() else ""
        value = int(digits) if digits.removeprefix("-").isdecimal() and len(digits) < 20 else None
    if isinstance(value, float):
        value = int(value) if value.is_integer() else None
    # Addresses and 64-bit communicator ids can use the top bit: keep their bits, as a signed number.
    if isinstance(value, int) and 2**63 <= value < 2**64:
        value -= 2**64
    return value if isinstance(value, int) and -(2**63) <= value < 2**63 else None
