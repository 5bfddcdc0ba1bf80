"""Several ranks in one file: its processes that mark steps, each with the device rows that are its own.

Ids of launches are unique in a process, not in a file. Device rows therefore fall to a process by the number of their
device where only one assignment lets every row start after its launch, row by row where that is so of each row, and by
order where each process can have any device; else the file is refused.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import polars as pl

from tracekit.errors import InputError
from tracekit.read.decoding.arguments import FIRST_OF_TEXT, number_of
from tracekit.read.decoding.columns import Columns
from tracekit.read.decoding.spellings import LAUNCH, ON_CPU, ON_DEVICE, STEP_MARK_PREFIX
from tracekit.read.discovery.file_names import by_number, rank_in
from tracekit.read.findings import Finding

# Clocks of CPU and device are converted into each other, so that a row can seem to start early (pytorch/kineto#1380).
_CLOCK_NS = 100_000
BY_LAUNCHES = "kernels by their launches"
BY_ORDER = "devices by the order of processes"


class Process(NamedTuple):
    """One process of a file that holds several: number, text if it is called by one, rank if that tells it."""

    pid: int
    text: str | None
    rank: int | None
    num_events: int


class Apart(NamedTuple):
    """A file's frames by process, in the order of `marked`; the number of rows of none of them; how it was told."""

    parts: list[Columns]
    left_out: int
    told_by: str


def marked(columns: Columns, names: dict[int, str]) -> list[int]:
    """Return the processes that mark steps, by their numbers, of texts by the numbers in them."""
    events = columns.events
    marks = events.filter(pl.col("name").str.starts_with(STEP_MARK_PREFIX), ph="X").drop_nulls("pid")
    if marks["pid"].n_unique() < 2:
        return marks["pid"].unique().to_list()
    pids = marks.filter(~_is_on_device(marks, columns.device))["pid"].unique().sort().to_list()
    return sorted(pids, key=lambda pid: _order(pid, names))


def _order(pid: int, names: dict[int, str]) -> tuple[str | int, ...]:
    return by_number(names.get(pid, str(pid)))


def plain(columns: Columns, names: dict[int, str]) -> Columns:
    """Return the frames with the numbers that the texts of processes end in, as those of a file of one process."""
    if not names:
        return columns
    numbers = {number: number_of(text) for number, text in names.items()}
    return Columns(*(_plain(frame, numbers) for frame in columns))


def _plain(frame: pl.DataFrame, numbers: dict[int, int | None]) -> pl.DataFrame:
    if "pid" not in frame.columns or not (frame["pid"] >= FIRST_OF_TEXT).any():
        return frame
    return frame.with_columns(pl.col("pid").replace_strict(numbers, default=pl.col("pid"), return_dtype=pl.Int64))


def apart(columns: Columns, names: dict[int, str], path: Path) -> Apart:
    """Return the frames of each process that marks steps, with those of its devices.

    Raises:
        InputError: the device rows cannot be told apart.
    """
    pids = marked(columns, names)
    is_device = _is_on_device(columns.events, columns.device)
    on_cpu = columns.events.filter(~is_device)
    device = columns.events.filter(is_device).select("index", "pid", "correlation", "ts_ns", "cat")
    launches = _launches(on_cpu, pids)
    told_by = BY_LAUNCHES
    if (told := _by_device(device, launches, pids, names)) is None:
        rows = _by_row(device, launches)
    else:
        owner, told_by = told
        of = pl.col("pid").replace_strict(owner, default=None, return_dtype=pl.Int64)
        rows = device.select("index", of)
    if rows is None:
        raise InputError(
            f"{path}: holds {len(pids)} processes that each have {_common_mark(on_cpu, pids)} and whose kernels cannot "
            f"be told apart; give one file a rank"
        )
    of_rows = pl.concat([on_cpu.select("index", "pid"), rows]).rename({"pid": "of"})
    # A thread's number can be that of several processes; flows tell no process.
    threads = on_cpu.filter(pl.col("pid").is_in(pids)).select("pid", "tid").unique()
    alone = threads.filter(pl.col("tid").is_unique())
    parts = [plain(_of_process(columns, pid, of_rows, alone), names) for pid in pids]
    of_others = on_cpu.filter(~pl.col("pid").is_in(pids)).height
    return Apart(parts, of_others + rows["pid"].null_count(), told_by)


