"""The compute that can hide communication: all of a device's, but for what shares its lane with communication.

Work on one lane is serial. Where two pieces of one lane cross all the same (a rounded clock, a kernel that starts while
the one before it drains), the crossing hides nothing.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from tracekit import intervals
from tracekit.intervals import Intervals

Place = tuple[object, ...]
PLACE = ["rank", "device"]


def hiding(work: pl.DataFrame) -> dict[Place, Intervals]:
    """Return, for each (rank, device), when compute runs that communication can hide under."""
    compute = _unions(work.filter(pl.col("class") == "compute"))
    comm = _unions(work.filter(pl.col("class") == "comm"))
    parts: dict[Place, list[Intervals]] = {}
    for lane, busy in compute.items():
        free = intervals.subtract(busy, comm[lane]) if lane in comm else busy
        parts.setdefault(lane[:-1], []).append(free)
    return {place: _joined(lanes) for place, lanes in parts.items()}


def _unions(work: pl.DataFrame) -> dict[Place, Intervals]:
    """When each lane is busy."""
    lanes = work.partition_by(*PLACE, "lane", as_dict=True)
    return {lane: intervals.union(rows["start_ns"], rows["start_ns"] + rows["dur_ns"]) for lane, rows in lanes.items()}


def _joined(parts: list[Intervals]) -> Intervals:
    if len(parts) == 1:
        return parts[0]
    return intervals.union(np.concatenate([p.starts for p in parts]), np.concatenate([p.ends for p in parts]))
