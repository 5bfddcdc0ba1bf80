"""Windows of steps on a device: what was launched before the recording, at impossible times, and after all else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cases import rows
from kineto import AG, COMMON, GEMM, kernel, step, write

import tracekit
import tracekit.report.caveats
from tracekit.analyzers.breakdown import breakdown, outside_steps
from tracekit.analyzers.overlap import overlap
from tracekit.model.run import Run

US = 1_000
PARTS = ("step", "step_ns", "compute_ns", "exposed_comm_ns", "exposed_copy_ns", "idle_ns")


def opened(folder: Path, events: list[dict[str, Any]]) -> Run:
    return tracekit.open(write(folder / "rank0.json", events), cache=False)


def parts(run: Run) -> list[tuple[Any, ...]]:
    return [(number, *(ns / US for ns in times)) for number, *times in breakdown(run).select(PARTS).rows()]


def k(name: str, ts: float, dur: float, ident: int, stream: int = 7, launch: float | None = None) -> list[Any]:
    return kernel(name, ts, dur, stream=stream, correlation=ident, launch=launch)


# -- launched before the recording -----------------------------------------------------------------------------------

BEFORE = "before the recording"
EARLIER = k("earlier", 1002, 5, 91, launch=-1)
GATHER = "ncclDevKernel_AllGather_RING_LL"
UNSEEN: list[tuple[Any, ...]] = [
    ("opens no window", [*COMMON, *EARLIER], [(5, 150, 100, 50, 0, 0)], 5, 50),
    ("on the stream of the collective", [*COMMON, *k(GATHER, 1002, 5, 91, 20, -1)], [(5, 150, 100, 50, 0, 0)], 5, 50),
    # 1010 to 1160 as before; what was launched before is busy from 1010 to 1030 and hides nothing that is not hidden.
    ("busy inside of a window", [*GEMM, step(5, 1000, 200), *k("earlier", 1020, 30, 91, 20, -1), *AG],
     [(5, 150, 100, 50, 0, 0)], 30, 50),
    ("hides communication", [step(5, 1000, 200), *k(GATHER, 1060, 100, 2, 20), *k("earlier", 1100, 20, 91, 7, -1),
                             *k("gemm", 1130, 10, 1)], [(5, 100, 30, 70, 0, 0)], 20, 70),
    ("no seen launch on its stream", [*COMMON, *k("alone", 1002, 5, 91, 30, -1)], [(5, 158, 105, 50, 0, 3)], 0, 50),
    ("later than a launched row", [*COMMON, *k("later", 1120, 5, 91, 7, -1)], [(5, 150, 105, 45, 0, 0)], 0, 45),
]  # fmt: skip


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize(("events", "times", "before", "exposed"), rows(UNSEEN))
def test_what_was_launched_before_the_recording_belongs_to_no_step(
    tmp_path: Path, events: list[Any], times: list[Any], before: float, exposed: float, order: int
) -> None:
    run = opened(tmp_path, events[::order])
    assert parts(run) == times
    found = run.work.filter(linked_by=BEFORE)
    assert found["dur_ns"].sum() == before * US
    assert found.select("step", "layer", "phase", "launched_ns").null_count().row(0) == (found.height,) * 4
    assert overlap(run, by=["step"]).filter(step=5)["exposed_ns"].to_list() == [exposed * US]
    assert outside_steps(run)[0] == before * US
    said = [one for one in tracekit.report.caveats.caveats(run) if "before the recording began" in one]
    assert len(said) == bool(before)
    assert not before or f"{before:g} µs" in said[0].replace(".00", "").replace(".0 ", " ")


def test_a_launch_that_was_not_seen_is_not_late(tmp_path: Path) -> None:
    run = opened(tmp_path, [*COMMON, *k(GATHER, 1002, 5, 91, 20, -1)])
    collective = run.collectives.sort("start_ns").row(0, named=True)
    assert (collective["step"], collective["phase"], collective["issued_ns"]) == (None, None, None)
    assert "launched late" not in run.table("exposure")["cause"].to_list()


def test_without_marks_it_opens_no_window_either(tmp_path: Path) -> None:
    run = opened(tmp_path, [*GEMM, *AG, *EARLIER])
    assert parts(run) == [(None, 150, 100, 50, 0, 0)]


# -- impossible times ------------------------------------------------------------------------------------------------

LATE = [{**event, "ts": event["ts"] + 50_000_000} for event in COMMON]
WRONG: list[tuple[Any, ...]] = [
    ("launched, at 0", [*COMMON, *k("zero", 0, 20, 9, launch=1020)], 1, 20),
    ("one nanosecond at 0", [*COMMON, *k("zero", 0, 0.001, 9, launch=1020)], 1, 0.001),
    ("two at 0", [*COMMON, *k("zero", 0, 20, 9, launch=1020), *k("zero", 0, 20, 10, 20, launch=1030)], 2, 40),
    ("its launch unseen, at 0", [*COMMON, *k("zero", 0, 20, 9, 30, launch=-1)], 1, 20),
    ("seconds before its launch", [*LATE, *k("long", 5000, 20, 9, launch=50_001_020)], 1, 20),
    ("without marks", [*GEMM, *AG, *k("zero", 0, 20, 9, launch=1020)], 1, 20),
    ("none", COMMON, 0, 0),
]  # fmt: skip


@pytest.mark.parametrize(("events", "number", "lost"), rows(WRONG))
def test_impossible_times_stretch_nothing_and_are_counted(
    tmp_path: Path, events: list[Any], number: int, lost: float
) -> None:
    run = opened(tmp_path, events)
    assert [times[1:] for times in parts(run)] == [(150, 100, 50, 0, 0)]
    found = run.repairs.filter(what="device rows at time 0 or long before their launch")
    assert found.select("count", "done").rows() == (
        [(number, f"left out, {round(lost * US)} ns in all")] if number else []
    )
    assert run.steps["end_ns"].max() - run.steps["start_ns"].min() <= 1000 * US


@pytest.mark.parametrize("early", [9_000, 20_000])
def test_a_clock_that_is_off_for_all_rows_is_no_damage(tmp_path: Path, early: float) -> None:
    events = [step(5, 100_000, 500), *k("a", 100_010 - early, 100, 1, launch=100_005)]
    run = opened(tmp_path, [*events, *k("b", 100_130 - early, 100, 2, launch=100_125)])
    assert parts(run) == [(5, 220, 200, 0, 0, 20)]


# -- after all else --------------------------------------------------------------------------------------------------

TRAILING: list[tuple[Any, ...]] = [
    ("after the compute", [*k("a", 1010, 50, 1), *k(GATHER, 1100, 900, 2, 20, launch=1090)]),
    ("launched last", [*k("a", 1010, 50, 1), *k(GATHER, 1300, 700, 2, 20, launch=1190)]),
    ("after two", [*k("a", 1010, 50, 1), *k(GATHER, 1100, 100, 2, 20), *k(GATHER, 1300, 700, 3, 20, launch=1190)]),
    ("a copy after it", [*k("a", 1010, 50, 1), *k(GATHER, 1100, 700, 2, 20),
                         *kernel("Memcpy DtoH", 1900, 50, stream=8, correlation=3, launch=1180, cat="gpu_memcpy")]),
]  # fmt: skip


@pytest.mark.parametrize("first", [[], [step(4, 800, 200), *k("b", 850, 50, 8)]])
@pytest.mark.parametrize("events", rows(TRAILING))
def test_what_the_last_step_launched_is_inside_its_window(tmp_path: Path, events: Any, first: list[Any]) -> None:
    run = opened(tmp_path, [*first, step(5, 1000, 200), *events])
    exposed = overlap(run, by=["rank"])["exposed_ns"].sum()
    assert breakdown(run)["exposed_comm_ns"].sum() == exposed > 0
