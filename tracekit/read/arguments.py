"""The arguments of events -> polars columns; each table decodes only what it needs, of the rows that have it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

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


def links(events: Sequence[Event], rows: pl.Series) -> pl.DataFrame:
    """Return row, external_id, correlation, sequence, on_device, collective (both true or false) of those with any.

    Raises:
        msgspec.DecodeError: the arguments of an event are not what arguments should be.
    """
    present = [n for n in rows.to_list() if events[n].args is not ABSENT]
    found = _decoded([events[n].args for n in present], Links)
    return pl.DataFrame(
        {
            "row": pl.Series(present, dtype=pl.Int64),
            **{name: _column(found, name, pl.Int64()) for name in ("external_id", "correlation", "sequence")},
            "on_device": pl.Series([a.stream is not None or a.device is not None for a in found], dtype=pl.Boolean),
            "collective": pl.Series([a.collective is not None for a in found], dtype=pl.Boolean),
        }
    )


def arguments(events: Sequence[Event], rows: pl.Series, schema: Mapping[str, pl.DataType]) -> pl.DataFrame:
    """Return `row` and, of these rows, the columns of `schema` that are arguments.

    Raises:
        msgspec.DecodeError: the arguments of an event are not what arguments should be.
    """
    found = _decoded([events[n].args for n in rows.to_list()], Args)
    wanted = {name: dtype for name, dtype in schema.items() if name != "index"}
    return pl.DataFrame({"row": rows, **{name: _column(found, name, dtype) for name, dtype in wanted.items()}})


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
    first, *others = _SPELLINGS.get(name, (name,))
    values = [getattr(a, first) for a in found]
    for other in others:
        if None not in values:
            break
        values = [getattr(a, other) if v is None else v for v, a in zip(values, found, strict=True)]
    return integers(values) if dtype == pl.Int64() else texts(values)


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
