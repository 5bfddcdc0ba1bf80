"""Every number of time and bytes beside the oracle's (helpers/brute_force.py), on sample runs, public traces and cases.

The oracle is right where the two differ: test_brute_force_itself.py holds it to numbers found by hand. What tracekit
does not yet answer rightly is in `OPEN`, and each repair has to take its inputs out of there.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import Any

import polars as pl
import pytest
from brute_force import Answer
from brute_force_inputs import FOLDERS, INPUTS, NO_TRACE, SHARED, needs_shared, path_of, right
from brute_force_rows import NotATraceError

import tracekit
from tracekit.errors import InputError
from tracekit.model.run import Run

pytestmark = pytest.mark.slow

PARTS = ("breakdown", "overlap", "bytes")

# What tracekit answers otherwise today: the parts that differ, and the case and right value.
OPEN: dict[str, tuple[tuple[str, ...], str]] = {}


@lru_cache(maxsize=1)
def opened(name: str) -> Run:
    return tracekit.open(path_of(name), cache=False)


# -- tracekit beside the oracle ------------------------------------------------------------------------------------


def measured_breakdown(run: Run) -> list[Any]:
    table = run.table("breakdown")
    busy = pl.col("compute_ns") + pl.col("exposed_comm_ns") + pl.col("exposed_copy_ns")
    key = [name for name in ("rank", "device", "step") if name in table.columns]
    rows = table.select(
        *key, "step_ns", busy.alias("busy_ns"), "compute_ns", "exposed_comm_ns", "exposed_copy_ns", "idle_ns"
    )
    # Of a rank on which nothing was recorded that could be busy, nothing is known.
    return rows.filter(pl.col("rank").is_in(run.work["rank"].unique().to_list())).rows()


def right_breakdown(run: Run, found: Answer) -> list[Any]:
    by_device = "device" in run.table("breakdown").columns
    return [
        (rank, *([device] if by_device else []), step, *parts) for (rank, device, step), parts in found.windows.items()
    ]


def measured_overlap(run: Run) -> list[Any]:
    rows = run.table("overlap", by=("rank", "device", "step")).drop_nulls("comm_ns")
    accelerated = run.work.filter(pl.col("device") != "cpu")["rank"].unique().to_list()
    # What a CPU's backend does beside a device is another question.
    rows = rows.filter((pl.col("device") != "cpu") | ~pl.col("rank").is_in(accelerated))
    return rows.select("rank", "device", "step", "comm_ns", "overlapped_ns", "exposed_ns").rows()


def measured_bytes(run: Run, found: Answer) -> list[Any]:
    """Collectives, payload and wire bytes by rank, step and kind, where known; unknown ones; payload by `volume`."""
    key = ["rank", "step", "kind"]
    is_known = pl.col("payload_bytes").is_not_null()
    wire = pl.when(pl.col("wire_bytes").is_not_null().all()).then(pl.col("wire_bytes").sum())
    known = run.collectives.filter(is_known).group_by(key).agg(pl.len(), pl.col("payload_bytes").sum(), wire)
    tell_wire = {key for key, (_, _, sent) in found.moved.known.items() if sent is not None}
    rows = [(*row[:5], row[5] if row[:3] in tell_wire else None) for row in known.iter_rows()]
    unknown = run.collectives.filter(~is_known).group_by("rank").len().rows()
    volume = run.table("volume").drop_nulls("payload_bytes").filter(pl.col("num_collectives") > 0)
    return [*rows, *unknown, *volume.group_by(key).agg(pl.col("payload_bytes").sum()).rows()]


def right_bytes(found: Answer) -> list[Any]:
    known = [(*key, *counts) for key, counts in found.moved.known.items()]
    return [*known, *found.moved.unknown.items(), *((*row[:3], row[4]) for row in known)]


def _parameters() -> list[Any]:
    """Each part of each input; those of OPEN must fail, until they are repaired."""
    found = []
    for name in INPUTS:
        differ, reason = OPEN.get(name, ((), ""))
        beside = [] if name.startswith("traces/") else [pytest.mark.corpus]
        wrong = pytest.mark.xfail(strict=True, raises=AssertionError, reason=reason)
        found += [pytest.param(name, part, marks=[*beside, *([wrong] if part in differ else [])]) for part in PARTS]
    absent = [folder for folder in FOLDERS if not (SHARED / folder).is_dir()]
    return found + [pytest.param(folder, "", marks=needs_shared) for folder in absent]


@pytest.mark.parametrize(("name", "part"), _parameters())
def test_equal_to_the_nanosecond_and_byte(name: str, part: str) -> None:
    run, found = opened(name), right(name)
    if part == "breakdown":
        measured, expected = measured_breakdown(run), right_breakdown(run, found)
    elif part == "overlap":
        measured, expected = measured_overlap(run), [(*key, *parts) for key, parts in found.comm.items()]
    else:
        measured, expected = measured_bytes(run, found), right_bytes(found)
    assert Counter(measured) == Counter(expected)


@needs_shared
@pytest.mark.corpus
def test_all_inputs_are_there() -> None:
    assert OPEN.keys() <= set(INPUTS)
    assert len(INPUTS) > 40


@needs_shared
@pytest.mark.corpus
def test_what_is_no_trace_is_refused_by_both() -> None:
    with pytest.raises(NotATraceError):
        right(NO_TRACE)
    with pytest.raises(InputError):
        opened(NO_TRACE)
