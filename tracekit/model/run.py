"""A run: recorded files, opened once; its tables are made when first asked for."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from tracekit import table_registry
from tracekit.intervals import Intervals
from tracekit.manifest import Manifest
from tracekit.model.collectives.collectives import COLLECTIVES_SCHEMA
from tracekit.model.device_time import Key, compute_cover
from tracekit.model.devices.work import WORK_SCHEMA
from tracekit.model.memory.allocations import ALLOCATIONS_SCHEMA
from tracekit.model.memory.blocks import BLOCKS_SCHEMA
from tracekit.model.patterns import Pattern, Patterns, find_patterns, pattern_files
from tracekit.model.steps import STEPS_SCHEMA
from tracekit.model.table_builder import Tables
from tracekit.model.table_cache import CachedTables
from tracekit.read.discovery.manifests import find_manifest, run_folders
from tracekit.read.discovery.sources import expand
from tracekit.read.read_each import Progress
from tracekit.read.traces import FILES_SCHEMA, REPAIRS_SCHEMA, Traces, read_traces
from tracekit.table_schema import Column, Schema

if TYPE_CHECKING:
    import altair as alt

PathLike = str | os.PathLike[str]

_NO_STEPS = "the file was not read, or has no step marks"
RANKS_SCHEMA = Schema(
    *FILES_SCHEMA.columns.values(),
    Column("first_step", pl.Int64, "Number of its first step.", _NO_STEPS),
    Column("last_step", pl.Int64, "Number of its last step.", _NO_STEPS),
    Column("complete", pl.Boolean, "Whether all of its steps are complete.", "the file was not read, or holds no step"),
)


class Run:
    """One capture. Tables are polars frames, described where they are made; times are absolute integer ns.

    Events and tables are loaded or made when first asked for. They raise InputError where that takes a file that has
    changed since it was opened.
    """

    def __init__(
        self, name: str, paths: list[Path], traces: Traces, manifest: Manifest | None, patterns: Patterns = ()
    ) -> None:
        """Hold what was read; :func:`open_run` is the way to get one."""
        self.name = name
        # What it was opened from, its files of patterns included: no output may replace them.
        self.paths = paths
        self.manifest = manifest
        self._traces = traces
        self._made = Tables(traces, manifest, patterns)
        self._cached = CachedTables(traces, manifest, patterns)
        self._files: pl.DataFrame = traces.files
        self._tables: dict[tuple[str, tuple[str, ...]], pl.DataFrame] = {}
        # By the manifest, else the traces; None if unknown.
        self.world_size: int | None = traces.world_size
        self.missing_ranks: list[int] = traces.missing

    def __repr__(self) -> str:
        """Name, ranks and events."""
        ranks = self._files["num_events"].count()
        return f"<Run {self.name!r}: {ranks} ranks, {self._files['num_events'].sum()} events>"

    def _repr_html_(self) -> str:
        """The run as HTML for a notebook: ranks, steps, strategy and Ψ, and the tables by name."""
        return _elsewhere("tracekit.export.notebook:run_html")(self)

    def __getitem__(self, name: str) -> pl.DataFrame:
        """`run["overlap"]`, short for `run.table("overlap")`."""
        return self.table(name)

    # Else Python would take what can be indexed for a sequence.
    __iter__ = None

    def _ipython_key_completions_(self) -> list[str]:
        """The tables, for the tab key after `run["`."""
        return table_registry.names()

    @cached_property
    def events(self) -> pl.DataFrame:
        """All events that were read, in file order: RUN_EVENTS_SCHEMA."""
        return self._traces.columns.merged()

    @property
    def psi(self) -> int | None:
        """Ψ, the number of parameters of the model; None without a manifest."""
        return self.manifest.psi if self.manifest else None

    @property
    def cycles(self) -> list[int]:
        """The cycles that were recorded; one of them was read."""
        return self._files["cycle"].unique().sort().to_list()

    @property
    def files(self) -> list[Path]:
        """The trace files that were read."""
        return self._traces.paths

    @cached_property
    def ranks(self) -> pl.DataFrame:
        """The files of the run with what was found in each: RANKS_SCHEMA."""
        return _ranks(self._files, self.steps)

    @cached_property
    def repairs(self) -> pl.DataFrame:
        """Faults of files and of the run as a whole, and what was done about each: REPAIRS_SCHEMA."""
        faults = self._cached.table("faults", REPAIRS_SCHEMA, lambda: self._made.faults)
        return pl.concat([self._traces.repairs, faults])

    @cached_property
    def steps(self) -> pl.DataFrame:
        """The steps of each rank: STEPS_SCHEMA."""
        return self._cached.table("steps", STEPS_SCHEMA, lambda: self._made.steps)

    @cached_property
    def work(self) -> pl.DataFrame:
        """Everything that occupied a device: WORK_SCHEMA."""
        return self._cached.table("work", WORK_SCHEMA, lambda: self._made.work)

    @cached_property
    def compute_cover(self) -> dict[Key, Intervals]:
        """When compute runs that communication can hide under, for each (rank, device)."""
        return compute_cover(self.work)

    @cached_property
    def collectives(self) -> pl.DataFrame:
        """Every collective of the run: COLLECTIVES_SCHEMA."""
        return self._cached.table("collectives", COLLECTIVES_SCHEMA, lambda: self._made.collectives(self.compute_cover))

    @cached_property
    def allocations(self) -> pl.DataFrame:
        """Allocations and frees: ALLOCATIONS_SCHEMA."""
        return self._cached.table("allocations", ALLOCATIONS_SCHEMA, lambda: self._made.allocations)

    @cached_property
    def blocks(self) -> pl.DataFrame:
        """Blocks of memory from allocation to free, with what each was for: BLOCKS_SCHEMA."""
        return self._cached.table("blocks", BLOCKS_SCHEMA, lambda: self._made.blocks)

    def table(self, name: str, *, by: Sequence[str] = ()) -> pl.DataFrame:
        """The table of that name (`tracekit.tables()` lists them), grouped by the columns `by` where it can be.

        Made when first asked for and kept: sentences, page and exports read one frame.

        Raises:
            UsageError: there is no such table, or it cannot be grouped so.
        """
        key = (name, tuple(by))
        if key not in self._tables:
            self._tables[key] = table_registry.find(name).make(self, by)
        return self._tables[key]

    def chart(self, name: str) -> alt.TopLevelMixin:
        """The report's chart of that name ("overlap", "breakdown", "timeline", …), as altair's.

        Raises:
            UsageError: there is no such chart (the message lists them), or the run holds nothing that it could draw.
        """
        return _elsewhere("tracekit.report.drawing.charts:chart")(self, name)


def open_run(
    path: PathLike | Iterable[PathLike],
    *,
    cache: bool = True,
    executor: Executor | None = None,
    cycle: int | None = None,
    progress: Progress | None = None,
    patterns: PathLike | Sequence[Pattern] | None = None,
) -> Run:
    """Open a run: a folder with or without a manifest, one trace file, a pattern, or several of these.

    Of a run recorded in several cycles the newest complete one is read, unless `cycle` names another. Files are read
    in `executor`, by default in a thread a core (processes must be spawned, not forked); `progress` is called with
    files done, files in all and a file's name.
    With `cache`, decoded events and tables are stored beside the traces, or else in the user's cache folder, for the
    next time. `patterns` name communication kernels that tracekit does not know: a TOML file or the patterns
    themselves, by default the file of ``TRACEKIT_PATTERNS`` or the run's ``tracekit-patterns.toml`` (see
    tracekit/model/patterns.py).

    Raises:
        InputError: nothing to read there, or a file is not a Kineto trace.
        UsageError: there is no such cycle, or a pattern is not one.
    """
    given = [Path(path)] if isinstance(path, str | os.PathLike) else [Path(p) for p in path]
    paths = expand(given)
    manifest = find_manifest(paths)
    folders = dict.fromkeys(folder for path in paths for folder in run_folders(path))
    found, files = find_patterns(patterns, folders), pattern_files(patterns, folders)
    traces = read_traces(paths, manifest, cycle=cycle, cache=cache, executor=executor, progress=progress)
    return Run(_name(paths), [*paths, *files], traces, manifest, found)


def _elsewhere(place: str) -> Callable[..., Any]:
    """The function `module:name` of a room above this one, imported when it is called for."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


def _name(paths: list[Path]) -> str:
    whole = [path.resolve() for path in paths]
    return whole[0].name if len(whole) == 1 else Path(os.path.commonpath([p.parent for p in whole])).name


def _ranks(files: pl.DataFrame, steps_table: pl.DataFrame) -> pl.DataFrame:
    """RANKS_SCHEMA of the files and their steps."""
    seen = steps_table.group_by("rank", "cycle").agg(
        pl.col("step").min().alias("first_step"),
        pl.col("step").max().alias("last_step"),
        pl.col("complete").all(),
    )
    return files.join(seen, on=["rank", "cycle"], how="left", maintain_order="left")
