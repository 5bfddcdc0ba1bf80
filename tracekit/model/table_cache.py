"""The tables of a run, cached beside its traces from one opening to the next."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path

import msgspec
import polars as pl

from tracekit.manifest import Manifest
from tracekit.model.patterns import Patterns
from tracekit.read import cache_entries as entries
from tracekit.read.trace_cache import MIN_EVENTS
from tracekit.read.traces import Traces


class CachedTables:
    """Tables under a key of all that decides them: content of the files, the manifest, the user's patterns."""

    def __init__(self, traces: Traces, manifest: Manifest | None, patterns: Patterns = ()) -> None:
        """Hold what decides the tables; without a key of the traces nothing is cached."""
        self._traces = traces
        self._manifest = manifest
        self._patterns = patterns

    def table(self, name: str, schema: Mapping[str, pl.DataType], make: Callable[[], pl.DataFrame]) -> pl.DataFrame:
        """Return the table from the cache, else by `make`, and then store it."""
        key = self._key
        if key is None:
            return make()
        paths = entries.entry_paths(self._folder, f"{self._name}.{name}")
        for path in paths:
            if (found := entries.load(path, key, {name: schema})) is not None:
                return found[name]
        table = make()
        entries.store(paths, key, {name: table})
        return table

    @cached_property
    def _key(self) -> str | None:
        # Tables of small traces are computed in the time that reading an entry takes.
        if self._traces.key is None or self._traces.files["num_events"].sum() < MIN_EVENTS:
            return None
        decides = (self._traces.key, self._manifest, self._patterns)
        return hashlib.sha256(msgspec.json.encode(decides)).hexdigest()

    @cached_property
    def _folder(self) -> Path:
        return self._traces.paths[0].parent

    @cached_property
    def _name(self) -> str:
        """The name of the set of files, so that entries of one rank and of all do not replace each other."""
        names = sorted(os.path.relpath(path, self._folder) for path in self._traces.paths)
        return "run-" + hashlib.sha256("\n".join(names).encode("utf-8", "surrogateescape")).hexdigest()[:12]
