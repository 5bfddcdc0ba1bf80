"""The schedule of a recording: wait, warm up, record, and the same again `repeat` times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from tracekit.record.errors import RecordError

State = Literal["idle", "warmup", "active", "last"]


@dataclass(frozen=True)
class Schedule:
    """A cycle is `wait` idle steps, `warmup` steps whose events the profiler drops, then `active` recorded ones.

    Steps count from 0, as in the trace's `ProfilerStep#n` marks. After `repeat` cycles nothing is recorded any more.
    """

    wait: int = 1
    warmup: int = 1
    active: int = 3
    repeat: int = 1

    def __post_init__(self) -> None:
        """Raises RecordError for a schedule that never records or never ends."""
        for name, least in (("wait", 0), ("warmup", 0), ("active", 1), ("repeat", 1)):
            if getattr(self, name) < least:
                raise RecordError(f"the schedule's {name} is {getattr(self, name)}; give {least} or more")

    @property
    def cycle_steps(self) -> int:
        """Steps of one cycle."""
        return self.wait + self.warmup + self.active

    @property
    def num_steps(self) -> int:
        """Steps until the last cycle has ended: a loop shorter than that leaves its last window cut."""
        return self.cycle_steps * self.repeat

    def state(self, step: int) -> State:
        """The state of the profiler during `step`: `last` is the active step after which the window is written."""
        if step >= self.num_steps:
            return "idle"
        offset = step % self.cycle_steps
        if offset < self.wait:
            return "idle"
        if offset < self.wait + self.warmup:
            return "warmup"
        return "last" if offset == self.cycle_steps - 1 else "active"

    def cycle(self, step: int) -> int | None:
        """The cycle that `step` belongs to, None after the last one."""
        return step // self.cycle_steps if step < self.num_steps else None

    def window(self, cycle: int) -> tuple[int, int]:
        """The first and the last recorded step of a cycle, both included."""
        end = (cycle + 1) * self.cycle_steps
        return end - self.active, end - 1


def checked(schedule: Any) -> Schedule:
    """The schedule, or the default for None. Raises RecordError for another thing, as torch.profiler's function is."""
    if schedule is None:
        return Schedule()
    if not isinstance(schedule, Schedule):
        kind = type(schedule).__name__
        raise RecordError(
            f"schedule is a {kind}, which cannot be asked how long it is: give "
            "tracekit.record.Schedule(wait=1, warmup=1, active=3)"
        )
    return schedule
