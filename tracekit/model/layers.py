"""Which layer and which phase of the step a moment of a rank's CPU time belongs to.

Every source is turned into *ranges* (start, end, layer or null, phase or null); at any moment the innermost range, the
one that started last, decides. Sources: FSDP2's own annotations, the recorder's ranges, and autograd's link between a
forward operator and its backward (sequence numbers), in that order.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

import polars as pl

from tracekit.model import names
from tracekit.model.steps import step_at

RANGES_SCHEMA: dict[str, pl.DataType] = {
    "rank": pl.Int32(),
    "cycle": pl.Int32(),
    "start_ns": pl.Int64(),
    "end_ns": pl.Int64(),
    "layer": pl.String(),
    "phase": pl.String(),
}
_SEGMENTS_SCHEMA: dict[str, pl.DataType] = {
    "rank": pl.Int32(),
    "cycle": pl.Int32(),
    "from_ns": pl.Int64(),
    "value": pl.String(),
}
_RUN = ["rank", "cycle"]
# FSDP2's annotations by the phase that they belong to; `all_gather` runs in both and takes the phase around it.
_FSDP_FORWARD = ("root_pre_forward", "pre_forward", "post_forward", "cast_forward_inputs")


class Attribution:
    """Looks up layer and phase of moments; built once from the events of a run."""

    def __init__(self, events: pl.DataFrame, steps: pl.DataFrame) -> None:
        """Collect the ranges of all ranks and cut time into segments with one answer each."""
        named = pl.concat([_fsdp_ranges(events), _recorder_ranges(events)])
        phases = pl.concat([_autograd_phases(events, steps), named.filter(pl.col("phase").is_not_null())])
        by_annotation = _segments(named.filter(pl.col("layer").is_not_null()), "layer")
        backward = _backward_ranges(events, by_annotation, named)
        layers = pl.concat([named, backward]).filter(pl.col("layer").is_not_null())
        self._layers = _segments(layers, "layer")
        self._phases = _segments(phases, "phase")

    def locate(self, table: pl.DataFrame, time: str) -> pl.DataFrame:
        """Return `table` with `layer` (null: unknown) and `phase` at the moment in column `time`."""
        located = _look_up(_look_up(table, self._layers, time, "layer"), self._phases, time, "phase")
        return located.with_columns(pl.col("phase").fill_null("other"))


def _ranges(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.select(list(RANGES_SCHEMA)).cast(RANGES_SCHEMA)  # type: ignore[arg-type]


def _spans(events: pl.DataFrame) -> pl.DataFrame:
    return events.filter(pl.col("ph") == "X", pl.col("dur_ns") >= 0).with_columns(
        pl.col("ts_ns").alias("start_ns"), (pl.col("ts_ns") + pl.col("dur_ns")).alias("end_ns")
    )


def _fsdp_ranges(events: pl.DataFrame) -> pl.DataFrame:
    """FSDP2's annotations, and the stretches between them: a unit's forward and its backward."""
    groups = pl.col("name").str.extract_groups(names.FSDP_ANNOTATION)
    marks = (
        _spans(events.filter(pl.col("cat") == "user_annotation", pl.col("name").str.starts_with("FSDP::")))
        .with_columns(groups.alias("g"))
        .with_columns(
            pl.col("g").struct.field("1").alias("mark"),
            pl.coalesce(pl.col("g").struct.field("2"), pl.col("g").struct.field("3"), pl.lit("")).alias("layer"),
        )
        .sort("start_ns")
    )
    backward = pl.col("mark").str.contains("backward")
    own = marks.with_columns(
        pl.when(backward)
        .then(pl.lit("backward"))
        .when(pl.col("mark").is_in(_FSDP_FORWARD))
        .then(pl.lit("forward"))
        .alias("phase"),
        # A cast or the root's bookkeeping names no unit: its empty name does not mean the root unit.
        pl.when(~pl.col("mark").is_in(["cast_forward_inputs", "root_post_backward_callback"]))
        .then("layer")
        .alias("layer"),
    )
    stretches = [
        _between(marks, "pre_forward", ["post_forward"], "forward"),
        _between(marks, "pre_backward", ["post_backward_reduce", "post_backward_reshard"], "backward"),
    ]
    return pl.concat([_ranges(own), *stretches])


def _between(marks: pl.DataFrame, first: str, last: list[str], phase: str) -> pl.DataFrame:
    """Ranges of a unit from each `first` mark to the end of the latest `last` mark before its next `first`."""
    unit = [*_RUN, "layer"]
    starts = marks.filter(pl.col("mark") == first).select(*unit, "start_ns").sort("start_ns").with_row_index("opened")
    ends = (
        marks.filter(pl.col("mark").is_in(last))
        .select(*unit, "start_ns", pl.col("end_ns").alias("end_ns"))
        .sort("start_ns")
    )
    return _ranges(
        ends.join_asof(starts, on="start_ns", by=unit, strategy="backward", coalesce=False, check_sortedness=False)
        .drop_nulls("opened")
        .group_by(*unit, "opened")
        .agg(pl.col("start_ns_right").first().alias("start_ns"), pl.col("end_ns").max())
        .with_columns(pl.lit(phase).alias("phase"))
    )


def _recorder_ranges(events: pl.DataFrame) -> pl.DataFrame:
    """The ranges that tracekit's recorder leaves where the strategy has no annotations of its own."""
    marks = _spans(events.filter(pl.col("cat") == "user_annotation", pl.col("name").str.starts_with("tracekit::")))
    is_forward = pl.col("name").str.contains(names.RECORDER_FORWARD)
    layer = pl.when(is_forward).then(pl.col("name").str.extract(names.RECORDER_FORWARD, 1).fill_null(""))
    phase = pl.col("name").str.extract(names.RECORDER_PHASE, 1)
    return _ranges(marks.with_columns(layer.alias("layer"), phase.alias("phase")))


