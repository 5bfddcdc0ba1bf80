"""Times of a trace's steps, found with Python's json and nothing else: the oracle of what tracekit measures.

Slow, plain and independent of tracekit: lists of tuples, one short function a decision. What the numbers mean is
in the README; where a trace is odd, the functions say what is right and why. Times are integer nanoseconds on the
trace's clock.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from brute_force_bytes import Moved, bytes_moved, calls_of, is_communication, link_kernels, match_spans
from brute_force_rows import Launch, Rank, Row, is_copy, ranks_of
from brute_force_spans import Spans, length, minus, union, within

Key = tuple[int, str, int | None]  # rank, device, step


class Window(NamedTuple):
    """A step on a device: its length, what was busy in it, and the four parts of it."""

    step: int
    busy: int
    compute: int
    exposed_comm: int
    exposed_copy: int
    idle: int


class Comm(NamedTuple):
    """Communication that a step launched: all of it, what of it ran beside compute, and the rest."""

    comm: int
    overlapped: int
    exposed: int


class Answer(NamedTuple):
    """What the trace files of one run hold."""

    windows: dict[Key, Window]
    comm: dict[Key, Comm]
    moved: Moved


class Work(NamedTuple):
    """Something that a device did: compute, comm or copy; `lane` is where nothing runs beside it by nature."""

    role: str
    lane: object
    start: int
    end: int
    step: int | None


class Step(NamedTuple):
    """A step's window on the CPU."""

    number: int | None
    start: int
    end: int


def answer(files: Sequence[tuple[str, bytes]]) -> Answer:
    """Return what the files (name and text of each) of one run hold.

    Raises:
        NotATraceError: a file is no trace.
    """
    windows: dict[Key, Window] = {}
    comm: dict[Key, Comm] = {}
    moved = Moved({}, {})
    for rank in ranks_of(files):
        steps = steps_of(rank.rows)
        devices, launched = (_on_devices if rank.device_rows else _on_cpu)(rank, steps)
        for device, work in devices.items():
            on_device = device_windows(work, steps) if rank.device_rows else steps
            windows |= {(rank.number, device, s.number): window(work, s.start, s.end) for s in on_device}
            comm |= {(rank.number, device, step): found for step, found in launched_comm(work).items()}
        bytes_moved(moved, rank, launched, lambda at, steps=steps: step_at(steps, at))
    return Answer(windows, comm, moved)


# -- steps ---------------------------------------------------------------------------------------------------------


def steps_of(rows: Iterable[Row]) -> list[Step]:
    """Return the steps by their marks: to the next mark where that has the next number, else to the mark's own end.

    Without marks a step ends with each step of the optimizer (of several, with each of the one that is last) and the
    first begins with the trace; without those the whole trace is one step without a number.
    """
    rows = list(rows)
    marks = sorted((r.start, r.end, int(r.name[13:])) for r in rows if r.is_step_mark)
    updates = sorted((r.end, r.position, r.name) for r in rows if r.is_update)
    if not marks and updates:
        ends = [end for end, _, name in updates if name == updates[-1][2]]
        starts = [min(r.start for r in rows), *ends[:-1]]
        return [Step(number, start, end) for number, (start, end) in enumerate(zip(starts, ends, strict=True))]
    if not marks:
        return [Step(None, min(r.start for r in rows), max(r.end for r in rows))]
    steps = [
        Step(number, start, after[0] if after[2] == number + 1 else end)
        for (start, end, number), after in zip(marks, [*marks[1:], (0, 0, -1)], strict=True)
    ]
    if len({s.number for s in steps}) < len(steps) or any(a.end > b.start for a, b in pairwise(steps)):
        raise ValueError("marks that repeat or cross: no input of these tests has them, and nothing is decided here")
    return steps


def step_at(steps: list[Step], at: int) -> int | None:
    """Return the number of the step whose window holds the moment; None between and beyond them."""
    nth = bisect_right([s.start for s in steps], at) - 1
    return steps[nth].number if nth >= 0 and at < steps[nth].end else None


