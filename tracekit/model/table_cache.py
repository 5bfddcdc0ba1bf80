"""The tables of a run, kept beside its traces from one opening to the next."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path

import msgspec
import polars as pl

from tracekit.errors import UsageError
from tracekit.manifest import Manifest
from tracekit.model.patterns import patterns
from tracekit.read import cache_entries as entries
from tracekit.read.trace_cache import MIN_EVENTS
from tracekit.read.traces import Traces


class KeptTables:
    """Tables under a key of all that decides them: what was read of which files, the manifest, the user's patterns."""

    def __init__(self, traces: Traces, manifest: Manifest | None) -> None:
        """Nothing is looked up before a table is asked for; without a key of the traces nothing is kept."""
        self._traces = traces
        self._manifest = manifest

    def table(self, name: str, schema: Mapping[str, pl.DataType], make: Callable[[], pl.DataFrame]) -> pl.DataFrame:
        """Return the table, made only where it was not kept."""
        key = self._key()
        if key is None:
            return make()
        places = entries.places(self._folder, f"{self._name}.{name}")
        for place in places:
            if (found := entries.load(place, key, {name: schema})) is not None:
                return found[name]
        table = make()
        # The working folder, and with it the user's patterns, may have changed meanwhile.
        if self._key() == key:
            entries.store(places, key, {name: table})
        return table

    def _key(self) -> str | None:
        try:
            decides = (self._of_traces, self._manifest, patterns())
        except UsageError:
            # Whoever needs the patterns says what is wrong with them.
            return None
        return hashlib.sha256(msgspec.json.encode(decides)).hexdigest() if self._of_traces else None

    @cached_property
    def _of_traces(self) -> str | None:
        # Tables of small traces are made in the time that reading an entry takes.
        return self._traces.key if self._traces.files["num_events"].sum() >= MIN_EVENTS else None

    @cached_property
    def _folder(self) -> Path:
        return self._traces.paths[0].parent

    @cached_property
    def _name(self) -> str:
        """Of the set of files, so that openings of one rank and of all do not push each other out."""
        names = sorted(os.path.relpath(path, self._folder) for path in self._traces.paths)
        return "run-" + hashlib.sha256("\n".join(names).encode("utf-8", "surrogateescape")).hexdigest()[:12]
