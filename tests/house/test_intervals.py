from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tracekit import intervals

# Brute force: an interval set is the set of the integer points it covers.
pairs = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)).map(lambda p: (p[0], p[0] + p[1])), max_size=8)


def points(spans: list[tuple[int, int]]) -> set[int]:
    return {p for start, end in spans for p in range(start, end)}


def made(spans: list[tuple[int, int]]) -> intervals.Intervals:
    return intervals.union([s for s, _ in spans], [e for _, e in spans])


def covered_points(a: intervals.Intervals) -> set[int]:
    return points(list(zip(a.starts.tolist(), a.ends.tolist(), strict=True)))


def test_touching_intervals_become_one() -> None:
    joined = intervals.union([10, 0, 5], [12, 5, 10])
    assert (joined.starts.tolist(), joined.ends.tolist()) == ([0], [12])


def test_empty_and_negative_intervals_count_for_nothing() -> None:
    assert intervals.length(intervals.union([5, 9], [5, 3])) == 0


def test_common_fixture_hides_half_of_the_all_gather() -> None:
    gemm, gather = intervals.union([1010], [1110]), intervals.union([1060], [1160])
    assert intervals.length(intervals.intersect(gather, gemm)) == 50
    assert intervals.length(intervals.subtract(gather, gemm)) == 50


@given(pairs, pairs)
def test_algebra_agrees_with_sets_of_points(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    left, right = made(a), made(b)
    assert covered_points(left) == points(a)
    assert intervals.length(left) == len(points(a))
    assert covered_points(intervals.intersect(left, right)) == points(a) & points(b)
    assert covered_points(intervals.subtract(left, right)) == points(a) - points(b)
    assert covered_points(intervals.clip(left, 7, 19)) == points(a) & set(range(7, 19))


@given(pairs, pairs)
def test_results_are_sorted_disjoint_and_not_touching(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    for result in (made(a), intervals.intersect(made(a), made(b)), intervals.subtract(made(a), made(b))):
        assert (result.starts < result.ends).all()
        assert (result.starts[1:] > result.ends[:-1]).all()


@given(pairs, pairs)
def test_covered_measures_each_interval_on_its_own(spans: list[tuple[int, int]], cover: list[tuple[int, int]]) -> None:
    starts, ends = [s for s, _ in spans], [e for _, e in spans]
    expected = [len(points([span]) & points(cover)) for span in spans]
    assert intervals.covered(starts, ends, made(cover)).tolist() == expected


def test_large_times_stay_exact() -> None:
    base = 1_796_012_371_549_095_131
    a = intervals.union(np.array([base, base + 3]), np.array([base + 1, base + 4]))
    assert intervals.length(intervals.subtract(intervals.union([base], [base + 10]), a)) == 8
