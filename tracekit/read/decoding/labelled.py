"""Rows without a category in a process that is labelled as a device ("NPU"): what Ascend's profiler writes.

Such a row that tells its stream (`Stream Id`) ran on the device; it gets a category of its kind, so that it is read as
any other. Without a stream it is drawn from others (communication of a group, overlap) and not understood.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import polars as pl

from tracekit.read.decoding.events import Event
from tracekit.read.findings import Finding

_LABELS, _NAME = "process_labels", "process_name"
_DEVICE = re.compile(r"\s*(npu|gpu|xpu|hpu|mtia)\b\W*(\d+)?", re.IGNORECASE)
# Endings of the categories that rows get, and the names that they go by; a kernel is what is neither.
KERNEL, COPY, WAIT, DRAWN = "kernel", "copy", "wait", "drawn"
_COPIES = r"(?i)mem_?cpy|mem_?set"
_WAITS = r"(?i)wait|notify|event_?(record|reset)"


class Label(NamedTuple):
    """One metadata row about a process: its name, or its labels."""

    pid: int
    what: str
    text: str


def labels_of(events: Sequence[Event]) -> list[Label]:
    """Return names and labels of processes among these events; a process that is not called by a number has none."""
    rows = [e for e in events if e.ph == "M" and e.name in (_LABELS, _NAME) and e.args is not None]
    found = [(e.pid, e.name, e.args.labels if e.name == _LABELS else e.args.called) for e in rows if e.args]
    return [Label(pid, str(what), text) for pid, what, text in found if type(pid) is int and isinstance(text, str)]


def with_categories(
    events: pl.DataFrame, device: pl.DataFrame, labels: Sequence[Label]
) -> tuple[pl.DataFrame, pl.DataFrame, list[Finding]]:
    """Return the events and device arguments of a file with category and number of the rows of labelled devices.

    And a finding for each process with rows that are not understood.
    """
    kinds = {one.pid: found for one in labels if one.what == _LABELS and (found := _DEVICE.match(one.text))}
    bare = (pl.col("cat").fill_null("") == "") & (pl.col("ph") == "X") & pl.col("pid").is_in(list(kinds))
    if not kinds or not events.select(bare.any()).item():
        return events, device, []
    told = events.with_columns(bare.alias("is_bare")).join(
        device.select("index", pl.col("stream").is_not_null().alias("has_stream")), on="index", how="left",
        maintain_order="left",
    )  # fmt: skip
    ending = (
        pl.when(~pl.col("has_stream").fill_null(value=False)).then(pl.lit(DRAWN))
        .when(pl.col("name").str.contains(_COPIES)).then(pl.lit(COPY))
        .when(pl.col("name").str.contains(_WAITS)).then(pl.lit(WAIT))
        .otherwise(pl.lit(KERNEL))
    )  # fmt: skip
    kind = pl.col("pid").replace_strict(
        {pid: found[1].lower() for pid, found in kinds.items()}, default=None, return_dtype=pl.String
    )
    named = pl.when("is_bare").then(pl.format("{}_{}", kind, ending)).otherwise("cat").alias("cat")
    told = told.with_columns(named)
    drawn = told.filter(pl.col("is_bare"), pl.col("cat").str.ends_with(DRAWN))
    return (
        told.select(events.columns),
        _with_numbers(device, told.filter("is_bare", "has_stream"), kinds),
        _not_understood(drawn, labels),
    )


def _with_numbers(device: pl.DataFrame, rows: pl.DataFrame, kinds: dict[int, re.Match[str]]) -> pl.DataFrame:
    """Return the arguments with the number of the device: that of the label, else the place of the process in order."""
    order = {pid: place for place, pid in enumerate(sorted(rows["pid"].unique().to_list()))}
    numbers = {pid: int(kinds[pid][2] or place) for pid, place in order.items()}
    own = rows.select("index", pl.col("pid").replace_strict(numbers, return_dtype=pl.Int64).alias("own"))
    joined = device.join(own, on="index", how="left", maintain_order="left")
    return joined.with_columns(pl.coalesce("device", "own").alias("device")).select(device.columns)


def _not_understood(drawn: pl.DataFrame, labels: Sequence[Label]) -> list[Finding]:
    names = {one.pid: one.text for one in labels if one.what == _NAME}
    marks = {one.pid: one.text for one in labels if one.what == _LABELS}
    counts = drawn.group_by("pid").len().sort("pid").iter_rows()
    return [
        Finding(
            f"rows without category and stream in the process {names.get(pid, pid)!r} ({marks[pid]})",
            None,
            count,
            "not understood: no work",
        )
        for pid, count in counts
    ]
