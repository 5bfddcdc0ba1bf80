from __future__ import annotations

from pathlib import Path

import polars as pl
from kineto import COMMON, kernel, span, step, write

import tracekit
from tracekit.model.steps import STEPS_SCHEMA, steps

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
    assert steps(events).schema == pl.Schema(STEPS_SCHEMA)


def tracekit_events() -> pl.DataFrame:
    from tracekit.read.columns import EVENT_SCHEMA

    return pl.DataFrame(schema={"rank": pl.Int32(), "cycle": pl.Int32(), **EVENT_SCHEMA})
