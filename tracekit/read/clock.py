"""Integer nanoseconds from the decimal microseconds that Kineto writes."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal, InvalidOperation

import polars as pl

# Below 2**43 us a float64 still separates neighbouring nanoseconds, so rounding 1000 * ts gives the written one.
# Absolute times (about 1.7e15 us) are beyond it: their floats are 0.25 us apart.
EXACT_FLOAT_US = float(2**43)

_INT64 = 2**63


def is_exact(values: Sequence[object]) -> bool:
    """Tell whether these microseconds, as decoded (int, float, text), still hold every written nanosecond."""
    return not any(isinstance(v, float) and abs(v) >= EXACT_FLOAT_US for v in values)


def to_ns(values: Sequence[object]) -> pl.Series:
    """Return microseconds (int, float, Decimal or text, null where unusable) as int64 nanoseconds."""
    return pl.Series([_one(v) for v in values], dtype=pl.Int64)


def _one(value: object) -> int | None:
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int):
        ns = value * 1000
    elif isinstance(value, float):
        ns = round(value * 1000) if abs(value) < _INT64 else None
    else:
        ns = _from_decimal(value)
    return ns if ns is not None and abs(ns) < _INT64 else None


def _from_decimal(value: object) -> int | None:
    try:
        number = Decimal(str(value))
        return round(number * 1000) if number.is_finite() and abs(number) < _INT64 else None
    except InvalidOperation:
        return None
