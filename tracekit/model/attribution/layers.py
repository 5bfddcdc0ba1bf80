"""The layer and the phase of the step that a moment of a rank's CPU time belongs to.

Every source is turned into *ranges* (see ranges.py); at any moment the innermost, the one that started last, decides.
Sources of layers, in this order: FSDP2's own annotations, the recorder's ranges, nn.Module frames where stacks were
recorded, and autograd's link between a forward operator and its backward (sequence numbers) for what has no own name;
around all of these, the marks of a pipeline's schedule.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import TypeVar

import polars as pl

from tracekit.model import names
from tracekit.model.as_of import latest
from tracekit.model.attribution.ranges import (
    NO_RANGES,
    ddp_ranges,
    fsdp_ranges,
    module_ranges,
    pipeline_ranges,
    ranges,
    recorder_ranges,
    spans,
)
from tracekit.model.event_kinds import Kinds
from tracekit.model.recordings import RUN, without
from tracekit.model.steps import step_at

T = TypeVar("T")

_SEGMENTS_SCHEMA: dict[str, pl.DataType] = {
    "rank": pl.Int32(),
    "cycle": pl.Int32(),
    "from_ns": pl.Int64(),
    "value": pl.String(),
    "source": pl.String(),
}


class Attribution:
    """Looks up layer and phase of moments; built once from the events of a run."""

    def __init__(self, kinds: Kinds, steps: pl.DataFrame, frames: pl.DataFrame) -> None:
        """Collect the ranges of all ranks and cut time into segments with one answer each; `frames` are Python's."""
        annotated = pl.concat([fsdp_ranges(kinds.annotations), recorder_ranges(kinds.annotations)])
        # Modules are a guess at what a layer is: only for ranks where no annotation names one.
        named = pl.concat([annotated, module_ranges(without(frames, annotated.drop_nulls("layer")))])
        # A stage of a pipeline is what a moment belongs to where nothing inside it tells of a layer.
        stages = pipeline_ranges(kinds.annotations)
        told = pl.concat([named, stages])
        around = [_autograd_phases(kinds, steps), ddp_ranges(kinds.annotations)]
        phases = pl.concat([*around, told.filter(pl.col("phase").is_not_null())])
        layered = told.drop_nulls("layer")
        self._layers = _segments(layered, "layer")
        backward = _backward_ranges(kinds.operators, self._layers, named)
        if backward.height:
            self._layers = _segments(pl.concat([layered, backward]), "layer")
        self._phases = _segments(phases, "phase")

    def locate(self, table: pl.DataFrame, time: str) -> pl.DataFrame:
        """Return `table` with `layer` (null: unknown), `layer_from` and `phase` at the moment in column `time`.

        Of an unknown moment all of them are null.
        """
        layer, phase = (latest(table, time, segments, "from_ns", RUN) for segments in (self._layers, self._phases))
        return table.with_columns(
            layer["value"].alias("layer"),
            layer["source"].alias("layer_from"),
            pl.when(table[time].is_not_null()).then(phase["value"].fill_null("other")).alias("phase"),
        )


def _backward_ranges(operators: pl.DataFrame, layers: pl.DataFrame, named: pl.DataFrame) -> pl.DataFrame:
    """Return backward operators with the layer of their forward, by sequence number, where FSDP2 has no marks."""
    ops = without(operators, named.filter(pl.col("phase") == "backward", pl.col("layer").is_not_null()))
    ops = ops.filter(pl.col("ph") == "X", pl.col("sequence") >= 0)
    backward = spans(ops.filter(pl.col("name").str.starts_with(names.BACKWARD_OP)))
    if layers.is_empty() or backward.is_empty():
        return NO_RANGES
    forward = ops.filter(~pl.col("name").str.starts_with("autograd::"))
    forward = forward.with_columns(latest(forward, "ts_ns", layers, "from_ns", RUN)["value"].alias("layer"))
    # Operators that make no graph node carry the number of the next one that does: the last to carry it made it.
    owner = forward.drop_nulls("layer").sort("ts_ns").group_by(*RUN, "sequence").agg(pl.col("layer").last())
    backward = backward.join(owner, on=[*RUN, "sequence"], how="inner")
    return ranges(backward.with_columns(pl.lit("backward").alias("phase")), "autograd")


