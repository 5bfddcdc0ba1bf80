"""All files of a run as one frame of events, each row with its rank and cycle."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import polars as pl

from tracekit.errors import InputError
from tracekit.read.columns import Columns
from tracekit.read.decode import Decoded, decode
from tracekit.read.manifest import Manifest
from tracekit.read.sources import Ranked, Source, assign_ranks, find_sources

FILES_SCHEMA: dict[str, pl.DataType] = {
    "file": pl.String(),
    "rank": pl.Int32(),
    "rank_from": pl.String(),
    "cycle": pl.Int32(),
    "host": pl.String(),
    "num_events": pl.Int64(),
}
# What was wrong with a file, at which byte of its text it was first seen, and what was done about it.
REPAIRS_SCHEMA: dict[str, pl.DataType] = {
    "file": pl.String(),
    "rank": pl.Int32(),
    "cycle": pl.Int32(),
    "what": pl.String(),
    "offset": pl.Int64(),
    "count": pl.Int64(),
    "done": pl.String(),
}


class Traces(NamedTuple):
    """`columns`: of all files, keyed by rank, cycle and index; `files`: FILES_SCHEMA; `repairs`: REPAIRS_SCHEMA."""

    columns: Columns
    files: pl.DataFrame
    repairs: pl.DataFrame


def read_traces(paths: list[Path], manifest: Manifest | None = None) -> Traces:
    """Read every trace file below these paths, of the newest cycle that has all its ranks.

    Raises:
        InputError: nothing to read, a file is not a Kineto trace, or two files claim one rank.
    """
    sources = _newest_complete_cycle(find_sources(paths))
    decoded = [decode(s.path) for s in sources]
    ranked = assign_ranks([d.facts.rank for d in decoded], [s.rank_in_name for s in sources])
    _refuse_duplicates(sources, [r.rank for r in ranked])
    hosts = {r.rank: r.host for r in (manifest.ranks if manifest else [])}
    files: list[dict[str, object]] = []
    repairs: list[dict[str, object]] = []
    for source, one, (rank, rank_from) in zip(sources, decoded, ranked, strict=True):
        place = {"file": str(source.path), "rank": rank, "cycle": source.cycle}
        host = one.facts.host or hosts.get(rank)
        files.append({**place, "rank_from": rank_from, "host": host, "num_events": one.columns.events.height})
        repairs.extend({**place, **asdict(finding)} for finding in one.findings)
    return Traces(
        _stacked(sources, decoded, ranked),
        pl.DataFrame(files, schema=FILES_SCHEMA),
        pl.DataFrame(repairs, schema=REPAIRS_SCHEMA),
    )


def _stacked(sources: list[Source], decoded: list[Decoded], ranked: list[Ranked]) -> Columns:
    keyed: list[Columns] = []
    for source, one, (rank, _) in zip(sources, decoded, ranked, strict=True):
        keys = [pl.lit(rank, pl.Int32).alias("rank"), pl.lit(source.cycle, pl.Int32).alias("cycle")]
        keyed.append(Columns(*(frame.select(*keys, pl.all()) for frame in one.columns)))
    return Columns(*(pl.concat(frames) for frames in zip(*keyed, strict=True)))


def _newest_complete_cycle(sources: list[Source]) -> list[Source]:
    per_cycle: dict[int, list[Source]] = {}
    for source in sources:
        per_cycle.setdefault(source.cycle, []).append(source)
    most = max(len(group) for group in per_cycle.values())
    return per_cycle[max(cycle for cycle, group in per_cycle.items() if len(group) == most)]


def _refuse_duplicates(sources: list[Source], ranks: list[int]) -> None:
    seen: dict[int, Path] = {}
    for source, rank in zip(sources, ranks, strict=True):
        if rank in seen:
            raise InputError(
                f"{source.path}: rank {rank} is also in {seen[rank]}; these look like two runs, open one at a time"
            )
        seen[rank] = source.path