def _backward_ops(events: pl.DataFrame) -> pl.DataFrame:
    return _spans(events.filter(pl.col("name").str.starts_with(names.BACKWARD_OP)))


def _backward_ranges(events: pl.DataFrame, layers: pl.DataFrame, named: pl.DataFrame) -> pl.DataFrame:
    """Backward operators with the layer of their forward, by sequence number, for runs without FSDP2's own marks."""
    marked = named.filter(pl.col("phase") == "backward", pl.col("layer").is_not_null()).select(_RUN).unique()
    ops = events.filter(pl.col("ph") == "X", pl.col("sequence") >= 0).join(marked, on=_RUN, how="anti")
    is_backward = pl.col("name").str.starts_with("autograd::")
    forward = _look_up(ops.filter(~is_backward), layers, "ts_ns", "layer").drop_nulls("layer")
    # Operators that make no graph node carry the number of the next one that does: the last to carry it made it.
    owner = forward.sort("ts_ns").group_by(*_RUN, "sequence").agg(pl.col("layer").last())
    backward = _backward_ops(ops).join(owner, on=[*_RUN, "sequence"], how="inner")
    return _ranges(backward.with_columns(pl.lit("backward").alias("phase")))


def _autograd_phases(events: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Phases from what autograd and the optimizer leave in any trace, for ranks without the recorder's phase ranges.

    Inside a step: forward up to the first backward operator, backward up to the last one before the next forward or the
    optimizer, optimizer from its mark to the end of the step, other in between.
    """
    told = events.filter(pl.col("name").str.contains(names.RECORDER_BACKWARD)).select(_RUN).unique()
    forward = pl.col("cat").eq("fwdbwd") & pl.col("ph").eq("s")
    backward = pl.col("name").str.starts_with(names.BACKWARD_OP) & pl.col("ph").eq("X")
    optimizer = pl.col("name").str.contains(names.OPTIMIZER_STEP) & pl.col("cat").eq("user_annotation")
    marks = (
        events.with_columns(
            pl.when(forward)
            .then(pl.lit("forward"))
            .when(backward)
            .then(pl.lit("backward"))
            .when(optimizer)
            .then(pl.lit("optimizer"))
            .alias("phase")
        )
        .filter(pl.col("phase").is_not_null())
        .join(told, on=_RUN, how="anti")
        .select(
            *_RUN,
            pl.col("ts_ns").alias("start_ns"),
            (pl.col("ts_ns") + pl.col("dur_ns").fill_null(0)).alias("mark_end_ns"),
            "phase",
        )
    )
    window = steps.select(*_RUN, "step", pl.col("start_ns").alias("step_start"), pl.col("end_ns").alias("step_end"))
    runs = (
        step_at(marks, steps, "start_ns")
        .sort(*_RUN, "start_ns")
        .with_columns(pl.struct(*_RUN, "step", "phase").rle_id().alias("stretch"))
        .group_by("stretch", maintain_order=True)
        .agg(pl.col(*_RUN, "step", "phase").first(), pl.col("start_ns").min(), pl.col("mark_end_ns").max())
        .join(window, on=[*_RUN, "step"], how="inner", nulls_equal=True)
    )
    return _ranges(_phase_windows(runs))


def _phase_windows(runs: pl.DataFrame) -> pl.DataFrame:
    """Stretch each run of marks of one phase over the time that it stands for."""
    step = [*_RUN, "step"]
    runs = runs.sort(*_RUN, "start_ns")
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


def _segments(ranges: pl.DataFrame, value: str) -> pl.DataFrame:
    """Cut the time of each rank into stretches with one answer: the value of the range that started last."""
    rows: list[tuple[int, int, int, str | None]] = []
    for (rank, cycle), group in ranges.group_by(_RUN, maintain_order=True):
        spans = (
            group.sort("start_ns", "end_ns", descending=[False, True]).select("start_ns", "end_ns", value).iter_rows()
        )
        rows.extend((rank, cycle, start, answer) for start, answer in _innermost(spans))
    return pl.DataFrame(rows, schema=_SEGMENTS_SCHEMA, orient="row").sort("from_ns")


def _innermost(spans: Iterable[tuple[int, int, str]]) -> list[tuple[int, str | None]]:
    """Return (time, value) at each change of the innermost open span; spans sorted by start, longer ones first."""
    changes: dict[int, str | None] = {}
    open_spans: list[tuple[int, int, str]] = []  # (-start, end, value): the heap's head is the innermost

    def close_until(time: int | None) -> None:
        while open_spans and (time is None or open_spans[0][1] <= time):
            ended = heapq.heappop(open_spans)[1]
            while open_spans and open_spans[0][1] <= ended:
                heapq.heappop(open_spans)
            changes[ended] = open_spans[0][2] if open_spans else None

    for start, end, value in spans:
        if end <= start:
            continue
        close_until(start)
        heapq.heappush(open_spans, (-start, end, value))
        changes[start] = open_spans[0][2]
    close_until(None)
    return list(changes.items())


def _look_up(table: pl.DataFrame, segments: pl.DataFrame, time: str, into: str) -> pl.DataFrame:
    order = "__order"
    return (
        table.drop(into, strict=False)
        .with_row_index(order)
        .sort(time)
        .join_asof(segments, left_on=time, right_on="from_ns", by=_RUN, strategy="backward", check_sortedness=False)
        .sort(order)
        .rename({"value": into})
        .drop(order, "from_ns")
    )
