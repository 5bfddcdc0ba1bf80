"""Rows without a category in a process that is labelled as a device ("NPU"): what Ascend's profiler writes.

Such a row that tells its stream (`Stream Id`) ran on the device; it gets a category of its kind, so that it is read as
any other. So do rows of collectives (`hcom_`), which have a process of their own without streams. Other rows without
one are drawn from others (overlap, phases of a collective) and not understood.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import polars as pl

from tracekit.read.decoding.events import Event
from tracekit.read.findings import Finding

NOT_UNDERSTOOD = "rows without category and stream"
_LABELS, _NAME = "process_labels", "process_name"
_DEVICE = re.compile(r"\s*(npu|gpu|xpu|hpu|mtia|davinci|ascend)\b\D*(\d+)?", re.IGNORECASE)
# What Ascend's parts are called beside their kind.
_KINDS = {"davinci": "npu", "ascend": "npu"}
# Endings of the categories that rows get, and the names that they go by; a kernel is what is neither.
KERNEL, COPY, WAIT, DRAWN = "kernel", "copy", "wait", "drawn"
_COPIES = r"(?i)mem_?cpy|mem_?set"
_WAITS = r"(?i)wait|notify|event_?(record|reset)"
_COLLECTIVE = r"(?i)^(hcom_|hccl)"
# Processes that Ascend's profiler draws beside that of the hardware, with or without a label.
_DRAWN_PROCESSES = ("communication", "overlap analysis")


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
    kinds = _kinds(labels)
    bare = (pl.col("cat").fill_null("") == "") & (pl.col("ph") == "X") & pl.col("pid").is_in(list(kinds))
    if not kinds or not events.select(bare.any()).item():
        return events, device, []
    told = events.with_columns(bare.alias("is_bare")).join(
        device.select("index", pl.col("stream").is_not_null().alias("has_stream")), on="index", how="left",
        maintain_order="left",
    )  # fmt: skip
    has_stream, named = pl.col("has_stream").fill_null(value=False), pl.col("name").str.contains(_COLLECTIVE)
    # Where collectives have streams, rows without are drawn around them.
    alone = named & ~(named & has_stream & pl.col("is_bare")).any()
    ending = (
        pl.when(~has_stream & ~alone).then(pl.lit(DRAWN))
        .when(named).then(pl.lit(KERNEL))
        .when(pl.col("name").str.contains(_COPIES)).then(pl.lit(COPY))
        .when(pl.col("name").str.contains(_WAITS)).then(pl.lit(WAIT))
        .otherwise(pl.lit(KERNEL))
    )  # fmt: skip
    kind = pl.col("pid").replace_strict(
        {pid: kind for pid, (kind, _) in kinds.items()}, default=None, return_dtype=pl.String
    )
    category = pl.when("is_bare").then(pl.format("{}_{}", kind, ending)).otherwise("cat").alias("cat")
    told = told.with_columns(category)
    drawn = told.filter(pl.col("is_bare"), pl.col("cat").str.ends_with(DRAWN))
    ran = told.filter(pl.col("is_bare"), ~pl.col("cat").str.ends_with(DRAWN))
    return told.select(events.columns), _with_numbers(device, ran, kinds), _not_understood(drawn, labels)


def _kinds(labels: Sequence[Label]) -> dict[int, tuple[str, int | None]]:
    """Return kind and number of the device that a process is labelled or, without a label of one, called as."""
    found: dict[int, tuple[str, int | None]] = {}
    for what in (_NAME, _LABELS):
        for one in labels:
            match = _DEVICE.match(one.text) if one.what == what else None
            if match:
                kind = match[1].lower()
                found[one.pid] = (_KINDS.get(kind, kind), int(match[2]) if match[2] else None)
    drawn = {one.pid for one in labels if one.what == _NAME and one.text.strip().lower() in _DRAWN_PROCESSES}
    if any(kind == "npu" for kind, _ in found.values()):
        found = dict.fromkeys(drawn, ("npu", None)) | found
    # A process of the host may be called after the device that it drives.
    hosts = {one.pid for one in labels if one.what == _LABELS and one.text.strip().lower().startswith("cpu")}
    return {pid: kind for pid, kind in found.items() if pid not in hosts}


def _with_numbers(device: pl.DataFrame, rows: pl.DataFrame, kinds: dict[int, tuple[str, int | None]]) -> pl.DataFrame:
    """Return the arguments with the number of the device of each row: the label's, else the process's place in order.

    Collectives are of the one device that has streams, where there is one.
    """
    streamed = sorted(rows.filter("has_stream")["pid"].unique().to_list())
    order = {pid: place for place, pid in enumerate(streamed)}
    only = kinds[streamed[0]][1] or 0 if len(streamed) == 1 else None
    pids = rows["pid"].unique().to_list()
    numbers = {pid: kinds[pid][1] if kinds[pid][1] is not None else order.get(pid, only or 0) for pid in pids}
    own = rows.select(
        "index",
        pl.col("pid").replace_strict(numbers, return_dtype=pl.Int64).alias("own"),
        pl.col("tid").alias("own_stream"),
    )
    joined = device.join(own, on="index", how="full", coalesce=True).sort("index")
    return joined.with_columns(
        pl.coalesce("device", "own").alias("device"), pl.coalesce("stream", "own_stream").alias("stream")
    ).select(device.columns)


def _not_understood(drawn: pl.DataFrame, labels: Sequence[Label]) -> list[Finding]:
    names = {one.pid: one.text for one in labels if one.what == _NAME}
    marks = {one.pid: one.text for one in labels if one.what == _LABELS}
    counts = drawn.group_by("pid").len().sort("pid").iter_rows()
    return [
        Finding(
            f"{NOT_UNDERSTOOD} in the process {names.get(pid, pid)!r} ({marks.get(pid, 'no label')})",
            None,
            count,
            "not understood: no work",
        )
        for pid, count in counts
    ]
