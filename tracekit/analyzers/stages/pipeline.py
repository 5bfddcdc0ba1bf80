"""Time of each stage of a pipeline by micro-batch: busy, transferring, and the bubble, of which some is waiting."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from tracekit import common_columns as c
from tracekit import intervals
from tracekit.analyzers.breakdown import on_device, step_windows
from tracekit.model.device_time import DEVICE_KEY
from tracekit.model.pipeline_marks import pipeline_marks, stages
from tracekit.table_schema import Column, Schema

if TYPE_CHECKING:
    from tracekit.model.run import Run

_UNMARKED = "the trace does not tell (no mark of the schedule), or it lies outside of all micro-batches"
PIPELINE_SCHEMA = Schema(
    c.RANK,
    c.DEVICE,
    Column(
        "stage",
        pl.Int64,
        "Stage of the pipeline, from 0: by the schedule's marks (`PP:1F0`), else by who sends to whom first.",
        "the ranks do not form one line, a peer's trace is missing, or the rank has several stages and this is of none",
    ),
    c.STEP.but(
        meaning="Optimizer step, by the number of its mark. Time counts where it passed, as in `breakdown`.",
        null="the trace has no step marks",
    ),
    Column(
        "micro_batch",
        pl.Int64,
        "Micro-batch, from 0, by the marks of torch.distributed.pipelining (`Forward 0`, `Backward 0`, `PP:0F0`).",
        _UNMARKED,
    ),
    Column("phase", pl.String, "Part of the micro-batch: forward or backward.", _UNMARKED),
    Column(
        "busy_ns",
        pl.Int64,
        "Time during which the device computed, copied or took part in collectives; of work at the same time, what "
        "began first counts.",
    ),
    Column(
        "transfer_ns",
        pl.Int64,
        "Exposed time of sends and recvs less `wait_ns`; what waits for an unknown peer counts here.",
    ),
    Column(
        "wait_ns",
        pl.Int64,
        "The part of the bubble that a send or recv spent waiting for its peer.",
        "no send or recv of the step is known to have met its peer",
    ),
    Column(
        "bubble_ns",
        pl.Int64,
        "Idle and waiting time; idle time counts for the micro-batch whose work comes next. The rows of a device and "
        "step, busy + transfer + bubble, add up to the step's length in `breakdown` to the nanosecond.",
    ),
)
_KEY = ["stage", "micro_batch", "phase"]


def pipeline(run: Run) -> pl.DataFrame:
    """Time of each device and step by micro-batch and phase, in ns: PIPELINE_SCHEMA.

    Empty where nothing is sent from one rank to another: that is no pipeline. Work counts for the micro-batch within
    whose mark it was launched, on whichever thread.
    """
    sent = run.collectives.filter(pl.col("kind").is_in(["send", "recv"]), pl.col("dur_ns") > 0)
    if sent.is_empty():
        return PIPELINE_SCHEMA.to_frame()
    marks = pipeline_marks(run.events)
    work = on_device(run.work).filter(pl.col("dur_ns") > 0)
    busy = work.filter(pl.col("class").is_in(["compute", "comm", "copy"])).join(
        sent, on=["rank", "cycle", "device", "lane", "start_ns", "dur_ns"], how="anti"
    )
    pieces = pl.concat(
        [
            _pieces(busy.with_columns(pl.lit(None, pl.Int64).alias("wait_ns"), is_busy=True)),
            _pieces(sent.with_columns(pl.col("issued_ns").alias("launched_ns"), is_busy=False)),
        ]
    )
    pieces = _with_marks(pieces, marks)
    of_device = pieces.partition_by(DEVICE_KEY, as_dict=True)
    windows = step_windows(run, on_device(run.work))
    rows = [
        _of_step(of_device.get((window["rank"], window["device"]), pieces.clear()), window)
        for window in windows.iter_rows(named=True)
    ]
    found = stages(marks, run.collectives)
    stage = pl.coalesce("stage", pl.col("rank").replace_strict(found, default=None, return_dtype=pl.Int64))
    return (
        pl.concat(rows)
        .with_columns(stage.alias("stage"))
        .select(pl.col(name).cast(dtype) for name, dtype in PIPELINE_SCHEMA.items())
        .sort("rank", "device", "step", "micro_batch", "phase", descending=[False] * 4 + [True], nulls_last=True)
    )


def is_pipeline(run: Run, table: pl.DataFrame) -> bool:
    """Whether rows of PIPELINE_SCHEMA are of a pipeline and not of some other sends.

    They are where a micro-batch is marked, or where ranks with stages send both ways: activations and gradients.
    """
    return bool(table["micro_batch"].count()) or (bool(table["stage"].count()) and _both_ways(run))


def _both_ways(run: Run) -> bool:
    """Whether some rank sends to another that also sends to it: of one way alone, no training is made."""
    met = run.collectives.filter(pl.col("matched_by") == "peer", pl.col("kind") == "send")
    pairs = met.join(
        run.collectives.filter(pl.col("kind") == "recv").select("match", pl.col("rank").alias("to")), on="match"
    )
    sent = set(pairs.select("rank", "to").iter_rows())
    return any((to, rank) in sent for rank, to in sent)


def _pieces(spans: pl.DataFrame) -> pl.DataFrame:
    """The spans without what one that began earlier on the device has already: own_ns to end_ns of each."""
    end = pl.col("start_ns") + pl.col("dur_ns")
    return (
        spans.sort(*DEVICE_KEY, "start_ns")
        .with_columns(end.alias("end_ns"), (pl.col("start_ns") + pl.col("wait_ns")).alias("met_ns"))
        .with_columns(pl.col("end_ns").cum_max().shift(1).over(DEVICE_KEY).alias("reach"))
        .with_columns(pl.max_horizontal("start_ns", "reach").alias("own_ns"))
        .filter(pl.col("end_ns") > pl.col("own_ns"))
        .select("rank", "cycle", "device", "launched_ns", "own_ns", "end_ns", "met_ns", "is_busy")
    )


def _with_marks(pieces: pl.DataFrame, marks: pl.DataFrame) -> pl.DataFrame:
    """The pieces by start, each with stage, micro_batch and phase of the mark that it was launched within."""
    recording = ["rank", "cycle"]
    of_marks = marks.rename({"start_ns": "from_ns", "end_ns": "to_ns"}).sort("from_ns")
    joined = (
        pieces.with_columns(pl.coalesce("launched_ns", "own_ns").alias("at_ns"))
        .sort("at_ns")
        .join_asof(of_marks, left_on="at_ns", right_on="from_ns", by=recording, check_sortedness=False)
    )
    inside = pl.col("at_ns") < pl.col("to_ns")
    return joined.with_columns(pl.when(inside).then(name).alias(name) for name in _KEY).sort("own_ns")


def _of_step(pieces: pl.DataFrame, window: dict[str, int]) -> pl.DataFrame:
    """The rows of one device and step; `pieces` are those of the device."""
    start, end = window["start_ns"], max(window["start_ns"], window["end_ns"])
    mine = pieces.filter(pl.col("own_ns") < end, pl.col("end_ns") > start).with_columns(
        pl.col("own_ns", "end_ns", "met_ns").clip(start, end)
    )
    is_busy = mine["is_busy"].to_numpy()
    begins, ends = mine["own_ns"].to_numpy(), mine["end_ns"].to_numpy()
    met = mine.select(pl.coalesce("met_ns", "own_ns").clip("own_ns", "end_ns")).to_series().to_numpy()
    busy = intervals.union(begins[is_busy], ends[is_busy])
    length, waiting = ends - begins, met - begins
    free = np.where(is_busy, 0, length - intervals.covered(begins, ends, busy))
    wait = np.where(is_busy, 0, waiting - intervals.covered(begins, met, busy))
    gaps = intervals.subtract(
        intervals.union([start], [end]), intervals.union(begins, ends) if begins.size else intervals.EMPTY
    )
    next_one = pl.Series(np.searchsorted(begins, gaps.ends, side="left"))
    keys = pl.concat([mine.select(_KEY), mine.select(_KEY).clear(1)])
    nothing = pl.lit(0, pl.Int64)
    idle = keys[next_one].with_columns(
        nothing.alias("busy_ns"),
        nothing.alias("free_ns"),
        nothing.alias("wait_ns"),
        pl.Series("idle_ns", gaps.ends - gaps.starts, pl.Int64),
    )
    spent = mine.select(_KEY).with_columns(
        pl.Series("busy_ns", np.where(is_busy, length, 0), pl.Int64),
        pl.Series("free_ns", free, pl.Int64),
        pl.Series("wait_ns", wait, pl.Int64),
        nothing.alias("idle_ns"),
    )
    sums = pl.concat([spent, idle]).group_by(_KEY).agg(pl.all().sum())
    knows = mine["met_ns"].count() > 0
    return sums.select(
        *_KEY,
        "busy_ns",
        (pl.col("free_ns") - pl.col("wait_ns")).alias("transfer_ns"),
        (pl.col("wait_ns") if knows else pl.lit(None, pl.Int64)).alias("wait_ns"),
        (pl.col("wait_ns") + pl.col("idle_ns")).alias("bubble_ns"),
        *[pl.lit(window[name]).alias(name) for name in ("rank", "device", "step")],
    )
