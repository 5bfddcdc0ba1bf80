from __future__ import annotations

import polars as pl
import pytest
from fakes import US, common_fixture, run_of, step, work
from hypothesis import given
from hypothesis import strategies as st

from tracekit.analyzers.breakdown import BREAKDOWN_SCHEMA, breakdown, outside_steps

PARTS = ("step_ns", "compute_ns", "exposed_comm_ns", "exposed_copy_ns", "idle_ns", "residual_ns")


def parts(run) -> list[tuple[int, ...]]:
    return breakdown(run).select(pl.col(PARTS) // US).rows()


def test_a_step_on_a_gpu_spans_its_own_work():
    assert parts(common_fixture()) == [(150, 100, 50, 0, 0, 0)]


def test_compute_comes_before_communication_before_copies_before_nothing():
    run = run_of(
        steps=[step(5, 0, 200)],
        work=[
            work("compute", "stream 7", 0, 100),
            work("comm", "stream 20", 50, 150),
            work("copy", "stream 30", 90, 170),
            work("other", "stream 40", 160, 190),
            work("compute", "stream 7", 195, 200),
        ],
    )
    assert parts(run) == [(200, 105, 50, 20, 25, 0)]


def test_a_window_reaches_to_the_next_step_and_the_last_to_its_own_end():
    run = run_of(
        steps=[step(5, 0, 100), step(6, 100, 200), step(7, 200, 300)],
        work=[
            work("compute", "stream 7", 10, 50, step=5),
            work("compute", "stream 7", 130, 160, step=6),
            work("comm", "stream 20", 140, 220, step=6),
            work("compute", "stream 7", 210, 240, step=7),
        ],
    )
    # 5: 10..130. 6: 130..210: the last 10 of its communication run under step 7's compute. 7: 210..240.
    assert parts(run) == [(120, 40, 0, 0, 80, 0), (80, 30, 50, 0, 0, 0), (30, 30, 0, 0, 0, 0)]


def test_a_step_before_a_pause_ends_with_its_own_work():
    run = run_of(
        steps=[step(5, 0, 100), step(9, 5000, 5100)],
        work=[work("compute", "stream 7", 10, 150, step=5), work("compute", "stream 7", 5020, 5030, step=9)],
    )
    assert parts(run) == [(140, 140, 0, 0, 0, 0), (10, 10, 0, 0, 0, 0)]


def test_a_step_without_work_is_no_idle_time_of_the_step_before():
    run = run_of(
        steps=[step(5, 0, 100), step(6, 100, 200), step(7, 200, 300)],
        work=[work("compute", "stream 7", 10, 50, step=5), work("compute", "stream 7", 210, 240, step=7)],
    )
    assert parts(run) == [(40, 40, 0, 0, 0, 0), (30, 30, 0, 0, 0, 0)]


def test_a_step_whose_work_runs_late_still_ends_with_it():
    run = run_of(
        steps=[step(5, 0, 100), step(6, 100, 200)],
        work=[work("compute", "stream 7", 150, 170, step=5), work("comm", "stream 20", 120, 160, step=6)],
    )
    # Step 6 starts on the device before step 5 does, and its window ends there.
    assert parts(run) == [(20, 20, 0, 0, 0, 0), (30, 0, 30, 0, 0, 0)]


def test_windows_never_overlap_where_a_step_between_launched_nothing():
    run = run_of(
        steps=[step(5, 0, 100), step(6, 100, 200), step(7, 200, 300)],
        work=[work("compute", "stream 7", 10, 250, step=5), work("compute", "stream 8", 210, 260, step=7)],
    )
    assert parts(run) == [(200, 200, 0, 0, 0, 0), (50, 50, 0, 0, 0, 0)]


def test_work_outside_steps_is_measured_as_busy_time_once():
    run = run_of(
        steps=[step(5, 0, 100)],
        work=[
            work("compute", "stream 7", 0, 60),
            work("compute", "stream 7", 200, 230, step=None),
            work("comm", "stream 20", 210, 240, step=None),
            work("other", "stream 40", 300, 400, step=None),
            work("compute", "thread 1", 500, 900, step=None, device="cpu"),
        ],
    )
    assert outside_steps(run) == (40 * US, 100 * US)


@pytest.mark.parametrize(("steps", "outside"), [([step(None, 0, 100)], 0), ([], 10)])
def test_a_whole_trace_is_a_step_of_its_own(steps, outside):
    run = run_of(steps=steps, work=[work("compute", "stream 7", 10, 20, step=None)])
    assert outside_steps(run) == (outside * US, 10 * US)
    assert outside_steps(run_of(steps=steps)) == (0, 0)


def test_step_marks_are_the_windows_on_a_cpu():
    run = run_of(
        steps=[step(5, 0, 100), step(6, 100, 150)],
        work=[
            work("compute", "thread 1", 20, 60, device="cpu"),
            work("comm", "thread 2", 90, 110, device="cpu"),
        ],
    )
    assert parts(run) == [(100, 40, 10, 0, 50, 0), (50, 0, 10, 0, 40, 0)]


def test_work_outside_all_steps_belongs_to_none():
    run = run_of(
        steps=[step(5, 0, 100)],
        work=[work("compute", "stream 7", 10, 20), work("compute", "stream 7", 0, 5, step=None)],
    )
    assert parts(run) == [(10, 10, 0, 0, 0, 0)]


def test_a_trace_without_marks_is_one_window():
    run = run_of(
        steps=[step(None, 0, 100)],
        work=[work("compute", "stream 7", 10, 20, step=None), work("copy", "stream 7", 30, 35, step=None)],
    )
    assert parts(run) == [(25, 10, 0, 5, 10, 0)]
    assert breakdown(run)["step"].to_list() == [None]


def test_the_host_of_a_gpu_run_is_no_device_of_the_step():
    run = common_fixture()
    run.work = pl.concat([run.work, run_of(work=[work("compute", "thread 1", 0, 9, device="cpu")]).work])
    assert parts(run) == [(150, 100, 50, 0, 0, 0)]


def test_several_gpus_of_a_rank_have_a_row_each():
    run = run_of(
        steps=[step(5, 0, 100)],
        work=[
            work("compute", "stream 7", 0, 10),
            work("comm", "stream 7", 0, 30, device="cuda:1"),
        ],
    )
    assert parts(run) == [(10, 10, 0, 0, 0, 0), (30, 0, 30, 0, 0, 0)]
    assert breakdown(run)["device"].to_list() == ["cuda:0", "cuda:1"]


@pytest.mark.parametrize("steps", [[], [step(5, 0, 100)]])
def test_nothing_done_on_a_cpu_is_idle(steps):
    frame = breakdown(run_of(steps=steps))
    assert frame.schema == BREAKDOWN_SCHEMA
    assert parts(run_of(steps=steps)) == [(100, 0, 0, 0, 100, 0)][: len(steps)]


classes = st.sampled_from(["compute", "comm", "copy", "other"])
rows = st.lists(st.tuples(classes, st.integers(0, 60), st.integers(0, 20), st.integers(5, 7)), max_size=12)


@given(rows)
def test_the_parts_add_up_to_every_step_whatever_the_work(rows):
    run = run_of(
        steps=[step(number, 0, 0) for number in (5, 6, 7)],
        work=[
            {**work(kind, "stream 7", 0, 0, step=number), "start_ns": start, "dur_ns": dur}
            for kind, start, dur, number in rows
        ],
    )
    frame = breakdown(run)
    assert frame["residual_ns"].to_list() == [0] * frame.height
    assert all(frame.select(pl.col(PARTS).min() >= 0).row(0)) or frame.is_empty()
