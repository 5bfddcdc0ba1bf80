"""Which files a run consists of, which rank and cycle each belongs to, and how we know.

Layouts read: one file; a folder of files; our own runs (``rank0.json.gz``, ``cycle1/rank0.json.gz``); torchtitan's
``iteration_20/rank0_trace.json.gz``; TensorBoard's and HTA's flat folders.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from tracekit.errors import InputError

MANIFEST_NAME = "manifest.json"

_TRACE_NAME = re.compile(r"\.(json|gz|gzip)$", re.IGNORECASE)
_NOT_TRACES = re.compile(r"^(manifest|report)\.json$|\.meta\.json$", re.IGNORECASE)
_RANK_IN_NAME = re.compile(r"(?:^|[^a-z])(?:rank|worker|r)[-_]?(\d+)(?!\d)", re.IGNORECASE)
_CYCLE_IN_FOLDER = re.compile(r"^(?:cycle|iteration|step)[-_]?(\d+)$", re.IGNORECASE)


class Source(NamedTuple):
    """One trace file; `cycle` is the number its folder carries, else 0."""

    path: Path
    cycle: int
    rank_in_name: int | None


class Ranked(NamedTuple):
    """The rank of one file and where it was found: "distributedInfo", "file name" or "order"."""

    rank: int
    rank_from: str


def find_sources(paths: Iterable[Path]) -> list[Source]:
    """Return the trace files below these files and folders, ordered by cycle, rank and name.

    Raises:
        InputError: a path does not exist, or a folder holds no trace.
    """
    sources = [_source(file) for path in paths for file in _files(path)]
    return sorted(sources, key=lambda s: (s.cycle, -1 if s.rank_in_name is None else s.rank_in_name, str(s.path)))


def assign_ranks(told: Sequence[int | None], in_names: Sequence[int | None]) -> list[Ranked]:
    """Return a rank for each file of one cycle: what the traces tell, else what their names say, else their order."""
    if told and None not in told:
        return [Ranked(r, "distributedInfo") for r in told if r is not None]
    merged = [t if t is not None else n for t, n in zip(told, in_names, strict=True)]
    if None not in merged:
        return [
            Ranked(m, "distributedInfo" if t is not None else "file name")
            for m, t in zip(merged, told, strict=True)
            if m is not None
        ]
    return [Ranked(i, "order") for i in range(len(told))]


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise InputError(f"{path}: no such file or folder; give a trace file or a run folder")
    files = [
        f for f in path.rglob("*") if _TRACE_NAME.search(f.name) and not _NOT_TRACES.search(f.name) and f.is_file()
    ]
    if not files:
        raise InputError(f"{path}: no trace in this folder (looked for *.json and *.json.gz); give a run folder")
    return files


def _source(path: Path) -> Source:
    rank = _RANK_IN_NAME.search(path.name)
    cycle = _CYCLE_IN_FOLDER.match(path.parent.name)
    return Source(path, int(cycle[1]) if cycle else 0, int(rank[1]) if rank else None)
