"""Faults of a run whose files can be read: rows of the repairs table (REPAIRS_SCHEMA)."""

from __future__ import annotations

import polars as pl

from tracekit.model import names
from tracekit.model.devices.captures import unanswered
from tracekit.model.event_kinds import Kinds
from tracekit.model.steps import numbers_differ, unused_marks
from tracekit.read.traces import REPAIRS_SCHEMA


def repairs(kinds: Kinds, steps: pl.DataFrame, work: pl.DataFrame, misplaced: pl.DataFrame) -> pl.DataFrame:
    """Return REPAIRS_SCHEMA: at most one row for each rank and kind of fault; `misplaced` are device rows."""
    launches = unanswered(kinds)
    found = [
        _counted(
            unused_marks(kinds, steps),
            "step marks on another thread, inside or repeating another, or without a usable number",
            "not used as steps",
        ),
        _counted(
            _by_run(work.drop_nulls("overrun_ns"), pl.col("overrun_ns").sum()),
            "device rows that outlast the next one on their stream",
            "ends cut at the next start, {} ns in all",
        ),
        _counted(
            _by_run(misplaced, pl.col("dur_ns").sum()),
            "device rows at time 0 or long before their launch",
            "left out, {} ns in all",
        ),
        _counted(
            _by_run(pl.concat([part.filter(pl.col("ph").is_in(["B", "E"])) for part in kinds])),
            "begins without an end, or ends without a begin",
            "left out",
        ),
        _counted(
            _early_starts(work),
            "device rows that start before their launch",
            "linked by their ids all the same, up to {} ns early",
        ),
        _counted(
            _by_run(pl.concat([part.filter(name=names.LOST_NAME) for part in (kinds.annotations, kinds.others)])),
            f'events named "{names.LOST_NAME}", as the profiler calls names that it cannot print',
            "kept; they cannot be told apart",
        ),
        _counted(
            _by_run(launches.filter("is_captured")),
            "launches that were captured into a graph",
            "no work: they ran when the graph did",
        ),
        _counted(
            _by_run(launches.filter(~pl.col("is_captured"))),
            "launches without a row of the device among others that have one",
            "no work: captured into a graph, or lost",
        ),
    ]
    if note := numbers_differ(steps):
        found.insert(0, [{"what": note, "count": 1, "done": "steps are matched by order"}])
    return pl.DataFrame([row for rows in found for row in rows], schema=REPAIRS_SCHEMA)


def _early_starts(work: pl.DataFrame) -> pl.DataFrame:
    """Return the number of device rows that start before their launch, and the largest distance, of each recording.

    Clocks of CPU and device are converted into each other, so that a kernel can seem to start early, see
    pytorch/kineto#1380. Attribution does not suffer: it rests on ids, not on times.
    """
    linked = pl.col("linked_by").is_in(["correlation", "flow"]) & (pl.col("device") != "cpu")
    early = work.filter(linked, pl.col("launched_ns") > pl.col("start_ns"))
    return _by_run(early, (pl.col("launched_ns") - pl.col("start_ns")).max())


def _by_run(found: pl.DataFrame, measure: pl.Expr | None = None) -> pl.DataFrame:
    ns = pl.lit(None, pl.Int64) if measure is None else measure
    return found.group_by("rank", "cycle").agg(pl.len().alias("count"), ns.alias("ns")).sort("rank", "cycle")


def _counted(counts: pl.DataFrame, what: str, done: str) -> list[dict[str, object]]:
    return [
        {
            "rank": row["rank"],
            "cycle": row["cycle"],
            "what": what,
            "count": row["count"],
            "done": done.format(row.get("ns")),
        }
        for row in counts.iter_rows(named=True)
    ]
