"""Files beside the traces of a recording: a rank's meta file and rank 0's manifest; and the step times."""

from __future__ import annotations

import statistics
import time
from collections import deque
from pathlib import Path
from typing import Any

from tracekit.record import folder
from tracekit.record.schedule import Schedule
from tracekit.record.team import Team

FORMAT = 1
NOT_CLOSED = "the process ended without closing the recording, before this window was written"
# Step times are kept for the newest steps only, so that a long wait costs no memory.
MAX_STEP_TIMES = 1000


class Meta:
    """A rank's entry of the manifest's `ranks`, in a file of its own from the start of the recording on.

    Until a window is written its entry says that it was not, so that the file is right if the process is killed.
    """

    def __init__(self, team: Team, schedule: Schedule, device: str, device_name: str) -> None:
        self._schedule = schedule
        self.content: dict[str, Any] = {
            "rank": team.rank,
            "host": team.host,
            "device": device,
            "device_name": device_name,
            "pid": team.pid,
            "held_bytes": None,
            "traces": [unwritten(cycle, NOT_CLOSED) for cycle in range(schedule.repeat)],
            "ended": False,
        }

    def add_trace(self, cycle: int, file: str | None, reason: str | None, last_done: int) -> None:
        """Notes a window: `last_done` is the last step that ran to its end; a reason of None means complete."""
        first, last = self._schedule.window(cycle)
        last = min(last, last_done)
        entry = unwritten(cycle, reason)
        entry |= {"file": file, "complete": reason is None}
        if file is not None and last >= first:
            entry |= {"first_step": first, "last_step": last}
        self.content["traces"][cycle] = entry

    def end(self, reason: str | None) -> None:
        """Nothing more will be written; windows that were never reached get `reason`."""
        self.content["ended"] = True
        for cycle, entry in enumerate(self.content["traces"]):
            if entry["reason"] == NOT_CLOSED:
                first, last = self._schedule.window(cycle)
                self.content["traces"][cycle] = unwritten(
                    cycle, f"{reason}, before the window (steps {first} to {last})"
                )

    def write(self, path: Path) -> None:
        """Writes the meta file. Raises OSError."""
        folder.write_json(path / folder.meta_name(self.content["rank"]), self.content)


def unwritten(cycle: int, reason: str | None) -> dict[str, Any]:
    """The entry of a window without a trace file."""
    return {
        "cycle": cycle,
        "file": None,
        "complete": False,
        "reason": reason,
        "first_step": None,
        "last_step": None,
    }


def manifest(path: Path, description: dict[str, Any], metas: list[dict[str, Any]]) -> dict[str, Any]:
    """The manifest from the run's description and every rank's meta that is there."""
    current = [_current(path, meta) for meta in metas]
    hosts = dict.fromkeys(meta["host"] for meta in current)
    devices = dict.fromkeys(meta["device_name"] for meta in current)
    return {"format": FORMAT} | description | {"hosts": list(hosts), "devices": list(devices), "ranks": current}


def write_manifest(path: Path, description: dict[str, Any], metas: list[dict[str, Any]]) -> None:
    """Writes the manifest. Raises OSError."""
    folder.write_json(path / folder.MANIFEST, manifest(path, description, metas))


def wait_for_metas(path: Path, metas: list[dict[str, Any]], patience_s: float) -> None:
    """Returns when every rank's meta says that it has ended, or when patience is over."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline and not all(_current(path, meta)["ended"] for meta in metas):
        time.sleep(0.02)


def _current(path: Path, meta: dict[str, Any]) -> dict[str, Any]:
    """The rank's meta file if it is of the same run (a rank's folder need not be rank 0's), else its first version."""
    found = folder.read_json(path / folder.meta_name(meta["rank"]))
    return found if found is not None and found.get("run_id") == meta["run_id"] else meta


class StepTimes:
    """Wall times of steps, from the return of one `step()` call to the next call, without the writing of traces."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._started_ns = 0
        self._unprofiled: deque[int] = deque(maxlen=MAX_STEP_TIMES)
        self._profiled: deque[int] = deque(maxlen=MAX_STEP_TIMES)

    def start(self) -> None:
        """A step begins."""
        self._started_ns = time.perf_counter_ns()

    def stop(self, step: int) -> None:
        """Step `step` ended. The first is left out, as it pays for lazy set-up; warm-up steps are neither kind."""
        elapsed_ns = time.perf_counter_ns() - self._started_ns
        state = self._schedule.state(step)
        if state in ("active", "last"):
            self._profiled.append(elapsed_ns)
        elif state == "idle" and 0 < step < self._schedule.num_steps:
            self._unprofiled.append(elapsed_ns)

    def summary(self) -> dict[str, Any]:
        """Times in ns, and the median profiled over the median unprofiled step; None where either is missing."""
        ratio = None
        if self._unprofiled and self._profiled:
            ratio = round(statistics.median(self._profiled) / statistics.median(self._unprofiled), 4)
        return {
            "unprofiled_ns": list(self._unprofiled),
            "profiled_ns": list(self._profiled),
            "overhead_ratio": ratio,
        }
