from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st
from kineto import COMMON, kernel, mark, span, step, write

import tracekit
from tracekit.model.event_kinds import kinds
from tracekit.model.steps import STEPS_SCHEMA, step_at, steps
from tracekit.read.traces import REPAIRS_SCHEMA

US = 1000


def test_windows_run_from_mark_to_mark(tmp_path: Path) -> None:
    run = tracekit.open(write(tmp_path / "r.json", [step(6, 1190, 100), step(5, 1000, 150), span("op", 1400, 1)]))
    assert run.steps.select("step", "start_ns", "end_ns", "complete").rows() == [
        (5, 1000 * US, 1190 * US, True),
        (6, 1190 * US, 1290 * US, True),
    ]


def test_without_marks_there_is_one_window_and_it_says_so(tmp_path: Path) -> None:
    run = tracekit.open(write(tmp_path / "r.json", COMMON[1:]))
    assert run.steps.select("step", "start_ns", "end_ns").rows() == [(None, 1005 * US, 1160 * US)]
    assert "no ProfilerStep" in run.steps["reason"].item()
    assert run.work["step"].to_list() == [None, None]


def test_a_mark_on_the_gpu_side_is_no_step(tmp_path: Path) -> None:
    gpu_side = span("ProfilerStep#5", 1010, 1, cat="gpu_user_annotation", tid=7, pid=0)
    run = tracekit.open(write(tmp_path / "r.json", [*COMMON, gpu_side]))
    assert run.steps.select("start_ns", "end_ns").rows() == [(1000 * US, 1200 * US)]


def test_work_belongs_to_the_step_that_launched_it(tmp_path: Path) -> None:
    late = kernel("gemm", 1250, 10, stream=7, correlation=3, launch=1190)
    run = tracekit.open(write(tmp_path / "r.json", [step(5, 1000, 200), step(6, 1200, 200), *late]))
    assert run.work.select("step", "linked_by").rows() == [(5, "correlation")]


def test_steps_of_an_empty_frame() -> None:
    events = tracekit_events().clear()
    assert steps(kinds(events)).schema == pl.Schema(STEPS_SCHEMA)


def tracekit_events() -> pl.DataFrame:
    from tracekit.read.decoding.columns import EVENT_SCHEMA

    return pl.DataFrame(schema={"rank": pl.Int32(), "cycle": pl.Int32(), **EVENT_SCHEMA})


def later(launch: float) -> list[dict[str, Any]]:
    """A kernel launched then, which runs after all steps of these tests."""
    return kernel("gemm", 9000, 10, stream=7, correlation=99, launch=launch)