def processes_of(found: Apart, pids: list[int], names: dict[int, str]) -> list[Process]:
    """Return the processes of a file that holds several."""
    ranks = [rank_in(names.get(pid, "")) for pid in pids]
    tell = None not in ranks and len(set(ranks)) == len(ranks)
    shown = [number_of(names[pid]) if pid in names else pid for pid in pids]
    return [
        Process(pid if number is None else number, names.get(pid), rank if tell else None, part.num_events)
        for pid, number, rank, part in zip(pids, shown, ranks, found.parts, strict=True)
    ]


def refuse_same_number(columns: Columns, path: Path) -> None:
    """Do nothing, unless the file holds several ranks whose processes have one number, as those of containers do.

    Then steps are marked more than once, and launches have ids that other launches of the process have.

    Raises:
        InputError: it does.
    """
    events = columns.events
    marks = events.filter(pl.col("name").str.starts_with(STEP_MARK_PREFIX), ph="X")
    repeated = (
        marks.filter(~_is_on_device(marks, columns.device)).group_by("pid", "name").len().filter(pl.col("len") > 1)
    )
    if repeated.is_empty():
        return
    calls = events.filter(pl.col("correlation") > 0, pl.col("cat").str.to_lowercase().str.contains(LAUNCH))
    twice = calls.filter(pl.struct("pid", "correlation").is_duplicated()).height
    if calls.height and 2 * twice >= calls.height:
        name, number = repeated.sort("len", "name", descending=[True, False]).row(0)[1:]
        raise InputError(
            f"{path}: holds {number} processes that each have {name} and whose kernels cannot be told apart (all have "
            f"one process id, and {twice:,} of {calls.height:,} launches the id of another); give one file a rank"
        )


def process_findings(found: Apart, count: int) -> list[Finding]:
    """Return findings on a file that holds several ranks."""
    findings = [Finding(f"{count} processes that mark steps in one file", None, 1, f"a rank each, {found.told_by}")]
    if found.left_out:
        findings.append(Finding("events of no process that marks steps", None, found.left_out, "left out"))
    return findings


def _is_on_device(events: pl.DataFrame, device: pl.DataFrame) -> pl.Series:
    """Return whether each event is a device's: by its category, else because it tells a stream."""
    distinct = events["cat"].unique().drop_nulls().to_list()
    kinds = {cat: _kind(cat.lower()) for cat in distinct}
    kind = events["cat"].replace_strict(kinds, default=None, return_dtype=pl.String)
    streams = events["index"].is_in(device.drop_nulls("stream")["index"].to_list())
    return (kind == "device").fill_null(value=False) | (streams & kind.is_null())


def _kind(category: str) -> str | None:
    if re.search(ON_DEVICE, category):
        return "device"
    return "cpu" if re.search(ON_CPU, category) else None


def _launches(on_cpu: pl.DataFrame, pids: list[int]) -> pl.DataFrame:
    """Return of, correlation, at: the first call of the device's runtime with each id of each process."""
    calls = on_cpu.filter(
        pl.col("correlation") > 0, pl.col("pid").is_in(pids), pl.col("cat").str.to_lowercase().str.contains(LAUNCH)
    )
    return calls.group_by(pl.col("pid").alias("of"), "correlation").agg(pl.col("ts_ns").min().alias("at"))


def _by_device(
    device: pl.DataFrame, launches: pl.DataFrame, pids: list[int], names: dict[int, str]
) -> tuple[dict[int, int], str] | None:
    """Return the process of each device and how that was told; None where no one assignment is possible."""
    devices = device.drop_nulls("pid")["pid"].unique(maintain_order=True).to_list()
    if not devices:
        return {}, BY_LAUNCHES
    linked = device.join(launches, on="correlation")
    for tolerance in (0, _CLOCK_NS):
        possible = _possible(linked, devices, pids, tolerance)
        if only := _only_assignment(possible, pids):
            return only, BY_LAUNCHES
        in_order = sorted(devices, key=lambda one: _order(one, names))
        if len(devices) == len(pids) and all(of in possible[one] for one, of in zip(in_order, pids, strict=True)):
            # Where the order of numbers and that in the file contradict each other, neither says anything.
            return (dict(zip(in_order, pids, strict=True)), BY_ORDER) if in_order == devices else None
    return None


