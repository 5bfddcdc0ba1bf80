from __future__ import annotations

import polars as pl
import pytest
from fakes import US, collective, common_fixture, run_of, work
from hypothesis import given
from hypothesis import strategies as st

from tracekit.analyzers.overlap import OVERLAP_BY, OVERLAP_SCHEMA, overlap
from tracekit.errors import UsageError

MEASURES = OVERLAP_SCHEMA.names()[len(OVERLAP_BY.default) :]


def times(frame) -> list[tuple[int | None, ...]]:
    """comm, overlapped, exposed in µs."""
    columns = [pl.col(name) // US for name in ("comm_ns", "overlapped_ns", "exposed_ns")]
    return frame.select(columns).rows()


def test_half_of_the_gather_lies_under_the_gemm():
    frame = overlap(common_fixture())
    assert times(frame) == [(100, 50, 50)]
    assert frame.select("rank", "step", "kind", "num_collectives", "overlap_ratio").row(0) == (
        0,
        5,
        "all_gather",
        1,
        0.5,
    )


def test_two_collectives_at_once_count_once_in_their_union():
    run = common_fixture(("comm", "stream 24", 1080, 1180))
    frame = overlap(run, by=["rank"])
    assert times(frame) == [(120, 50, 70)]
    assert round(100 * frame["overlap_ratio"][0], 2) == 41.67
    assert frame["num_collectives"].to_list() == [2]


def test_each_kind_is_measured_by_its_own_union():
    gather, scatter = ("stream 20", 1060, 1160), ("stream 24", 1080, 1180)
    run = run_of(
        work=[work("compute", "stream 7", 1010, 1110)],
        collectives=[collective("all_gather", *gather), collective("reduce_scatter", *scatter)],
    )
    assert times(overlap(run, by=["kind"])) == [(100, 50, 50), (100, 30, 70)]
    assert times(overlap(run, by=[])) == [(120, 50, 70)]


def test_neighbours_on_one_lane_never_overlap():
    run = run_of(
        work=[work("compute", "stream 7", 0, 100), work("comm", "stream 7", 100, 150)],
        collectives=[collective("all_gather", "stream 7", 100, 150)],
    )
    assert times(overlap(run)) == [(50, 0, 50)]


def test_a_short_kernel_inside_a_collective_hides_its_own_length():
    run = run_of(
        work=[work("compute", "stream 7", 40, 43)],
        collectives=[collective("all_gather", "stream 20", 0, 100)],
    )
    assert times(overlap(run)) == [(100, 3, 97)]


def test_compute_of_another_rank_or_device_hides_nothing():
    elsewhere = [
        work("compute", "stream 7", 0, 100, rank=1),
        work("compute", "stream 7", 0, 100, device="cuda:1"),
        work("copy", "stream 7", 0, 100),
        work("other", "stream 7", 0, 100),
    ]
    run = run_of(work=elsewhere, collectives=[collective("all_gather", "stream 20", 0, 100)])
    assert times(overlap(run)) == [(100, 0, 100)]


def test_compute_of_the_next_step_hides_too():
    run = run_of(
        work=[work("compute", "stream 7", 60, 100, step=6)],
        collectives=[collective("all_gather", "stream 20", 0, 100, step=5)],
    )
    assert times(overlap(run)) == [(100, 40, 60)]


def test_ranks_are_summed_when_rank_is_no_key():
    run = run_of(
        work=[work("compute", "stream 7", 0, 30)],
        collectives=[collective("all_gather", "stream 20", 0, 100, rank=rank) for rank in (0, 1)],
    )
    assert times(overlap(run, by=["kind"])) == [(200, 30, 170)]


def test_communication_in_no_collective_does_not_vanish():
    run = run_of(work=[work("comm", "stream 20", 0, 10), work("compute", "stream 7", 5, 10)])
    frame = overlap(run)
    assert times(frame) == [(10, 5, 5)]
    assert frame.select("kind", "num_collectives").row(0) == (None, 0)


def test_communication_in_a_collective_is_not_counted_twice():
    assert overlap(common_fixture(), by=["rank"])["num_collectives"].to_list() == [1]


def test_a_collective_that_never_ran_is_counted_and_has_no_time():
    never = {**collective("all_gather", "stream 20", 0, 0), "start_ns": None, "dur_ns": None}
    frame = overlap(run_of(collectives=[never]))
    assert frame.select(MEASURES).row(0) == (1, None, None, None, None)


def test_null_layers_form_a_group_of_their_own():
    run = run_of(
        collectives=[
            collective("all_gather", "stream 20", 0, 10),
            collective("all_gather", "stream 20", 20, 30),
            collective("all_gather", "stream 20", 40, 45, layer=""),
        ]
    )
    assert overlap(run, by=["layer"]).select("layer", "comm_ns").rows() == [(None, 20 * US), ("", 5 * US)]


def test_an_unknown_column_is_refused_with_the_ones_that_work():
    with pytest.raises(UsageError, match="grouped by 'colour': there are rank, step"):
        overlap(run_of(), by=["rank", "colour"])


@pytest.mark.parametrize("by", [None, (), ("rank",), ("device", "lane", "dtype")])
def test_an_empty_run_gives_an_empty_table(by):
    frame = overlap(run_of(), by=by)
    assert frame.is_empty()
    assert frame.columns == [*(OVERLAP_BY.default if by is None else by), *MEASURES]


spans = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 10)), max_size=8)


@given(comm=spans, compute=spans)
def test_agrees_with_counting_every_nanosecond(comm, compute):
    run = run_of(
        work=[{**work("compute", "a", 0, 0), "start_ns": start, "dur_ns": dur} for start, dur in compute],
        collectives=[{**collective("all_gather", "b", 0, 0), "start_ns": start, "dur_ns": dur} for start, dur in comm],
    )
    busy, talking = ({ns for start, dur in rows for ns in range(start, start + dur)} for rows in (compute, comm))
    row = overlap(run, by=[]).select(pl.col("comm_ns", "overlapped_ns", "exposed_ns").fill_null(0)).rows()
    assert row == ([(len(talking), len(talking & busy), len(talking - busy))] if comm else [])
