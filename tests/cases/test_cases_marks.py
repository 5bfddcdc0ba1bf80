"""Steps that only the optimizer marks, launches that no row answers, and memory that was asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cases import rows
from kineto import kernel, mark, memory, span, step, write

import tracekit
from tracekit.model.run import Run
from tracekit.report.sentences import sentences

US = 1_000


def opened(folder: Path, events: list[dict[str, Any]], **facts: Any) -> Run:
    return tracekit.open(write(folder / "rank0.json", events, **facts), cache=False)


# -- steps that only the optimizer marks -----------------------------------------------------------------------------


def optimizer(ts: float, dur: float, name: str = "AdamW.step", **more: Any) -> dict[str, Any]:
    return mark(f"Optimizer.step#{name}", ts, dur, **more)


OPTIMIZERS: list[tuple[Any, ...]] = [
    ("one step", [optimizer(1100, 50)], [(0, 1000, 1150)]),
    ("three steps", [optimizer(1100, 50), optimizer(1300, 50), optimizer(1500, 50)],
     [(0, 1000, 1150), (1, 1150, 1350), (2, 1350, 1550)]),
    ("two optimizers a loop", [optimizer(1100, 10, "SGD.step"), optimizer(1150, 10), optimizer(1300, 10, "SGD.step"),
     optimizer(1350, 10)], [(0, 1000, 1160), (1, 1160, 1360)]),
    ("marks inside marks", [optimizer(1100, 50), optimizer(1110, 20), optimizer(1300, 50), optimizer(1310, 20)],
     [(0, 1000, 1150), (1, 1150, 1350)]),
    ("one steps more often",
     [optimizer(1100, 10, "G.step"), *(optimizer(at, 10, "D.step") for at in (1150, 1170, 1190)),
      optimizer(1300, 10, "G.step"), *(optimizer(at, 10, "D.step") for at in (1350, 1370, 1390))],
     [(0, 1000, 1200), (1, 1200, 1400)]),
    ("cut within a loop", [optimizer(1100, 10, "G.step"), optimizer(1150, 10, "D.step"), optimizer(1300, 10, "G.step")],
     [(0, 1000, 1160)]),
    ("work behind the last", [optimizer(1100, 50), span("aten::mm", 1400, 100)], [(0, 1000, 1150)]),
    ("as operators of old torch", [span("Optimizer.step#SGD.step", 1100, 50)], [(0, 1000, 1150)]),
]  # fmt: skip


@pytest.mark.parametrize(("events", "windows"), rows(OPTIMIZERS))
def test_steps_of_the_optimizer_are_steps_where_there_are_no_others(
    tmp_path: Path, events: list[Any], windows: list[Any]
) -> None:
    run = opened(tmp_path, [span("aten::mm", 1000, 100), *events])
    assert [(number, start / US, end / US) for number, start, end in
            run.steps.select("step", "start_ns", "end_ns").rows()] == windows  # fmt: skip
    assert run.steps["complete"].all()
    assert any(text.startswith("There are no ProfilerStep marks: steps are by the end of Optimizer") for text in
               sentences(run))  # fmt: skip


def test_marks_of_the_profiler_come_first(tmp_path: Path) -> None:
    run = opened(tmp_path, [step(7, 1000, 300), span("aten::mm", 1000, 100), optimizer(1100, 50), optimizer(1200, 50)])
    assert run.steps["step"].to_list() == [7]
    assert not any("ProfilerStep" in text for text in sentences(run))


def test_without_either_the_trace_is_one_window(tmp_path: Path) -> None:
    run = opened(tmp_path, [span("aten::mm", 1000, 100), span("Optimizer.zero_grad#SGD", 1100, 10)])
    assert run.steps["step"].to_list() == [None]


# -- launches that no row answers ------------------------------------------------------------------------------------


def launch(ts: float, number: int, name: str = "cudaLaunchKernel") -> dict[str, Any]:
    return span(name, ts, 2, cat="cuda_runtime", correlation=number)


CAPTURE = [launch(1020, 90, "cudaStreamBeginCapture"), launch(1025, 91), launch(1030, 92),
           launch(1035, 93, "cudaStreamEndCapture_v10000")]  # fmt: skip
UNANSWERED: list[tuple[Any, ...]] = [
    ("captured", [*kernel("a", 1000, 5, stream=7, correlation=1), *CAPTURE], 2, 0),
    ("captured, and nothing else ran", CAPTURE, 2, 0),
    ("between others", [*kernel("a", 1000, 5, stream=7, correlation=1), launch(1005, 2),
     *kernel("b", 1020, 5, stream=7, correlation=3)], 0, 1),
    ("at the end of the recording", [*kernel("a", 1000, 5, stream=7, correlation=1), launch(1105, 2)], 0, 0),
    ("all of them answered", kernel("a", 1000, 5, stream=7, correlation=1), 0, 0),
]  # fmt: skip


@pytest.mark.parametrize(("events", "captured", "lost"), rows(UNANSWERED))
def test_launches_without_a_row_are_counted(tmp_path: Path, events: list[Any], captured: int, lost: int) -> None:
    run = opened(tmp_path, [step(5, 990, 300), *events])
    counts = dict(run.repairs.select("what", "count").iter_rows())
    assert counts.get("launches that were captured into a graph", 0) == captured
    assert counts.get("launches without a row of the device among others that have one", 0) == lost


MEMORY: list[tuple[Any, ...]] = [
    ("asked for and absent", {"profile_memory": 1}, [], "The recording was asked for memory (profile_memory)"),
    ("not asked for", {"profile_memory": 0}, [], "The trace has no memory events"),
    ("not told", {}, [], "The trace has no memory events"),
    ("there", {"profile_memory": 1}, [memory(1010, 512, 1, 512)], None),
    ("no number", {"profile_memory": [1]}, [], "The trace has no memory events"),
]


@pytest.mark.parametrize(("facts", "events", "sentence"), rows(MEMORY))
def test_memory_that_was_asked_for_and_is_absent(
    tmp_path: Path, facts: dict[str, Any], events: list[Any], sentence: str | None
) -> None:
    run = opened(tmp_path, [step(5, 990, 300), span("aten::mm", 1000, 100), *events], **facts)
    told = [text for text in sentences(run) if "memory events" in text or "asked for memory" in text]
    assert [text.startswith(str(sentence)) for text in told] == ([] if sentence is None else [True])
    assert not any("Reading took" in text for text in sentences(run))
