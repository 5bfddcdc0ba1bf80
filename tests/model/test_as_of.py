"""Looking up by time, and joins by recording: the same as a plain search, with one recording or several."""

from __future__ import annotations

import polars as pl
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from tracekit.model.as_of import latest
from tracekit.model.recordings import is_one, joined, with_first, without

KEYS = st.tuples(st.sampled_from([0, 1, 2]), st.sampled_from([0, 7]))
TIMES = st.one_of(st.none(), st.integers(-5, 12), st.sampled_from([-(2**62), 2**62]))
ROWS = st.lists(st.tuples(KEYS, TIMES), max_size=12)
ONE = st.lists(st.tuples(st.just((3, 1)), TIMES), max_size=12)


def frame(rows: list[tuple[tuple[int, int], int | None]]) -> pl.DataFrame:
    """Rank, cycle, time, and the place of each row."""
    flat = [(*key, time, place) for place, (key, time) in enumerate(rows)]
    schema = {"rank": pl.Int32, "cycle": pl.Int32, "time": pl.Int64, "place": pl.Int64}
    return pl.DataFrame(flat, schema=schema, orient="row")


@given(st.one_of(st.tuples(ROWS, ROWS), st.tuples(ONE, ONE), st.tuples(ONE, ROWS)))
def test_the_latest_row_is_found(tables: tuple[list, list]) -> None:
    table, rows = frame(tables[0]), frame(tables[1]).sort("time", maintain_order=True)
    found = latest(table, "time", rows, "time", ["rank", "cycle"])
    expected: list[int | None] = []
    for rank, cycle, time, _ in table.iter_rows():
        fit = [
            place
            for r, c, start, place in rows.iter_rows()
            if (r, c) == (rank, cycle) and None not in (time, start) and start <= time
        ]
        expected.append(fit[-1] if fit else None)
    assert found["place"].to_list() == expected
    assert found.columns == rows.columns


@given(st.one_of(st.tuples(ROWS, ROWS), st.tuples(ONE, ONE)))
def test_joins_are_those_on_all_columns(tables: tuple[list, list]) -> None:
    left, right = (frame(rows) for rows in tables)
    right = right.rename({"place": "other"})
    on = ["rank", "cycle", "time"]
    first = right.unique(on, keep="first", maintain_order=True)
    plain = left.join(first, on=on, how="left", maintain_order="left")
    assert_frame_equal(with_first(left, right, "time"), plain)
    assert_frame_equal(joined(left, first, "time"), plain)
    kept = left.join(right, on=["rank", "cycle"], how="anti", maintain_order="left")
    assert_frame_equal(without(left, right), kept)


def test_one_recording_is_one_rank_and_one_cycle() -> None:
    a, b = frame([((0, 0), 1), ((0, 0), 2)]), frame([((0, 7), 1)])
    assert is_one(a, a, a.clear())
    assert not is_one(a, b)
    assert not is_one(frame([((0, 0), 1), ((1, 0), 2)]))
    assert without(a) is a
    assert without(a, a).is_empty()
