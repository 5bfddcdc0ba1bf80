from __future__ import annotations

import pytest

from tracekit.record import RecordError, Schedule
from tracekit.record.schedule import checked


def test_states_of_two_cycles():
    schedule = Schedule(wait=1, warmup=1, active=2, repeat=2)
    cycle = ["idle", "warmup", "active", "last"]
    assert [schedule.state(step) for step in range(10)] == [*cycle, *cycle, "idle", "idle"]
    assert [schedule.cycle(step) for step in (0, 3, 4, 7, 8)] == [0, 0, 1, 1, None]
    assert [schedule.window(cycle) for cycle in (0, 1)] == [(2, 3), (6, 7)]
    assert schedule.num_steps == 8


def test_a_window_of_one_step_is_saved_by_that_step():
    assert [Schedule(0, 0, 1, 2).state(step) for step in range(3)] == ["last", "last", "idle"]


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ((-1, 0, 1, 1), "wait is -1; give 0 or more"),
        ((0, -1, 1, 1), "warmup is -1"),
        ((0, 0, 0, 1), "active is 0; give 1 or more"),
        ((0, 0, 1, 0), "repeat is 0"),
    ],
)
def test_schedules_that_never_record_are_refused(values, text):
    with pytest.raises(RecordError, match=text):
        Schedule(*values)


def test_a_schedule_of_the_profiler_is_refused_in_a_sentence():
    assert checked(None) == Schedule()
    with pytest.raises(RecordError, match=r"schedule is a function, .* give tracekit.record.Schedule\(wait=1"):
        checked(lambda step: None)
