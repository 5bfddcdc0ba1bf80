"""The rows of trace files, found with Python's json and decimal alone: what the oracle (brute_force.py) counts."""

from __future__ import annotations

import gzip
import io
import json
import re
import tarfile
from collections import defaultdict
from collections.abc import Iterable, Sequence
from decimal import Decimal
from functools import cached_property
from itertools import permutations
from pathlib import Path
from typing import Any, NamedTuple

ON_DEVICE = {"kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset"}
OPERATOR = {"cpu_op", "operator"}
KNOWN = ON_DEVICE | OPERATOR | {"user_annotation"}


class NotATraceError(ValueError):
    """A file that no profiler of PyTorch wrote."""


class Launch(NamedTuple):
    """A call of the device's runtime."""

    cat: str
    start: int
    thread: object


class Row(NamedTuple):
    """A span of a trace, with its place in the file."""

    position: int
    cat: str
    name: str
    pid: object
    tid: object
    start: int
    end: int
    args: dict[str, Any]

    @property
    def thread(self) -> object:
        return self.pid, self.tid

    @property
    def stream(self) -> object:
        return self.args.get("device", self.pid), self.args.get("stream", self.tid)

    @property
    def correlation(self) -> object:
        return self.args.get("correlation")

    @property
    def is_update(self) -> bool:
        on_cpu = self.cat.lower() in OPERATOR | {"user_annotation"}
        return on_cpu and self.name.startswith("Optimizer.step#")

    @property
    def is_step_mark(self) -> bool:
        """Also drawn on devices, around kernels: that row marks nothing."""
        return self.cat != "gpu_user_annotation" and re.fullmatch(r"ProfilerStep#\d+", self.name) is not None


class Rank:
    """The rows of one process and of the devices that it drives."""

    def __init__(self, number: int, rows: list[Row], header: dict[str, Any]) -> None:
        self.number = number
        self.rows = rows
        self.header = header

    @cached_property
    def device_rows(self) -> list[Row]:
        return [row for row in self.rows if is_on_device(row)]

    @cached_property
    def launches(self) -> dict[object, Launch]:
        """Calls of the runtime by correlation id; the first call where ids repeat."""
        found: dict[object, Launch] = {}
        for row in self.rows:
            if row.correlation and re.search(r"(^|_)(runtime|driver)$", row.cat.lower()):
                found.setdefault(row.correlation, Launch(row.cat, row.start, row.thread))
        return found

    @cached_property
    def backend_spans(self) -> list[Row]:
        """Communication that the CPU carried out. A span in which a kernel is launched is only its enqueueing."""
        ran = {row.correlation for row in self.device_rows}
        at = [launch for number, launch in self.launches.items() if number in ran]
        spans = [row for row in self.rows if re.match(r"(gloo|mpi|ucc|xccl):", row.name) and row.cat.lower() in KNOWN]
        return [s for s in spans if not any(s.thread == one.thread and s.start <= one.start < s.end for one in at)]

    @cached_property
    def operators(self) -> list[Row]:
        """What the CPU computed; until torch 1.9 steps and backend spans look like operators too."""
        spans = {row.position for row in self.backend_spans}
        return [r for r in self.rows if r.cat.lower() in OPERATOR and r.position not in spans and not r.is_step_mark]


def is_on_device(row: Row) -> bool:
    return row.cat.lower() in ON_DEVICE


def is_copy(row: Row) -> bool:
    return is_on_device(row) and row.cat.lower() != "kernel"


def ns(value: object) -> int | None:
    """Return microseconds, as text or integer, as nanoseconds; every written digit counts."""
    if isinstance(value, int):
        return value * 1000
    return round(Decimal(value) * 1000) if isinstance(value, str) else None


