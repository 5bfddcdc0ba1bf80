from __future__ import annotations

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from tracekit.model.devices.operators import own_time

SCHEMA = {"thread": pl.Int64, "start_ns": pl.Int64, "dur_ns": pl.Int64, "index": pl.Int64}
Span = tuple[int, int]


def stretches(spans: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """(index, start, end) of each stretch, for spans (thread, start, duration)."""
    rows = [(*span, i) for i, span in enumerate(spans)]
    own = own_time(pl.DataFrame(rows, schema=SCHEMA, orient="row"), ["thread"]).sort("thread", "start_ns")
    return own.select("index", "start_ns", (pl.col("start_ns") + pl.col("dur_ns")).alias("end_ns")).rows()


def test_own_time_is_what_the_operators_inside_leave() -> None:
    assert stretches([(1, 0, 100), (1, 10, 20), (1, 15, 5), (1, 40, 60)]) == [
        (0, 0, 10),
        (1, 10, 15),
        (2, 15, 20),
        (1, 20, 30),
        (0, 30, 40),
        (3, 40, 100),
    ]


def test_neighbours_that_touch_and_spans_that_share_an_edge() -> None:
    assert stretches([(1, 0, 10), (1, 0, 4), (1, 4, 6), (1, 10, 5)]) == [(1, 0, 4), (2, 4, 10), (3, 10, 15)]


def test_threads_do_not_see_each_other() -> None:
    assert stretches([(1, 0, 10), (2, 3, 4)]) == [(0, 0, 10), (1, 3, 7)]


def test_no_operators_and_one_of_no_length() -> None:
    assert stretches([]) == []
    assert stretches([(1, 5, 0)]) == []


@st.composite
def nested(draw: st.DrawFn, start: int = 0, end: int = 40, depth: int = 4) -> list[Span]:
    """Properly nested spans inside [start, end)."""
    spans: list[Span] = []
    at = start
    while at < end and draw(st.booleans()):
        low = draw(st.integers(at, end - 1))
        high = draw(st.integers(low, end))
        spans.append((low, high - low))
        if depth and high > low:
            spans += draw(nested(low, high, depth - 1))
        at = high
    return spans


@given(nested())
def test_each_moment_belongs_to_the_innermost_operator(spans: list[Span]) -> None:
    owner: dict[int, int] = {}
    for index, (start, length) in enumerate(spans):  # a span comes before those inside it
        owner |= dict.fromkeys(range(start, start + length), index)
    found = {p: i for i, low, high in stretches([(1, *span) for span in spans]) for p in range(low, high)}
    assert {p: spans[i] for p, i in found.items()} == {p: spans[i] for p, i in owner.items()}
