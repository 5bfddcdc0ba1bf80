"""Integer nanoseconds from the decimal microseconds that Kineto writes."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal, InvalidOperation

import msgspec
import numpy as np
import polars as pl

# Below 2**43 us a float64 still separates neighbouring nanoseconds, so rounding 1000 * ts gives the written one.
# Absolute times (about 1.7e15 us) are beyond it: their floats are 0.25 us apart.
EXACT_FLOAT_US = float(2**43)
# Beyond these (the year 2116, 115 days) a time is damage, and sums of two no longer fit 64 bits.
LATEST_NS = 2**62
LONGEST_NS = 10**16

_INT64 = 2**63
_INT64_DIGITS = 19


# What _from_texts reads in one go: nearly every number that was ever written as a time.
_PLAIN_NUMBER = r"^-?\d{1,15}(?:\.\d{1,3})?$|^\d{16}(?:\.\d{1,3})?$"


def is_exact(values: Sequence[object]) -> bool:
    """Tell whether these microseconds, as decoded (int, float, text), still hold every written nanosecond."""
    kinds = set(map(type, values))
    if kinds <= {float, type(None)}:
        largest = pl.Series(values, dtype=pl.Float64).abs().max()
        return largest is None or bool(largest < EXACT_FLOAT_US)  # pyright: ignore[reportOperatorIssue]
    return not any(isinstance(v, float) and abs(v) >= EXACT_FLOAT_US for v in values)


def to_ns(values: Sequence[object]) -> pl.Series:
    """Return microseconds (int, float, Decimal or text, null where unusable) as int64 nanoseconds.

    Text can also be that of a JSON value, as msgspec.Raw.
    """
    kinds = set(map(type, values)) - {type(None)}
    ns: pl.Series | None = None
    if kinds in ({float}, {float, int}):
        ns = _from_floats(pl.Series(values, dtype=pl.Float64, strict=False))
    elif kinds == {int}:
        ns = _from_integers(values)
    elif kinds == {msgspec.Raw}:
        return _from_texts([None if v is None else bytes(v).decode("utf-8", "replace") for v in values])  # type: ignore[arg-type]
    return pl.Series([_one(v) for v in values], dtype=pl.Int64) if ns is None else ns


def _from_floats(numbers: pl.Series) -> pl.Series | None:
    written = numbers.is_not_null()
    filled = numbers.fill_null(0.0).to_numpy()
    # The comparison is false for NaN too.
    if not np.abs(filled).max() < EXACT_FLOAT_US:
        return None
    ns = pl.Series(np.rint(filled * 1000).astype(np.int64))
    return ns if written.all() else pl.select(pl.when(written).then(ns)).to_series()


def _from_integers(numbers: Sequence[object]) -> pl.Series | None:
    try:
        integers = pl.Series(numbers, dtype=pl.Int64)
    except (OverflowError, TypeError, pl.exceptions.PolarsError):
        return None
    fits = integers.is_between(-(_INT64 // 1000), _INT64 // 1000, closed="none").all()
    return integers * 1000 if fits else None


def _from_texts(texts: Sequence[str | None]) -> pl.Series:
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
    others = [None if text is None else _from_decimal(text.strip('"')) for text in frame["text"].gather(rare)]
    return frame["ns"].scatter(rare, pl.Series(others, dtype=pl.Int64))


def _one(value: object) -> int | None:
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int):
        ns = value * 1000
    elif isinstance(value, float):
        ns = round(value * 1000) if abs(value) < _INT64 else None
    else:
        ns = _from_decimal(
            bytes(value).decode("utf-8", "replace").strip('"') if isinstance(value, msgspec.Raw) else value
        )
    return ns if ns is not None and abs(ns) < _INT64 else None


def _from_decimal(value: object) -> int | None:
    if not isinstance(value, str | Decimal) or len(str(value)) > 64:
        return None
    try:
        number = Decimal(value)
        ns = round(number * 1000) if number.is_finite() and number.adjusted() < _INT64_DIGITS else None
    except InvalidOperation:
        return None
    return ns if ns is not None and abs(ns) < _INT64 else None