def _possible(linked: pl.DataFrame, devices: list[int], pids: list[int], tolerance: int) -> dict[int, set[int]]:
    """Return the processes that each device can be of: those that launched all of its rows, each before it started."""
    rows = dict(linked.group_by("pid").agg(pl.col("index").n_unique()).iter_rows())
    fits = linked.filter(pl.col("at") <= pl.col("ts_ns") + tolerance)
    counts = {(one, of): n for one, of, n in fits.group_by("pid", "of").len().iter_rows()}
    return {one: {pid for pid in pids if counts.get((one, pid), 0) == rows.get(one, 0)} for one in devices}


def _only_assignment(possible: dict[int, set[int]], pids: list[int]) -> dict[int, int] | None:
    """Return the process of each device where only one assignment gives every process a device; None elsewhere.

    With as many devices as processes: where there is only one perfect matching, it is found by taking what has one
    choice left, again and again.
    """
    if len(possible) != len(pids):
        only = {one: next(iter(of)) for one, of in possible.items() if len(of) == 1}
        return only if len(only) == len(possible) and set(only.values()) == set(pids) else None
    left = {one: set(of) for one, of in possible.items()}
    found: dict[int, int] = {}
    while left:
        takers = {pid: [one for one, of in left.items() if pid in of] for pid in pids if pid not in found.values()}
        pair = next(((one, next(iter(of))) for one, of in left.items() if len(of) == 1), None)
        pair = pair or next(((ones[0], pid) for pid, ones in takers.items() if len(ones) == 1), None)
        if pair is None:
            return None
        found[pair[0]] = pair[1]
        left = {one: of - {pair[1]} for one, of in left.items() if one != pair[0]}
    return found


def _by_row(device: pl.DataFrame, launches: pl.DataFrame) -> pl.DataFrame | None:
    """Return index, pid: the process of each row, where only one assignment of rows to launches is possible.

    That is so where one process alone launched the id, and where as many rows as launches have it and take turns with
    them. Rows drawn around kernels belong to no process then. None where a row could be of several, or of none.
    """
    order = pl.col("at").rank("ordinal").over("correlation")
    turns = launches.with_columns((order - 1).cast(pl.Int64).alias("turn"), pl.len().over("correlation").alias("calls"))
    place = pl.col("ts_ns").rank("ordinal").over("correlation")
    rows = device.with_columns((place - 1).cast(pl.Int64).alias("turn"), pl.len().over("correlation").alias("rows"))
    calls = turns.group_by("correlation").agg(pl.col("calls").first())
    rows = rows.join(calls, on="correlation", how="left")
    rows = rows.with_columns(pl.when(pl.col("calls") == 1).then(0).otherwise("turn").alias("turn"))
    found = rows.join(turns.drop("calls"), on=["correlation", "turn"], how="left")
    following = turns.select("correlation", pl.col("turn") - 1, pl.col("at").alias("next_at"))
    found = found.join(following, on=["correlation", "turn"], how="left")
    sure = (pl.col("calls") == 1) | (
        (pl.col("calls") == pl.col("rows"))
        & (pl.col("at") <= pl.col("ts_ns"))
        & (pl.col("next_at").is_null() | (pl.col("next_at") > pl.col("ts_ns")))
    )
    drawn = pl.col("cat").str.to_lowercase() == "gpu_user_annotation"
    unsure = found.filter(~(sure.fill_null(value=False) | drawn.fill_null(value=False)))
    if unsure.height:
        return None
    return found.select("index", pl.when(sure).then("of").alias("pid"))


def _common_mark(on_cpu: pl.DataFrame, pids: list[int]) -> str:
    marks = on_cpu.filter(pl.col("name").str.starts_with(STEP_MARK_PREFIX), pl.col("pid").is_in(pids))
    times = Counter(name for name, _ in marks.select("name", "pid").unique().sort("name").iter_rows())
    name, count = times.most_common(1)[0]
    return name if count == len(pids) else f"{STEP_MARK_PREFIX}k"


def _of_process(columns: Columns, pid: int, of_rows: pl.DataFrame, threads: pl.DataFrame) -> Columns:
    own = of_rows.filter(of=pid).select("index")
    events, device, comm = (
        frame.join(own, on="index", how="semi", maintain_order="left")
        for frame in (columns.events, columns.device, columns.comm)
    )
    frames, memory = columns.frames.filter(pid=pid), columns.memory.filter(pid=pid)
    flows = columns.flows.join(threads.filter(pid=pid), on="tid", how="semi", maintain_order="left")
    return Columns(events, frames, device, comm, memory, flows)
