"""The files of a run read together: one set of frames, each row with its rank and cycle."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import msgspec
import polars as pl

from tracekit import common_columns as c
from tracekit.errors import InputError
from tracekit.manifest import Manifest
from tracekit.read.decoding.archives import size_of
from tracekit.read.decoding.columns import Columns
from tracekit.read.discovery.cycles import choose_cycle, split_cycles, without_strays
from tracekit.read.discovery.file_names import writer_in
from tracekit.read.discovery.manifests import foreign_manifests
from tracekit.read.discovery.ranks import (
    InFile,
    Ranked,
    assign_ranks,
    missing_ranks,
    rank_findings,
    refuse_duplicates,
    world_size,
)
from tracekit.read.discovery.sources import LeftOut, Source, find_sources
from tracekit.read.findings import CORRUPT, ENDS_EARLY, Finding
from tracekit.read.processes import Process
from tracekit.read.read_each import Progress, read_each
from tracekit.read.trace_cache import Opened
from tracekit.table_schema import Column, Schema

# One row a file of the run and rank in it, those of cycles that were not read included.
_NOT_READ = "its cycle was not read"
FILES_SCHEMA = Schema(
    Column("file", pl.String, "Path of the file."),
    c.RANK.but(meaning="Rank whose trace it is.", null=f"{_NOT_READ} and its name has no rank"),
    Column(
        "rank_from",
        pl.String,
        "How that was found: distributedInfo, file name, folder name, axes in name or order; of several in one file by "
        "process name or order of pids.",
        "`rank` is null",
    ),
    c.CYCLE,
    c.HOST.but(null=f"in neither trace, file name nor manifest, or {_NOT_READ}"),
    Column("pid", pl.Int64, "Process that wrote it.", f"in neither file name nor manifest, or {_NOT_READ}"),
    Column("num_events", pl.Int64, "Number of events of the rank in it.", _NOT_READ),
    Column("size_bytes", pl.Int64, "Size of the file, compressed as it is.", "it is gone"),
)
REPAIRS_SCHEMA = Schema(
    Column("file", pl.String, "File that something was wrong with.", "of the run as a whole"),
    c.RANK.but(meaning="Rank of the file.", null="of no one rank"),
    c.CYCLE,
    Column("what", pl.String, "What was wrong."),
    Column(
        "offset", pl.Int64, "Byte of the (uncompressed) text where it was first seen.", "it has no place in the text"
    ),
    Column("count", pl.Int64, "How often it was seen."),
    Column("done", pl.String, "What was done about it."),
)

# The process groups that the headers of files tell of; `members` are ranks as text, "0, 1".
PROCESS_GROUPS_SCHEMA: dict[str, pl.DataType] = {
    "rank": pl.Int32(),
    "cycle": pl.Int32(),
    "group": pl.String(),
    "group_desc": pl.String(),
    "backend": pl.String(),
    "group_size": pl.Int64(),
    "members": pl.String(),
}

_STRAY = "not a Kineto trace (no events in it)"


class _Read(NamedTuple):
    """A rank's part of a file; `process`: its place among the file's processes, 0 where that holds one rank."""

    source: Source
    opened: Opened
    process: int = 0

    @property
    def told(self) -> Process | None:
        """What the file tells of the process, where it holds several."""
        return self.opened.processes[self.process] if self.opened.processes else None

    @property
    def columns(self) -> Columns:
        return self.opened.parts[self.process]

    @property
    def num_events(self) -> int:
        return self.told.num_events if self.told else self.opened.info.num_events

    @property
    def findings(self) -> list[Finding]:
        """Faults of the file: what tells of no damage stands once."""
        return [f for f in self.opened.findings if self.process == 0 or f.what.startswith((CORRUPT, ENDS_EARLY))]


class Traces:
    """The files of a run as read. Frames are loaded when first asked for, since cached tables do without them.

    `files`: FILES_SCHEMA; `repairs`: REPAIRS_SCHEMA; `world_size`: None if unknown; `missing`: ranks that no file
    holds; `paths`: of the files read.
    """

    def __init__(
        self,
        read: list[_Read],
        ranks: list[int],
        *,
        files: pl.DataFrame,
        repairs: pl.DataFrame,
        world_size: int | None,
        missing: list[int],
    ) -> None:
        """Hold what :func:`read_traces` found."""
        self._read = read
        self._ranks = ranks
        self.files = files
        self.repairs = repairs
        self.world_size = world_size
        self.missing = missing
        self.paths = list(dict.fromkeys(r.source.path for r in read))

    @cached_property
    def columns(self) -> Columns:
        """The frames of all files read, keyed by rank, cycle and index.

        Raises:
            InputError: a file has changed since it was opened, and its frames are not cached.
        """
        keyed = [
            Columns(*(_keyed(frame, rank, read.source.cycle) for frame in read.columns))
            for read, rank in zip(self._read, self._ranks, strict=True)
        ]
        return Columns(*(pl.concat(frames) for frames in zip(*keyed, strict=True)))

    @property
    def process_groups(self) -> pl.DataFrame:
        """The process groups that the headers tell of: PROCESS_GROUPS_SCHEMA."""
        rows = [
            (rank, read.source.cycle, group.name, group.desc, group.backend, group.size, _listed(group.ranks))
            for read, rank in zip(self._read, self._ranks, strict=True)
            for group in read.opened.metadata.groups or ()
            # Of several processes the header tells of one, which is in all groups that it lists.
            if read.told is None or rank in (group.ranks or (rank,))
        ]
        return pl.DataFrame(rows, schema=PROCESS_GROUPS_SCHEMA, orient="row")

    @property
    def key(self) -> str | None:
        """A digest of all that was read, independent of its path; None where the digest of a file is not known."""
        if any(read.opened.digest is None for read in self._read):
            return None
        files = [
            (read.opened.digest, read.process, rank, read.source.cycle)
            for read, rank in zip(self._read, self._ranks, strict=True)
        ]
        faults = self.repairs.select("rank", "cycle", "what", "count", "done").rows()
        return hashlib.sha256(msgspec.json.encode((files, faults, self.world_size))).hexdigest()


def read_traces(
    paths: list[Path],
    manifest: Manifest | None = None,
    *,
    cycle: int | None = None,
    cache: bool = True,
    executor: Executor | None = None,
    progress: Progress | None = None,
) -> Traces:
    """Return the traces below these paths that belong to one cycle, by default the newest complete one.

    Raises:
        InputError: nothing to read, a file that was named is not a Kineto trace, or two files claim one rank.
        UsageError: there is no such cycle.
    """
    left_out = foreign_manifests(paths)
    found, strays = without_strays(find_sources(paths, left_out))
    left_out.extend(LeftOut(s.path, Finding(_STRAY, None, 1, "file left out")) for s in strays)
    everything = split_cycles(found)
    chosen = choose_cycle(everything, cycle, manifest)
    sources = [s for s in everything if s.cycle == chosen]
    read, unusable = _usable(sources, read_each([s.path for s in sources], cache, executor, progress))
    metadata = [r.opened.metadata for r in read]
    size = world_size(metadata, manifest.world_size if manifest else None)
    ranked = _ranked(read, size)
    refuse_duplicates([r.source for r in read], ranked)
    ranks = [r.rank for r in ranked]
    of_ranks = rank_findings(ranks, metadata, size)
    return Traces(
        read,
        ranks,
        files=_files(everything, read, ranked, manifest),
        repairs=_repairs(read, ranks, left_out, unusable, of_ranks),
        world_size=size,
        missing=missing_ranks(ranks, size),
    )


def _ranked(read: list[_Read], size: int | None) -> list[Ranked]:
    """Return the rank of each file, or of each process of a file that holds several."""
    told = [None if r.told is None else InFile(r.process, len(r.opened.processes), r.told.rank) for r in read]
    return assign_ranks([r.source for r in read], [r.opened.metadata.rank for r in read], told, size)


def _usable(
    sources: list[Source], results: Sequence[Opened | InputError]
) -> tuple[list[_Read], list[tuple[Source, Finding]]]:
    """Return what was read, and findings for files of a folder left out: one killed rank must not cost the others."""
    read: list[_Read] = []
    unusable: list[tuple[Source, Finding]] = []
    errors: list[InputError] = []
    for source, result in zip(sources, results, strict=True):
        if isinstance(result, InputError):
            if source.given:
                raise result
            errors.append(result)
            reason = str(result).removeprefix(f"{source.path}: ")
            unusable.append((source, Finding(reason, None, 1, "file left out")))
        else:
            read += [_Read(source, result, n) for n in range(max(1, len(result.processes)))]
    if not read:
        raise errors[0]
    return read, unusable


def _path_text(path: Path) -> str:
    """Return the path as text; file names are bytes, which need not be valid text."""
    return os.fsencode(path).decode("utf-8", "replace")


def _row(source: Source, rank: int | None, finding: Finding) -> dict[str, object]:
    return {"file": _path_text(source.path), "rank": rank, "cycle": source.cycle, **asdict(finding)}


def _repairs(
    read: list[_Read],
    ranks: list[int],
    left_out: list[LeftOut],
    unusable: list[tuple[Source, Finding]],
    of_ranks: list[tuple[int | None, Finding]],
) -> pl.DataFrame:
    of_files = [
        *(_row(r.source, rank, f) for r, rank in zip(read, ranks, strict=True) for f in r.findings),
        *({"file": _path_text(path), **asdict(finding)} for path, finding in left_out),
        *(_row(source, source.rank_in_name, finding) for source, finding in unusable),
    ]
    whole_run = {"cycle": read[0].source.cycle}
    rows = [
        whole_run | asdict(f) if index is None else _row(read[index].source, ranks[index], f) for index, f in of_ranks
    ]
    return pl.DataFrame([*of_files, *rows], schema=REPAIRS_SCHEMA)


def _files(
    everything: list[Source], read: list[_Read], ranked: list[Ranked], manifest: Manifest | None
) -> pl.DataFrame:
    told = {r.rank: r for r in (manifest.ranks if manifest else [])}
    rows: list[tuple[object, ...]] = []
    for one, (rank, rank_from) in zip(read, ranked, strict=True):
        source, info, writer = one.source, told.get(rank), writer_in(one.source.path.name)
        host = one.opened.metadata.host or (info and info.host) or (writer and writer.host)
        pid = one.told.pid if one.told else info.pid if info else writer and writer.pid
        place = (_path_text(source.path), rank, rank_from, source.cycle)
        rows.append((*place, host, pid, one.num_events, _size(source.path)))
    chosen = read[0].source.cycle
    for s in (s for s in everything if s.cycle != chosen):
        place = (_path_text(s.path), s.rank_in_name, s.named_by, s.cycle)
        rows.append((*place, None, None, None, _size(s.path)))
    return pl.DataFrame(rows, schema=FILES_SCHEMA, orient="row").sort("cycle", "rank", "file")


def _listed(ranks: tuple[int, ...] | None) -> str | None:
    return ", ".join(map(str, ranks)) if ranks else None


def _size(path: Path) -> int | None:
    try:
        return size_of(path)
    except OSError:
        return None


def _keyed(frame: pl.DataFrame, rank: int, cycle: int) -> pl.DataFrame:
    # Built without a query, which for small frames costs more than all the rest of opening a cached run.
    rows = frame.height
    keys = [
        pl.Series(name, [value], dtype=pl.Int32).new_from_index(0, rows)
        for name, value in (("rank", rank), ("cycle", cycle))
    ]
    return pl.DataFrame([*keys, *frame.get_columns()])
