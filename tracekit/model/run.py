"""A run: the files somebody recorded, opened once; its tables are made when first asked for."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

import polars as pl

from tracekit.model import calls, collectives, memory, steps, work
from tracekit.model.layers import Attribution
from tracekit.read.manifest import Manifest, read_manifest
from tracekit.read.traces import Traces, read_traces

PathLike = str | os.PathLike[str]


class Run:
    """One capture. Tables are polars frames, described where they are made; times are absolute integer ns."""

    def __init__(self, name: str, paths: list[Path], traces: Traces, manifest: Manifest | None) -> None:
        """Hold what was read; :func:`open_run` is the way to get one."""
        self.name = name
        self.paths = paths
        self.manifest = manifest
        self.events: pl.DataFrame = traces.columns.events
        self._columns = traces.columns
        self.repairs: pl.DataFrame = traces.repairs
        self._files: pl.DataFrame = traces.files

    def __repr__(self) -> str:
        """Name, ranks and events."""
        return f"<Run {self.name!r}: {self._files.height} ranks, {self.events.height} events>"

    @property
    def psi(self) -> int | None:
        """Ψ, the number of parameters of the model; null without a manifest."""
        return self.manifest.psi if self.manifest else None

    @property
    def world_size(self) -> int | None:
        """How many ranks the run had, by its manifest or the traces; null where neither tells."""
        return self.manifest.world_size if self.manifest else None

    @cached_property
    def ranks(self) -> pl.DataFrame:
        """The files of the run with what was found in each: RANKS_SCHEMA."""
        return _ranks(self._files, self.steps)

    @cached_property
    def steps(self) -> pl.DataFrame:
        """The steps of each rank: STEPS_SCHEMA."""
        return steps.steps(self.events, self.manifest)

    @cached_property
    def work(self) -> pl.DataFrame:
        """Everything that occupied a device: WORK_SCHEMA."""
        return work.work(self._columns, self._calls, self.steps, self._attribution)

    @cached_property
    def collectives(self) -> pl.DataFrame:
        """What was communicated: COLLECTIVES_SCHEMA."""
        return collectives.collectives(
            self._columns.comm,
            self._calls,
            self.work,
            self.steps,
            self._attribution,
            events=self.events,
            manifest=self.manifest,
            world_size=self.world_size,
        )

    @cached_property
    def memory(self) -> pl.DataFrame:
        """Allocations and frees: MEMORY_SCHEMA."""
        return memory.memory(self._columns, self._attribution)

    @cached_property
    def _calls(self) -> pl.DataFrame:
        return calls.calls(self._columns)

    @cached_property
    def _attribution(self) -> Attribution:
        return Attribution(self.events, self.steps)


def open_run(path: PathLike | Iterable[PathLike]) -> Run:
    """Open a run: a folder with or without a manifest, one trace file, or several files of one run.

    Raises:
        InputError: nothing to read there, or a file is not a Kineto trace.
    """
    paths = [Path(path)] if isinstance(path, str | os.PathLike) else [Path(p) for p in path]
    manifest = read_manifest(paths[0]) if len(paths) == 1 else None
    return Run(_name(paths), paths, read_traces(paths, manifest), manifest)


def _name(paths: list[Path]) -> str:
    return paths[0].resolve().name if len(paths) == 1 else paths[0].resolve().parent.name


def _ranks(files: pl.DataFrame, steps_table: pl.DataFrame) -> pl.DataFrame:
    """One row a file: file, rank, rank_from, cycle, host, num_events, first_step, last_step, complete."""
    seen = steps_table.group_by("rank", "cycle").agg(
        pl.col("step").min().alias("first_step"),
        pl.col("step").max().alias("last_step"),
        pl.col("complete").all(),
    )
    return files.join(seen, on=["rank", "cycle"], how="left", maintain_order="left")
