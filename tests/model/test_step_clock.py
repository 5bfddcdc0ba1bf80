"""A wall clock that jumps inside the window: the recorder's monotonic clock tells, and the step is in no mean."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from tracekit.manifest import Manifest, RankInfo, StepTimes, TraceFile
from tracekit.model.step_clock import mark_jumps, measured

MS, S = 10**6, 10**9


def recorded(times: list[int], traces: list[tuple[int, int, int]]) -> Manifest:
    files = [TraceFile(cycle, first_step=first, last_step=last) for cycle, first, last in traces]
    ranks = [RankInfo(0, traces=files), RankInfo(1, traces=files)]
    return Manifest(1, "ddp", 2, 10, 10, step_times=StepTimes(profiled_ns=times), ranks=ranks)


def windows(*lengths: tuple[int, int, int]) -> pl.DataFrame:
    rows: list[dict[str, Any]] = [
        {"rank": r, "cycle": 0, "step": s, "start_ns": 0, "end_ns": n, "complete": True, "reason": None}
        for r, s, n in lengths
    ]
    return pl.DataFrame(rows, schema_overrides={"reason": pl.String, "step": pl.Int64})


@pytest.mark.parametrize(
    ("timed", "lengths", "jumped"),
    [
        ([18 * MS, 18 * MS], [(0, 4, 1955 * S), (0, 5, 18 * MS)], [(0, 4)]),
        ([18 * MS, 18 * MS], [(0, 4, 18 * MS), (0, 5, 3600 * S)], [(0, 5)]),
        ([18 * MS, 18 * MS], [(0, 4, 18 * MS), (1, 4, 5 * S), (0, 5, 19 * MS), (1, 5, 18 * MS)], [(1, 4)]),
        ([10 * S, 10 * S], [(0, 4, 1 * S), (0, 5, 10 * S)], [(0, 4)]),
        ([18 * MS, 18 * MS], [(0, 4, 900 * MS), (0, 5, 40 * MS)], []),
        ([10 * S, 10 * S], [(0, 4, 19 * S), (0, 5, 5 * S)], []),
        ([18 * MS], [(0, 4, 1955 * S), (0, 5, 18 * MS)], []),
        ([18 * MS] * 3, [(0, 4, 1955 * S), (0, 5, 18 * MS)], []),
        ([], [(0, 4, 1955 * S)], []),
    ],
    ids=["forward", "last", "one rank", "backward", "short", "within twice", "too few", "too many", "not timed"],
)
def test_only_what_is_beyond_doubt_is_told(
    timed: list[int], lengths: list[tuple[int, int, int]], jumped: list[tuple[int, int]]
) -> None:
    table = mark_jumps(windows(*lengths), recorded(timed, [(0, 4, 5)]))
    found = table.filter(~pl.col("complete"))
    assert list(found.select("rank", "step").iter_rows()) == jumped
    assert table["reason"].is_not_null().sum() == len(jumped)


def test_the_reason_has_both_durations() -> None:
    table = mark_jumps(windows((0, 4, 1955 * S), (0, 5, 18 * MS)), recorded([18 * MS, 18 * MS], [(0, 4, 5)]))
    assert table["reason"][0] == (
        "it lasts 1,955.0 s by the clock of the trace, but 18.0 ms by the recorder's own: the clocks disagree"
    )


def test_steps_of_cycles_are_timed_in_order_and_a_range_that_cannot_be_expands_to_nothing() -> None:
    assert measured(recorded([1, 2, 3], [(0, 4, 5), (1, 9, 9)])) == {4: 1, 5: 2, 9: 3}
    assert measured(recorded([1, 2, 3], [(0, 4, 2**50)])) == {}
    assert measured(None) == {}
    assert mark_jumps(windows((0, 4, S)).clear(), recorded([1], [(0, 4, 4)])).is_empty()