def device_windows(work: list[Work], steps: list[Step]) -> list[Step]:
    """Return the windows of a device: from the first work that a step launched to the first that the next step did.

    A step that no step with work follows at once ends with the last work it launched.
    """
    own = {s.number: [w for w in work if w.step == s.number] for s in steps}
    found = []
    for nth, step in enumerate(steps):
        if not own[step.number]:
            continue
        start, end = min(w.start for w in own[step.number]), max(w.end for w in own[step.number])
        later = [(s, min(w.start for w in own[s.number])) for s in steps[nth + 1 :] if own[s.number]]
        if later:
            follows = later[0][0].start == step.end
            end = later[0][1] if follows else min(end, later[0][1])
        found.append(Step(step.number, start, end))
    return found


# -- devices -------------------------------------------------------------------------------------------------------

BEFORE = -1  # the step of what was launched before the recording began


def _on_devices(rank: Rank, steps: list[Step]) -> tuple[dict[str, list[Work]], dict[int, int | None]]:
    """Return the work of each device, and the launching moment of rows (by position; None: before the recording)."""
    rows = rank.device_rows
    launches = rank.launches
    calls = calls_of(rank)
    linked = link_kernels(rank, calls)
    before = launched_before(rows, launches)
    moments: dict[int, int | None] = {}
    devices: dict[str, list[Work]] = defaultdict(list)
    kind = device_kind(rank)
    for row in rows:
        launch = launches.get(row.correlation)
        at = None if row.position in before else launch.start if launch else row.start
        moments[row.position] = at
        step = BEFORE if at is None else step_at(steps, at)
        number = row.args.get("device", row.pid)
        devices[f"{kind}:{number}"].append(Work(_role(row, linked), lane_of(row), row.start, row.end, step))
    return devices, moments


def _role(row: Row, linked: dict[int, int]) -> str:
    if is_communication(row, linked):
        return "comm"
    return "copy" if is_copy(row) else "compute"


def launched_before(rows: list[Row], launches: dict[object, Launch]) -> set[int]:
    """Return the rows (by position) that were launched before the recording began.

    A launch that is not in the trace was before it where the row starts before the first row of its stream whose launch
    is: streams run in order. A row of a stream without any launch is placed by its own time.
    """
    first: dict[object, int] = {}
    for row in rows:
        if row.correlation in launches:
            first[row.stream] = min(row.start, first.get(row.stream, row.start))
    unseen = [row for row in rows if row.correlation not in launches]
    return {row.position for row in unseen if row.stream in first and row.start < first[row.stream]}


def lane_of(row: Row) -> object:
    """Return where the row runs one after another: its stream; of a graph's node the stream that it was captured on.

    A graph may be drawn on one logical stream, on which its nodes do run beside one another.
    """
    return row.args.get("original_stream", row.stream) if "graph node id" in row.args else row.stream


def device_kind(rank: Rank) -> str:
    """Return how torch calls the devices: by the runtime that launched (``xpu_runtime``); AMD's too are ``cuda``."""
    kinds = {re.sub(r"_?(runtime|driver)$", "", launch.cat.lower()) for launch in rank.launches.values()} - {""}
    others = kinds - {"cuda"}
    return others.pop() if others else "cuda"


# -- CPU -----------------------------------------------------------------------------------------------------------


def _on_cpu(rank: Rank, steps: list[Step]) -> tuple[dict[str, list[Work]], dict[int, int | None]]:
    """Return the work of the CPU, and the moment of each backend span's call; nothing where a device ran unrecorded."""
    if any(row.name.startswith("nccl:") for row in rank.rows):
        return {}, {}
    spans = rank.backend_spans
    calls = match_spans(spans, calls_of(rank))
    moments = {span.position: calls[span.position].start if span.position in calls else span.start for span in spans}
    work = [Work("comm", ("span", s.position), s.start, s.end, step_at(steps, moments[s.position])) for s in spans]
    for thread, operators in by_thread(rank.operators).items():
        if not is_backends(operators, [s for s in spans if s.thread == thread]):
            own = (part for part in own_time(operators) if is_compute(part[0].name))
            work += [Work("compute", thread, start, end, step_at(steps, start)) for _, start, end in own]
    return {"cpu": work}, dict(moments)


