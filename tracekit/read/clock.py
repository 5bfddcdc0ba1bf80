"""Integer nanoseconds from the decimal microseconds that Kineto writes."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal, InvalidOperation

import numpy as np
import numpy.typing as npt
import polars as pl

# Below 2**43 us a float64 still separates neighbouring nanoseconds, so rounding 1000 * ts gives the written one.
# Absolute times (about 1.7e15 us) are beyond it: their floats are 0.25 us apart.
EXACT_FLOAT_US = float(2**43)

_INT64 = 2**63


def is_exact(values: Sequence[object]) -> bool:
    """Tell whether these microseconds, as decoded (int, float, text), still hold every written nanosecond."""
    if set(map(type, values)) <= {float}:
        return not values or bool(np.abs(np.array(values)).max() < EXACT_FLOAT_US)
    return not any(isinstance(v, float) and abs(v) >= EXACT_FLOAT_US for v in values)


def to_ns(values: Sequence[object]) -> pl.Series:
    """Return microseconds (int, float, Decimal or text, null where unusable) as int64 nanoseconds."""
    kinds = set(map(type, values))
    numbers = [0 if v is None else v for v in values] if type(None) in kinds else values
    ns: npt.NDArray[np.int64] | None = None
    if kinds <= {float, int, type(None)} and float in kinds:
        ns = _from_floats(np.array(numbers, np.float64))
    elif kinds <= {int, type(None)} and int in kinds:
        ns = _from_integers(numbers)
    if ns is None:
        return pl.Series([_one(v) for v in values], dtype=pl.Int64)
    if numbers is values:
        return pl.Series(ns)
    absent = pl.Series([v is None for v in values])
    return pl.select(pl.when(~absent).then(pl.Series(ns))).to_series()


def _from_floats(numbers: npt.NDArray[np.float64]) -> npt.NDArray[np.int64] | None:
    # The comparison is false for NaN too.
    return np.rint(numbers * 1000).astype(np.int64) if np.abs(numbers).max() < EXACT_FLOAT_US else None


def _from_integers(numbers: Sequence[object]) -> npt.NDArray[np.int64] | None:
    try:
        integers = np.array(numbers, np.int64)
    except OverflowError:
        return None
    return integers * 1000 if np.abs(integers).max() < _INT64 // 1000 else None


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
    if not isinstance(value, str | Decimal) or len(str(value)) > 64:
        return None
    try:
        number = Decimal(value)
        return round(number * 1000) if number.is_finite() and abs(number) < _INT64 else None
    except InvalidOperation:
        return None
