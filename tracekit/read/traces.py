"""All files of a run as one frame of events, each row with its rank and cycle."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import polars as pl

from tracekit.errors import InputError
from tracekit.read.content import read_content
from tracekit.read.decode import EVENT_SCHEMA, Decoded, decode
from tracekit.read.manifest import Manifest
from tracekit.read.sources import Source, assign_ranks, find_sources

FILES_SCHEMA: dict[str, pl.DataType] = {
    "file": pl.String(),
    "rank": pl.Int32(),
    "rank_from": pl.String(),
    "cycle": pl.Int32(),
    "host": pl.String(),
    "num_events": pl.Int64(),
}
# What was wrong with a file and what was done about it.
REPAIRS_SCHEMA: dict[str, pl.DataType] = {
    "file": pl.String(),
    "rank": pl.Int32(),
    "cycle": pl.Int32(),
    "what": pl.String(),
    "count": pl.Int64(),
    "done": pl.String(),
}


class Traces(NamedTuple):
    """`events`: rank, cycle and EVENT_SCHEMA; `files`: FILES_SCHEMA; `repairs`: REPAIRS_SCHEMA."""

    events: pl.DataFrame
    files: pl.DataFrame
    repairs: pl.DataFrame


def read_traces(paths: list[Path], manifest: Manifest | None = None) -> Traces:
    """Read every trace file below these paths, of the newest cycle that has all its ranks.

    Raises:
        InputError: nothing to read, a file is not a Kineto trace, or two files claim one rank.
    """
    sources = _newest_complete_cycle(find_sources(paths))
    decoded = [decode(read_content(s.path), s.path) for s in sources]
    ranked = assign_ranks([d.rank for d in decoded], [s.rank_in_name for s in sources])
    _refuse_duplicates(sources, [r.rank for r in ranked])
    hosts = {r.rank: r.host for r in (manifest.ranks if manifest else [])}
    frames: list[pl.DataFrame] = []
    files: list[dict[str, object]] = []
    repairs: list[dict[str, object]] = []
    for source, one, (rank, rank_from) in zip(sources, decoded, ranked, strict=True):
        place = {"file": str(source.path), "rank": rank, "cycle": source.cycle}
        host = one.host or hosts.get(rank)
        files.append({**place, "rank_from": rank_from, "host": host, "num_events": one.events.height})
        repairs.extend({**place, **r} for r in _unusable_times(one))
        keys = [pl.lit(rank, pl.Int32).alias("rank"), pl.lit(source.cycle, pl.Int32).alias("cycle")]
        frames.append(one.events.select(*keys, pl.all()))
    schema = {"rank": pl.Int32(), "cycle": pl.Int32(), **EVENT_SCHEMA}
    return Traces(
        pl.concat(frames) if frames else pl.DataFrame(schema=schema),
        pl.DataFrame(files, schema=FILES_SCHEMA),
        pl.DataFrame(repairs, schema=REPAIRS_SCHEMA),
    )


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


def _unusable_times(one: Decoded) -> list[dict[str, object]]:
    """Count complete events that cannot be placed in time; the tables leave them out."""
    spans = one.events.filter(pl.col("ph") == "X")
    findings = {
        "no start time": spans["ts_ns"].null_count(),
        "no duration": spans["dur_ns"].null_count(),
        "negative duration": spans.filter(pl.col("dur_ns") < 0).height,
    }
    return [{"what": w, "count": n, "done": "event set aside"} for w, n in findings.items() if n]