def by_thread(rows: Iterable[Row]) -> dict[object, list[Row]]:
    threads: dict[object, list[Row]] = defaultdict(list)
    for row in rows:
        threads[row.thread].append(row)
    return threads


def is_backends(operators: list[Row], spans: list[Row]) -> bool:
    """Whether a thread is one of the backend's: all that it ran lies inside the backend's spans.

    A backend may draw its spans on the thread that called (gloo's send and recv; all of torch up to 1.9), from call to
    completion; what else runs there meanwhile is the training.
    """
    return bool(spans) and all(any(s.start <= o.start and o.end <= s.end for s in spans) for o in operators)


def is_compute(name: str) -> bool:
    """Whether an operator's own time is compute: not autograd's frames', calls' to collectives, or waits'."""
    frame = re.match(r"(torch::)?autograd::", name) or re.search(r"Backward\d*$", name)
    return not (frame or "c10d" in name or name.startswith("record_param_comms") or "wait" in name)


def own_time(operators: list[Row]) -> list[tuple[Row, int, int]]:
    """Return the stretches in which each operator of a thread is the innermost one: (operator, start, end)."""
    stretches: list[tuple[Row, int, int]] = []
    opened: list[Row] = []
    now = 0

    def until(moment: int) -> None:
        nonlocal now
        if opened and moment > now:
            stretches.append((opened[-1], now, moment))
        now = max(now, moment)

    ordered = sorted((o for o in operators if o.end > o.start), key=lambda o: (o.start, -o.end, o.position))
    for operator in ordered:
        while opened and opened[-1].end <= operator.start:
            until(opened[-1].end)
            opened.pop()
        until(operator.start)
        now = operator.start
        opened.append(operator)
    while opened:
        until(opened[-1].end)
        opened.pop()
    return stretches


# -- shares of time ------------------------------------------------------------------------------------------------


def window(work: list[Work], start: int, end: int) -> Window:
    """Return the parts of a window: compute, else communication, else copies, else idle; they add up to its length."""
    compute, comm, copy = (
        union((w.start, w.end) for w in work if w.role == role) for role in ("compute", "comm", "copy")
    )
    exposed = minus(comm, cover(work))
    busy = union([*compute, *comm, *copy])
    parts = [minus(compute, exposed), exposed, minus(minus(copy, compute), comm)]
    inside = [length(within(part, start, end)) for part in parts]
    occupied = length(within(busy, start, end))
    return Window(end - start, occupied, *inside, end - start - occupied)


def launched_comm(work: list[Work]) -> dict[int | None, Comm]:
    """Return the communication that each step launched, wherever it ran, and what any compute hid of it."""
    hidden_by = cover(work)
    launched: dict[int | None, Spans] = defaultdict(list)
    for w in work:
        if w.role == "comm":
            launched[None if w.step == BEFORE else w.step].append((w.start, w.end))
    totals = {step: (length(union(spans)), length(minus(union(spans), hidden_by))) for step, spans in launched.items()}
    return {step: Comm(comm, comm - exposed, exposed) for step, (comm, exposed) in totals.items()}


def cover(work: list[Work]) -> Spans:
    """Return when compute runs that hides communication: all of it, but for crossings with its own lane's."""
    lanes: dict[object, dict[str, Spans]] = defaultdict(lambda: defaultdict(list))
    for w in work:
        lanes[w.lane][w.role].append((w.start, w.end))
    return union(
        part
        for lane in lanes.values()
        if lane["compute"]
        for part in minus(union(lane["compute"]), union(lane["comm"]))
    )
