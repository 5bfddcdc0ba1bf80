"""Exact algebra of half-open integer intervals ``[start, end)``.

A set of intervals is an :class:`Intervals`: two int64 arrays, sorted, disjoint and not touching. Everything that
measures time in tracekit (overlap, exposure, idle time) is built from the functions here, so they are exact in
integer nanoseconds and vectorised.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]


class Intervals(NamedTuple):
    """Disjoint, sorted, non-touching half-open intervals; arrays of shape (n,)."""

    starts: IntArray
    ends: IntArray


EMPTY = Intervals(np.empty(0, np.int64), np.empty(0, np.int64))


def union(starts: npt.ArrayLike, ends: npt.ArrayLike) -> Intervals:
    """Return the union of any intervals; empty and negative ones (``end <= start``) count for nothing."""
    s, e = np.asarray(starts, np.int64), np.asarray(ends, np.int64)
    real = e > s
    s, e = s[real], e[real]
    if not s.size:
        return EMPTY
    order = np.argsort(s, kind="stable")
    s, reach = s[order], np.maximum.accumulate(e[order])
    first = np.concatenate(([True], s[1:] > reach[:-1]))
    last = np.concatenate((first[1:], [True]))
    return Intervals(s[first], reach[last])


def length(a: Intervals) -> int:
    """Return the total length of the set."""
    return int((a.ends - a.starts).sum())


def intersect(a: Intervals, b: Intervals) -> Intervals:
    """Return what lies in both sets."""
    points = _boundaries(a, b)
    return _select(points, _contains(a, points[:-1]) & _contains(b, points[:-1]))


def subtract(a: Intervals, b: Intervals) -> Intervals:
    """Return what lies in `a` and not in `b`."""
    points = _boundaries(a, b)
    return _select(points, _contains(a, points[:-1]) & ~_contains(b, points[:-1]))


def clip(a: Intervals, start: int, end: int) -> Intervals:
    """Return the part of the set inside ``[start, end)``."""
    return union(np.maximum(a.starts, start), np.minimum(a.ends, end))


def covered(starts: npt.ArrayLike, ends: npt.ArrayLike, cover: Intervals) -> IntArray:
    """Return, for each interval on its own, how much of it lies in `cover`; shape of `starts`."""
    s, e = np.asarray(starts, np.int64), np.asarray(ends, np.int64)
    return _measure_before(cover, np.maximum(s, e)) - _measure_before(cover, s)


def _measure_before(a: Intervals, points: IntArray) -> IntArray:
    """Length of the set to the left of each point."""
    if not a.starts.size:
        return np.zeros(points.shape, np.int64)
    total = np.concatenate(([0], np.cumsum(a.ends - a.starts)))
    nth = np.searchsorted(a.starts, points, side="right")
    beyond = np.where(nth > 0, np.maximum(a.ends[nth - 1] - points, 0), 0)
    return total[nth] - beyond


def _boundaries(a: Intervals, b: Intervals) -> IntArray:
    return np.unique(np.concatenate((a.starts, a.ends, b.starts, b.ends)))


def _contains(a: Intervals, points: IntArray) -> npt.NDArray[np.bool_]:
    if not a.starts.size:
        return np.zeros(points.shape, np.bool_)
    nth = np.searchsorted(a.starts, points, side="right") - 1
    return (nth >= 0) & (points < a.ends[nth])


def _select(points: IntArray, keep: npt.NDArray[np.bool_]) -> Intervals:
    """Return the union of the elementary segments between neighbouring points where `keep` is true."""
    return union(points[:-1][keep], points[1:][keep]) if points.size else EMPTY
