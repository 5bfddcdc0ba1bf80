"""The tables of a run, each computed when first asked for, from the events and from the tables it builds on."""

from __future__ import annotations

from functools import cached_property

import polars as pl

from tracekit.intervals import Intervals
from tracekit.manifest import Manifest
from tracekit.model import repairs, steps
from tracekit.model.attribution.layers import Attribution
from tracekit.model.collectives import calls, collectives
from tracekit.model.device_time import Key
from tracekit.model.devices import work
from tracekit.model.devices.device_rows import device_rows, without_lost_activity
from tracekit.model.event_kinds import Kinds, kinds
from tracekit.model.memory import allocations, blocks
from tracekit.model.patterns import Patterns
from tracekit.model.recordings import RUN
from tracekit.read.traces import Traces


class Tables:
    """Computes the tables; intermediate results that several need are computed once."""

    def __init__(self, traces: Traces, manifest: Manifest | None, patterns: Patterns = ()) -> None:
        """Hold what was read."""
        self._patterns = patterns
        self._traces = traces
        self._manifest = manifest

    @cached_property
    def faults(self) -> pl.DataFrame:
        """Faults of a run whose files can be read: REPAIRS_SCHEMA."""
        return repairs.repairs(self._kinds, self.steps, self.work, self._all_device.filter("is_misplaced"))

    @cached_property
    def steps(self) -> pl.DataFrame:
        """STEPS_SCHEMA."""
        windows = steps.steps(self._kinds, self._manifest, self._traces.repairs)
        return without_lost_activity(windows, self._device, self._kinds)

    @cached_property
    def work(self) -> pl.DataFrame:
        """WORK_SCHEMA."""
        arguments = self._traces.columns.comm
        return work.work(
            self._device,
            arguments,
            self._kinds,
            self._calls,
            self.steps,
            self._attribution,
            self._traces.repairs,
            self._patterns,
        )

    def collectives(self, cover: dict[Key, Intervals]) -> pl.DataFrame:
        """COLLECTIVES_SCHEMA; `cover` is when compute runs that can hide communication, for each (rank, device)."""
        return collectives.collectives(
            self._traces.columns.comm,
            self._calls,
            self.work,
            self.steps,
            self._attribution,
            cover=cover,
            annotations=self._kinds.annotations,
            manifest=self._manifest,
            process_groups=self._traces.process_groups,
            world_size=self._traces.world_size,
            patterns=self._patterns,
        )

    @cached_property
    def allocations(self) -> pl.DataFrame:
        """ALLOCATIONS_SCHEMA."""
        return allocations.allocations(self._memory, self._blocks)

    @cached_property
    def blocks(self) -> pl.DataFrame:
        """BLOCKS_SCHEMA."""
        return self._blocks.select(list(blocks.BLOCKS_SCHEMA))

    @cached_property
    def _memory(self) -> pl.DataFrame:
        return allocations.located(self._traces.columns.memory, self._device, self._attribution, self.steps)

    @cached_property
    def _blocks(self) -> pl.DataFrame:
        return blocks.blocks(self._memory, self._kinds, self._calls, self.work, self._manifest)

    @cached_property
    def _all_kinds(self) -> Kinds:
        return kinds(self._traces.columns.events)

    @cached_property
    def _kinds(self) -> Kinds:
        """All but the device rows whose times are wrong, which would stretch whatever holds them."""
        misplaced = self._all_device.filter("is_misplaced").select(*RUN, "index")
        if misplaced.is_empty():
            return self._all_kinds
        others = self._all_kinds.others.join(misplaced, on=[*RUN, "index"], how="anti", maintain_order="left")
        return self._all_kinds._replace(others=others)

    @cached_property
    def _all_device(self) -> pl.DataFrame:
        return device_rows(self._traces.columns, self._all_kinds)

    @cached_property
    def _device(self) -> pl.DataFrame:
        return self._all_device.filter(~pl.col("is_misplaced"))

    @cached_property
    def _calls(self) -> pl.DataFrame:
        return calls.calls(self._kinds, self._traces.columns.comm)

    @cached_property
    def _attribution(self) -> Attribution:
        return Attribution(self._kinds, self.steps, self._traces.columns.frames)