def files_of(path: Path) -> list[tuple[str, bytes]]:
    """Return name and bytes of each trace of a path: a file, an archive of files, or a folder of either."""
    if path.is_dir():
        inside = (
            file for file in sorted(path.iterdir()) if re.search(r"(?<!\.meta)\.json(\.gz)?$|\.tar\.gz$", file.name)
        )
        return [one for file in inside if file.name != "manifest.json" for one in files_of(file)]
    data = path.read_bytes()
    data = gzip.decompress(data) if path.suffix == ".gz" else data
    if not path.name.endswith(".tar.gz"):
        return [(path.name, data)]
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        members = ((member.name, archive.extractfile(member)) for member in archive.getmembers() if member.isfile())
        return [(name, file.read()) for name, file in members if file]


def ranks_of(files: Sequence[tuple[str, bytes]]) -> list[Rank]:
    """Return the ranks of a run, as the files' headers number them, else their names, else their order."""
    found: list[Rank] = []
    for name, data in files:
        document = json.loads(data, parse_float=str)
        header = {} if isinstance(document, list) else document
        rows = rows_of(document if isinstance(document, list) else document["traceEvents"])
        if not any(row.cat.lower() in KNOWN for row in rows):
            raise NotATraceError(name)
        first = rank_number(name, header, [rank.number for rank in found])
        found += [Rank(first + nth, part, header) for nth, part in enumerate(processes(rows))]
    return found


def rank_number(name: str, header: dict[str, Any], taken: list[int]) -> int:
    told = (header.get("distributedInfo") or {}).get("rank")
    named = re.search(r"(?:^|[^a-z])(?:rank|profile|worker)[-_]?(\d+)", name)
    free = next(n for n in range(len(taken) + 1) if n not in taken)
    return told if told is not None else int(named[1]) if named else free


def rows_of(events: Iterable[dict[str, Any]]) -> list[Row]:
    """Return the spans of a trace: complete events, and begins with their ends (the last one open on their thread)."""
    rows: list[Row] = []
    opened: dict[object, list[tuple[int, dict[str, Any]]]] = defaultdict(list)
    for position, event in enumerate(events):
        thread = event.get("pid"), event.get("tid")
        start, lasts = ns(event.get("ts")), ns(event.get("dur"))
        if event.get("ph") == "X" and start is not None and lasts is not None and lasts >= 0:
            rows.append(_row(position, event, start, start + lasts))
        elif event.get("ph") == "B" and start is not None:
            opened[thread].append((start, {**event, "position": position}))
        elif event.get("ph") == "E" and start is not None and opened[thread]:
            began, begin = opened[thread].pop()
            rows.append(_row(begin["position"], begin, began, start))
    return rows


def _row(position: int, event: dict[str, Any], start: int, end: int) -> Row:
    cat, name, args = event.get("cat") or "", str(event.get("name")), event.get("args") or {}
    return Row(position, cat, name, event.get("pid"), event.get("tid"), start, end, args)


def processes(rows: list[Row]) -> list[list[Row]]:
    """Return the rows of each process that marks steps, with those of its devices, by order of process ids.

    Several in one file are told apart where only one pairing with device ids lets every kernel start after its launch.
    """
    pids = sorted({row.pid for row in rows if row.is_step_mark}, key=str)
    device_pids = sorted({row.pid for row in rows if is_on_device(row)}, key=str)
    if len(pids) < 2:
        return [rows]
    pairings = [dict(zip(order, pids, strict=True)) for order in permutations(device_pids, len(pids))]
    possible = [pairing for pairing in pairings if _starts_after_launch(rows, pairing)]
    if len(device_pids) != len(pids) or len(possible) != 1:
        raise NotATraceError(f"holds {len(pids)} processes whose kernels cannot be told apart")
    owner = {pid: pid for pid in pids} | possible[0]
    return [[row for row in rows if owner.get(row.pid) == pid] for pid in pids]


def _starts_after_launch(rows: list[Row], pairing: dict[object, object]) -> bool:
    launched = {(row.pid, row.correlation): row.start for row in rows if row.correlation and not is_on_device(row)}
    starts = ((row.start, launched.get((pairing[row.pid], row.correlation))) for row in rows if is_on_device(row))
    return all(at is None or at <= start for start, at in starts)
