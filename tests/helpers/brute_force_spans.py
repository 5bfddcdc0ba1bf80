"""Sets of moments as sorted lists of (start, end), for the oracle (brute_force.py)."""

from __future__ import annotations

from collections.abc import Iterable

Spans = list[tuple[int, int]]


def union(spans: Iterable[tuple[int, int]]) -> Spans:
    merged: Spans = []
    for start, end in sorted(s for s in spans if s[1] > s[0]):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def minus(spans: Spans, others: Spans) -> Spans:
    """Return what of the spans is in none of the others; both are unions."""
    left: Spans = []
    nth = 0
    for start, end in spans:
        while nth < len(others) and others[nth][1] <= start:
            nth += 1
        here, at = nth, start
        while here < len(others) and others[here][0] < end:
            left.append((at, others[here][0]))
            at = max(at, others[here][1])
            here += 1
        left.append((at, end))
    return [(a, b) for a, b in left if b > a]


def within(spans: Spans, start: int, end: int) -> Spans:
    return [(max(a, start), min(b, end)) for a, b in spans if b > start and a < end]


def length(spans: Spans) -> int:
    return sum(end - start for start, end in spans)
