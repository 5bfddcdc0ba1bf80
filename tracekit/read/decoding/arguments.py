"""Polars series of the arguments of events and other loosely typed values."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

import msgspec
import polars as pl

from tracekit.read.decoding.events import Args
from tracekit.read.decoding.spellings import DRAWN_PROCESSES

# Digits of a 64-bit number with its sign.
_MOST_DIGITS = 20
_ADDRESS = "address"
# Spellings of one argument: the first one present counts.
_SPELLINGS = {
    "external_id": ("external_id", "external_id_2021"),
    "stream": ("stream", "stream_ascend"),
    "in_numel": ("in_numel", "in_numel_2023"),
    "out_numel": ("out_numel", "out_numel_2023"),
    "group": ("group", "group_id"),
}


def columns_of(found: Sequence[Args], schema: Mapping[str, pl.DataType]) -> dict[str, pl.Series]:
    """Return those columns of `schema` that are arguments."""
    if not found:
        return {}
    known = [name for name in schema if name in found[0].__struct_fields__]
    return {name: _column(found, name, schema[name]) for name in known}


def _column(found: Sequence[Args], name: str, dtype: pl.DataType) -> pl.Series:
    values = _values(found, name)
    if name == _ADDRESS:
        return _addresses(values)
    if dtype == pl.Int64():
        return integers(values)
    if isinstance(values[0], msgspec.Raw):
        return pl.Series([_compact(v) for v in values], dtype=pl.String)
    return texts(values)


def _values(found: Sequence[Args], name: str) -> list[Any]:
    """Return the argument of each event, in the first of its spellings that is present."""
    first, *others = _SPELLINGS.get(name, (name,))
    values = list(map(attrgetter(first), found))
    for other in others:
        if None in values:
            values = [o if v is None else v for v, o in zip(values, map(attrgetter(other), found), strict=True)]
    return values


def _compact(value: msgspec.Raw) -> str | None:
    """Return JSON text without whitespace between the values; None where there is none."""
    return msgspec.json.format(bytes(value), indent=-1).decode("utf-8", "replace") if bytes(value) else None


def texts(values: Sequence[Any]) -> pl.Series:
    """Return text unchanged and anything else as Python prints it."""
    try:
        return pl.Series(values, dtype=pl.String, strict=True)
    except (TypeError, pl.exceptions.PolarsError):
        return pl.Series([v if v is None or isinstance(v, str) else str(v) for v in values], dtype=pl.String)


def integers(values: Sequence[Any]) -> pl.Series:
    """Return integers unchanged, text as the number it ends in ("stream 7" is 7), true as 1, anything else as null.

    Null is also an unsigned number that needs all 64 bits: -1 and 2**64 - 1 are two ids.
    """
    try:
        return pl.Series(values, dtype=pl.Int64, strict=True)
    except (TypeError, OverflowError, pl.exceptions.PolarsError):
        return pl.Series([v if type(v) is int and abs(v) < 2**63 else _integer(v) for v in values], dtype=pl.Int64)


# Numbers that stand for the texts of processes: more than any process has.
FIRST_OF_TEXT = 2**62


def process_numbers(values: Sequence[Any], names: dict[int, str]) -> pl.Series:
    """Return numbers of processes unchanged, and one for each text that is more than a number ("[TP01] 4242").

    Texts that end in one number can be several processes: where ranks were merged, all devices end in 0. `names` gets
    the text of each number; :func:`number_of` is what the text alone would be.
    """
    try:
        return pl.Series(values, dtype=pl.Int64, strict=True)
    except (TypeError, OverflowError, pl.exceptions.PolarsError):
        texts = {v for v in values if isinstance(v, str) and v not in DRAWN_PROCESSES and not _is_number(v)}
    numbers = {text: _number_for(text) for text in texts}
    names |= {number: text for text, number in numbers.items()}
    return integers([numbers.get(v, v) if isinstance(v, str) else v for v in values])


def number_of(text: str) -> int | None:
    """Return the number that a text ends in, or None."""
    return _integer(text)


def _is_number(text: str) -> bool:
    return text.strip().removeprefix("-").isdecimal()


def _number_for(text: str) -> int:
    return FIRST_OF_TEXT + int.from_bytes(hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=7).digest())


def _addresses(values: Sequence[Any]) -> pl.Series:
    """Return addresses, which are only compared, with all their bits as signed numbers; -1 (nowhere) is null."""
    try:
        found = pl.Series(values, dtype=pl.Int64, strict=True)
    except (TypeError, OverflowError, pl.exceptions.PolarsError):
        found = integers([v - 2**64 if type(v) is int and 2**63 <= v < 2**64 else v for v in values])
    return found.set(found == -1, None) if -1 in found else found


def _integer(value: object) -> int | None:
    if isinstance(value, str):
        digits = value.rsplit(maxsplit=1)[-1] if value.strip() else ""
        value = int(digits) if digits.removeprefix("-").isdecimal() and len(digits) <= _MOST_DIGITS else None
    if isinstance(value, float):
        value = int(value) if value.is_integer() else None
    return value if isinstance(value, int) and -(2**63) <= value < 2**63 else None