def _autograd_phases(kinds: Kinds, steps: pl.DataFrame) -> pl.DataFrame:
    """Return phases from events of autograd and the optimizer, for ranks without the recorder's phase ranges.

    Inside a step: forward up to the first backward operator, backward up to the last one before the next forward or the
    optimizer, optimizer from its mark to the end of the step, other in between.
    """
    name = pl.col("name")
    found = {
        "forward": kinds.links.filter(pl.col("ph") == "s"),
        "backward": kinds.operators.filter(name.str.starts_with(names.BACKWARD_OP), pl.col("ph") == "X"),
        "optimizer": kinds.annotations.filter(name.str.contains(names.OPTIMIZER_STEP)),
    }
    recorded = kinds.annotations.filter(name == names.RECORDER_BACKWARD)
    marks = without(
        pl.concat([part.with_columns(pl.lit(phase).alias("phase")) for phase, part in found.items()]), recorded
    )
    if marks.is_empty():
        return NO_RANGES
    end = pl.col("ts_ns") + pl.col("dur_ns").fill_null(0)
    marks = marks.select(*RUN, pl.col("ts_ns").alias("start_ns"), end.alias("mark_end_ns"), "phase")
    window = steps.select(*RUN, "step", pl.col("start_ns").alias("step_start"), pl.col("end_ns").alias("step_end"))
    runs = (
        step_at(marks, steps, "start_ns")
        .sort(*RUN, "start_ns")
        .with_columns(pl.struct(*RUN, "step", "phase").rle_id().alias("stretch"))
        .group_by("stretch", maintain_order=True)
        .agg(pl.col(*RUN, "step", "phase").first(), pl.col("start_ns").min(), pl.col("mark_end_ns").max())
        .join(window, on=[*RUN, "step"], how="inner", nulls_equal=True)
    )
    return ranges(_phase_windows(runs), "autograd")


def _phase_windows(runs: pl.DataFrame) -> pl.DataFrame:
    """Return the window of each run of marks of one phase."""
    step = [*RUN, "step"]
    runs = runs.sort(*RUN, "start_ns")
    before = pl.col("mark_end_ns").shift(1).over(step)
    after = pl.col("start_ns").shift(-1).over(step)
    phase = pl.col("phase")
    start = pl.when(phase == "forward").then(pl.coalesce(before, "step_start")).otherwise("start_ns")
    end = (
        pl.when(phase == "forward")
        .then(pl.coalesce(after, "mark_end_ns"))
        .when(phase == "backward")
        .then("mark_end_ns")
        .otherwise(pl.coalesce(after, "step_end"))
    )
    return runs.with_columns(start.alias("start_ns"), end.alias("end_ns"), pl.lit(None, pl.String).alias("layer"))


def _segments(table: pl.DataFrame, value: str) -> pl.DataFrame:
    """Return the time of each rank cut into segments: value and source of the range that started last."""
    rows: list[tuple[int, int, int, str | None, str | None]] = []
    if table.is_empty():
        return pl.DataFrame(schema=_SEGMENTS_SCHEMA)
    for (rank, cycle), group in table.group_by(RUN, maintain_order=True):
        ordered = group.sort("start_ns", "end_ns", descending=[False, True])
        found = (
            (start, end, (answer, source))
            for start, end, answer, source in ordered.select("start_ns", "end_ns", value, "source").iter_rows()
        )
        for start, answer in _innermost(found):
            named, source = answer or (None, None)
            rows.append((rank, cycle, start, named, source))
    return pl.DataFrame(rows, schema=_SEGMENTS_SCHEMA, orient="row").sort("from_ns")


def _innermost(found: Iterable[tuple[int, int, T]]) -> list[tuple[int, T | None]]:
    """Return (time, value) at each change of the innermost open span; spans sorted by start, longer ones first."""
    changes: dict[int, T | None] = {}
    open_spans: list[tuple[int, int, T]] = []  # (-start, end, value): the heap's head is the innermost

    def close_until(time: int | None) -> None:
        while open_spans and (time is None or open_spans[0][1] <= time):
            ended = heapq.heappop(open_spans)[1]
            while open_spans and open_spans[0][1] <= ended:
                heapq.heappop(open_spans)
            changes[ended] = open_spans[0][2] if open_spans else None

    for start, end, value in found:
        if end <= start:
            continue
        close_until(start)
        heapq.heappush(open_spans, (-start, end, value))
        changes[start] = open_spans[0][2]
    close_until(None)
    return list(changes.items())
