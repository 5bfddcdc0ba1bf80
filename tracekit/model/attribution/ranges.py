"""Ranges of a rank's CPU time that name a layer, a phase or both, from the annotations of different recorders."""

from __future__ import annotations

import polars as pl

from tracekit.model import names
from tracekit.model.as_of import latest
from tracekit.model.event_kinds import timed
from tracekit.model.pipeline_marks import pipeline_marks
from tracekit.model.recordings import RUN

# `layer` and `phase` null where the range names none; `source`: FSDP2, recorder, DDP, nn.Module, autograd, pipeline.
RANGES_SCHEMA: dict[str, pl.DataType] = {
    "rank": pl.Int32(),
    "cycle": pl.Int32(),
    "start_ns": pl.Int64(),
    "end_ns": pl.Int64(),
    "layer": pl.String(),
    "phase": pl.String(),
    "source": pl.String(),
}
NO_RANGES = pl.DataFrame(schema=RANGES_SCHEMA)
# FSDP2's annotations by the phase that they belong to; `all_gather` runs in both and takes the phase around it.
_FSDP_FORWARD = ("root_pre_forward", "pre_forward", "post_forward", "cast_forward_inputs")


def ranges(frame: pl.DataFrame, source: str) -> pl.DataFrame:
    """Return the frame as RANGES_SCHEMA with this source; rows without start or end are left out."""
    sourced = frame.with_columns(pl.lit(source).alias("source")).drop_nulls(["start_ns", "end_ns"])
    return sourced.select(list(RANGES_SCHEMA)).cast(RANGES_SCHEMA)  # type: ignore[arg-type]


def spans(events: pl.DataFrame) -> pl.DataFrame:
    """Return the complete events with `start_ns` and `end_ns`."""
    return _with_ends(timed(events))


def _with_ends(events: pl.DataFrame) -> pl.DataFrame:
    start = pl.col("ts_ns")
    return events.with_columns(start.alias("start_ns"), (start + pl.col("dur_ns")).alias("end_ns"))


def fsdp_ranges(annotations: pl.DataFrame) -> pl.DataFrame:
    """Return ranges of FSDP2's annotations, and of the time between them: a unit's forward and its backward."""
    found = spans(annotations.filter(pl.col("name").str.starts_with("FSDP::")))
    if found.is_empty():
        return NO_RANGES
    groups = pl.col("name").str.extract_groups(names.FSDP_ANNOTATION)
    marks = (
        found.with_columns(groups.alias("g"))
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
        # A cast or the root's bookkeeping names no unit: its missing name does not mean the root unit.
        pl.when(~pl.col("mark").is_in(["cast_forward_inputs", "root_post_backward_callback"]))
        .then("layer")
        .alias("layer"),
    )
    stretches = [
        _between(marks, "pre_forward", ["post_forward"], "forward"),
        _between(marks, "pre_backward", ["post_backward_reduce", "post_backward_reshard"], "backward"),
    ]
    return pl.concat([ranges(own, "FSDP2"), *stretches])


def _between(marks: pl.DataFrame, first: str, last: list[str], phase: str) -> pl.DataFrame:
    """Return ranges of a unit from each `first` mark to the end of the latest `last` mark before its next `first`."""
    unit = [*RUN, "layer"]
    starts = marks.filter(pl.col("mark") == first).select(*unit, "start_ns").sort("start_ns").with_row_index("opened")
    ends = marks.filter(pl.col("mark").is_in(last)).select(*unit, "start_ns", "end_ns")
    opening = latest(ends, "start_ns", starts, "start_ns", unit)
    return ranges(
        ends.with_columns(opening["opened"], opening["start_ns"])
        .drop_nulls("opened")
        .group_by(*unit, "opened")
        .agg(pl.col("start_ns").first(), pl.col("end_ns").max())
        .with_columns(pl.lit(phase).alias("phase")),
        "FSDP2",
    )


def recorder_ranges(annotations: pl.DataFrame) -> pl.DataFrame:
    """Return the ranges that tracekit's recorder annotates where the strategy has no annotations of its own."""
    marks = spans(annotations.filter(pl.col("name").str.starts_with("tracekit::")))
    if marks.is_empty():
        return NO_RANGES
    is_forward = pl.col("name").str.contains(names.RECORDER_FORWARD)
    layer = pl.when(is_forward).then(pl.col("name").str.extract(names.RECORDER_FORWARD, 1).fill_null(""))
    phase = pl.col("name").str.extract(names.RECORDER_PHASE, 1)
    return ranges(marks.with_columns(layer.alias("layer"), phase.alias("phase")), "recorder")


def pipeline_ranges(annotations: pl.DataFrame) -> pl.DataFrame:
    """Return the marks of a pipeline's schedule: phases, and "stage 1" as layer where the mark names its stage."""
    marks = pipeline_marks(annotations)
    if marks.is_empty():
        return NO_RANGES
    return ranges(marks.with_columns(pl.format("stage {}", "stage").alias("layer")), "pipeline")


def ddp_ranges(annotations: pl.DataFrame) -> pl.DataFrame:
    """Return the forwards of DDP, which send buffers before the model's own begins; they name no layer."""
    marks = spans(annotations.filter(pl.col("name") == names.DDP_FORWARD))
    forward = pl.lit("forward").alias("phase")
    return ranges(marks.with_columns(pl.lit(None, pl.String).alias("layer"), forward), "DDP")


def module_ranges(frames: pl.DataFrame) -> pl.DataFrame:
    """Return calls of repeating modules: frames "nn.Module: Name_3", the outermost of a class with several numbers.

    That is the block of a transformer; a model without repeating modules has no layers to distinguish.
    """
    frames = frames.filter(pl.col("name").str.starts_with(names.MODULE_FRAME_PREFIX), pl.col("dur_ns") >= 0)
    frames = _with_ends(frames.filter(pl.col("name").str.contains(names.MODULE_FRAME)))
    if frames.is_empty():
        return NO_RANGES
    frames = frames.with_columns(
        pl.col("name").str.extract(names.MODULE_FRAME, 1).alias("class"),
        pl.col("name").str.strip_prefix(names.MODULE_FRAME_PREFIX).alias("layer"),
    )
    repeating = pl.col("layer").n_unique().over(*RUN, "class") > 1
    frames = frames.filter(repeating).sort(*RUN, "tid", "start_ns", "end_ns", descending=[False] * 4 + [True])
    reach = pl.col("end_ns").cum_max().shift(1).over(*RUN, "tid")
    outermost = frames.filter(reach.is_null() | (pl.col("start_ns") >= reach))
    return ranges(outermost.with_columns(pl.lit(None, pl.String).alias("phase")), "nn.Module")