def windows(path: Path, *events: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Step, start and end in microseconds, complete."""
    run = tracekit.open(write(path / "r.json", list(events)), cache=False)
    return run.steps.select("step", pl.col("start_ns") // US, pl.col("end_ns") // US, "complete").rows()


def test_a_step_before_a_pause_ends_with_its_own_mark(tmp_path: Path) -> None:
    late = kernel("gemm", 3000, 10, stream=7, correlation=3, launch=2995)
    path = write(tmp_path / "r.json", [step(5, 1000, 200), step(9, 5000, 200), *late])
    run = tracekit.open(path)
    assert run.steps.select(pl.col("start_ns", "end_ns") // US).rows() == [(1000, 1200), (5000, 5200)]
    assert run.work["step"].to_list() == [None]


def test_steps_are_those_of_the_thread_with_most_marks_then_most_time(tmp_path: Path) -> None:
    main = [step(5, 1000, 200), step(6, 1200, 200)]
    assert windows(tmp_path, mark("ProfilerStep#105", 1050, 40, tid=50), *main) == [
        (5, 1000, 1200, True),
        (6, 1200, 1400, True),
    ]
    assert windows(tmp_path, mark("ProfilerStep#5", 1100, 50, tid=50), main[0]) == [(5, 1000, 1200, True)]


def test_marks_inside_a_mark_of_their_thread_are_no_steps(tmp_path: Path) -> None:
    inner = [step(6, 1050, 100), step(7, 1160, 10)]
    path = write(tmp_path / "r.json", [step(5, 1000, 200), *inner, step(6, 1200, 200), *later(1180)])
    run = tracekit.open(path)
    assert run.steps.select("step", pl.col("start_ns", "end_ns") // US).rows() == [(5, 1000, 1200), (6, 1200, 1400)]
    assert run.work["step"].to_list() == [5]
    assert run.repairs.select("rank", "count", "done").rows() == [(0, 2, "not used as steps")]


def test_marks_that_cross_share_no_time(tmp_path: Path) -> None:
    assert windows(tmp_path, step(5, 1000, 250), step(9, 1200, 200)) == [(5, 1000, 1200, True), (9, 1200, 1400, True)]


def test_a_number_marked_twice_is_a_step_in_doubt(tmp_path: Path) -> None:
    path = write(tmp_path / "r.json", [step(5, 1000, 200), step(5, 2000, 200), step(6, 2200, 200)])
    run = tracekit.open(path)
    assert run.steps.select("step", pl.col("start_ns", "end_ns") // US, "complete").rows() == [
        (5, 1000, 1200, False),
        (6, 2200, 2400, True),
    ]
    assert run.steps["reason"].to_list() == ["step 5 is marked 2 times; only the first mark is used", None]
    assert run.repairs["count"].to_list() == [1]


def test_a_step_number_too_large_to_hold_is_no_step(tmp_path: Path) -> None:
    run = tracekit.open(write(tmp_path / "r.json", [step(10**22, 1000, 200), *COMMON[1:]]))
    assert run.steps["step"].to_list() == [None]
    assert run.repairs["count"].to_list() == [1]


def test_marks_in_order_leave_no_repair(tmp_path: Path) -> None:
    assert tracekit.open(write(tmp_path / "r.json", [step(5, 1000, 200), step(6, 1200, 200)])).repairs.is_empty()


TIMES = {"rank": pl.Int32, "cycle": pl.Int32, "at": pl.Int64}
placed_marks = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 40), st.integers(0, 20), st.integers(1, 2)), max_size=10
)


@given(placed_marks)
@settings(deadline=None)
def test_windows_never_overlap_and_hold_each_time_once(placed: list[tuple[int, int, int, int]]) -> None:
    rows = [
        {"rank": 0, "cycle": 0, "index": i, "ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{number}",
         "pid": "1", "tid": str(thread), "ts_ns": start, "dur_ns": dur}
        for i, (number, start, dur, thread) in enumerate(placed)
    ]  # fmt: skip
    table = steps(kinds(pl.DataFrame(rows, schema=tracekit_events().schema)))
    numbered = table.sort("start_ns", "end_ns")
    ends = numbered["end_ns"].to_list()
    assert all(end <= start for end, start in zip(ends, numbered["start_ns"].to_list()[1:], strict=False))
    assert numbered["step"].is_unique().all()
    times = pl.DataFrame([(0, 0, at) for at in range(62)], schema=TIMES, orient="row")
    held = [
        next((n for n, start, end in numbered.select("step", "start_ns", "end_ns").rows() if start <= at < end), None)
        for at in range(62)
    ]
    assert step_at(times, table, "at")["step"].to_list() == held


TWO_STEPS = [step(5, 1000, 200), step(6, 1200, 200), *COMMON[1:]]


def test_a_file_that_ends_early_has_an_incomplete_last_step(tmp_path: Path) -> None:
    for rank in (0, 1):
        write(tmp_path / f"rank{rank}.json", [*TWO_STEPS, *later(1210)], rank=rank, world_size=2)
    cut = tmp_path / "rank1.json"
    cut.write_text(cut.read_text()[:-2])
    run = tracekit.open(tmp_path)
    assert run.steps.filter(~pl.col("complete")).select("rank", "step", "reason").rows() == [
        (1, 6, "ends early: the list of events is not closed")
    ]


def test_a_corrupt_file_has_an_incomplete_last_step(tmp_path: Path) -> None:
    path = write(tmp_path / "rank0.json", [span("lost", 1100, 1), *TWO_STEPS, *later(1210)])
    path.write_text(path.read_text().replace('"name": "lost"', '"name": lost'))
    run = tracekit.open(path)
    assert run.steps["complete"].to_list() == [True, False]
    assert run.steps["reason"][1].startswith("corrupt: ")


def test_a_repair_that_loses_nothing_leaves_steps_complete() -> None:
    mended = pl.DataFrame([{"rank": 0, "cycle": 0, "what": "invalid UTF-8 in text"}], schema=REPAIRS_SCHEMA)
    cut = mended.with_columns(pl.lit("ends early: gzip data without its end").alias("what"))
    rows = {"rank": 0, "cycle": 0, "ph": "X", "cat": "user_annotation", "ts_ns": 0, "dur_ns": 9}
    events = pl.DataFrame([{**rows, "name": "ProfilerStep#5"}], schema=tracekit_events().schema)
    assert steps(kinds(events), None, mended)["complete"].to_list() == [True]
    twice = steps(kinds(events), None, pl.concat([cut, cut, mended]))
    assert twice.select("complete", "reason").rows() == [(False, "ends early: gzip data without its end")]


def test_a_damaged_trace_without_marks_keeps_both_reasons() -> None:
    cut = pl.DataFrame([{"rank": 0, "cycle": 0, "what": "ends early: x"}], schema=REPAIRS_SCHEMA)
    rows = {"rank": 0, "cycle": 0, "ph": "X", "cat": "cpu_op", "name": "op", "ts_ns": 0, "dur_ns": 9}
    table = steps(kinds(pl.DataFrame([rows], schema=tracekit_events().schema)), None, cut)
    assert table.select("step", "complete").rows() == [(None, False)]
    assert table["reason"].item().startswith("whole trace: no ProfilerStep marks")
    assert table["reason"].item().endswith("; ends early: x")


def test_steps_whose_device_activity_was_lost_are_incomplete(tmp_path: Path) -> None:
    marks = [step(n, 1000 * n, 1000) for n in range(1, 9)]
    launched = [
        span("cudaLaunchKernel", 1000 * n + 5, 1, cat="cuda_runtime", correlation=1000 + n) for n in range(1, 9)
    ]
    kernels = [row for k in range(20) for row in kernel("gemm", 1100 + k * 20, 10, stream=7, correlation=1 + k)]
    run = tracekit.open(write(tmp_path / "r.json", [*marks, *launched, *kernels]))
    lost = run.steps.filter(~pl.col("complete"))
    assert lost["step"].to_list() == [2, 3, 4, 5, 6, 7, 8]
    assert lost["reason"].unique().to_list() == ["no activity of the device was recorded in this step, but in others"]


def test_a_device_that_was_never_recorded_leaves_no_step_complete(tmp_path: Path) -> None:
    launched = [span("cudaLaunchKernel", ts, 1, cat="cuda_runtime", correlation=ts) for ts in (1005, 1205)]
    run = tracekit.open(write(tmp_path / "r.json", [step(5, 1000, 200), step(6, 1200, 200), *launched]))
    assert run.steps["complete"].to_list() == [False, False]
    assert run.steps["reason"].unique().to_list() == ["no activity of the device was recorded for 2 launches"]
