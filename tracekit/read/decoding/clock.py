"""Integer nanoseconds from the decimal microseconds that Kineto writes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation

import msgspec
import numpy as np
import polars as pl

# Below 2**43 us a float64 still separates neighbouring nanoseconds: its whole and its fractional part give the written
# one. (The product 1000 * ts does not from 2**42 us on, where it is rounded a second time, to half a nanosecond.)
# Absolute times (about 1.7e15 us) are beyond it: their floats are 0.25 us apart.
EXACT_FLOAT_US = float(2**43)
# Later times (the year 2116) and longer ones (101 days) are damage: sums of two no longer fit 64 bits.
LATEST_NS = 2**62
LONGEST_NS = 2**43 * 1000

_INT64 = 2**63
_INT64_DIGITS = 19
# The notation that _from_texts vectorises: nearly every time that is written at all.
_PLAIN_NUMBER = r"^-?\d{1,15}(?:\.\d{1,3})?$|^[1-8]\d{15}(?:\.\d{1,3})?$"


class RoundedError(ValueError):
    """Floats are too large to hold every nanosecond that was written: their digits are needed."""


def starts(values: Sequence[object]) -> pl.Series:
    """Return microseconds (int, float or text, or all as msgspec.Raw; null where unusable) as int64 nanoseconds.

    Raises:
        RoundedError: floats among them are too large to be exact.
    """
    if values and isinstance(values[0], msgspec.Raw):
        return _from_texts([bytes(v).decode("utf-8", "replace") for v in values])  # type: ignore[arg-type]
    numbers = _numbers(values)
    if numbers is not None and _largest(numbers) < EXACT_FLOAT_US:
        return _from_floats(numbers)
    if any(isinstance(v, float) and not abs(v) < EXACT_FLOAT_US for v in values):
        raise RoundedError
    integers = _from_integers(values) if numbers is not None else None
    return _one_by_one(values) if integers is None else integers


def lengths(values: Sequence[object]) -> pl.Series:
    """Return durations in microseconds (int, float or text, null where unusable) as int64 nanoseconds."""
    numbers = _numbers(values)
    if numbers is not None and _largest(numbers) < EXACT_FLOAT_US:
        return _from_floats(numbers)
    return _one_by_one(values)


def _numbers(values: Sequence[object]) -> pl.Series | None:
    try:
        return pl.Series(values, dtype=pl.Float64)
    except (TypeError, OverflowError, pl.exceptions.PolarsError):
        return None


def _largest(numbers: pl.Series) -> float:
    return float(np.fmax.reduce(np.abs(numbers.to_numpy()), initial=0.0))


def _from_floats(numbers: pl.Series) -> pl.Series:
    us = numbers.to_numpy()
    whole = np.floor(us)
    # Infinite durations are among them; both parts are integers below 2**53, so that their sum is exact.
    with np.errstate(invalid="ignore"):
        ns = whole * 1000 + np.rint((us - whole) * 1000)
    return pl.Series(ns, nan_to_null=True).cast(pl.Int64)


def _from_integers(numbers: Sequence[object]) -> pl.Series | None:
    try:
        integers = pl.Series(numbers, dtype=pl.Int64)
    except (OverflowError, TypeError, pl.exceptions.PolarsError):
        return None
    fits = integers.is_between(-(_INT64 // 1000), _INT64 // 1000, closed="none").all()
    return integers * 1000 if fits else None


def _from_texts(texts: Sequence[str]) -> pl.Series:
    frame = pl.DataFrame({"text": pl.Series(texts, dtype=pl.String)})
    plain = pl.col("text").str.contains(_PLAIN_NUMBER)
    whole = pl.col("text").str.extract(r"^-?(\d+)").cast(pl.Int64, strict=False)
    part = pl.col("text").str.extract(r"\.(\d+)$").fill_null("").str.pad_end(3, "0").cast(pl.Int64, strict=False)
    size = whole * 1000 + part
    signed = pl.when(pl.col("text").str.starts_with("-")).then(-size).otherwise(size)
    frame = frame.select("text", pl.when(plain).then(signed).alias("ns"))
    rare = frame["ns"].is_null().arg_true()
    if rare.is_empty():
        return frame["ns"]
    others = [_from_json(text) for text in frame["text"].gather(rare)]
    return frame["ns"].scatter(rare, pl.Series(others, dtype=pl.Int64))


def _from_json(text: str) -> int | None:
    """Return the nanoseconds of a number in quotes, or of one in another notation."""
    try:
        return _from_decimal(msgspec.json.decode(text) if text.startswith('"') else text)
    except msgspec.DecodeError:
        return None


def _one_by_one(values: Sequence[object]) -> pl.Series:
    return pl.Series([_one(v) for v in values], dtype=pl.Int64)


def _one(value: object) -> int | None:
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int):
        ns = value * 1000
    elif isinstance(value, float):
        ns = _float_ns(value) if abs(value) < _INT64 else None
    else:
        ns = _from_decimal(value)
    return ns if ns is not None and abs(ns) < _INT64 else None


def _float_ns(us: float) -> int:
    whole = math.floor(us)
    return whole * 1000 + round((us - whole) * 1000)


def _from_decimal(value: object) -> int | None:
    if not isinstance(value, str | Decimal) or len(str(value)) > 64:
        return None
    try:
        number = Decimal(value)
        ns = round(number * 1000) if number.is_finite() and number.adjusted() < _INT64_DIGITS else None
    except InvalidOperation:
        return None
    return ns if ns is not None and abs(ns) < _INT64 else None
