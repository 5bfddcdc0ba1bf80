"""Causes of exposed communication, with advice; and the length of each step if all that can overlap did."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from tracekit import common_columns as c
from tracekit import intervals
from tracekit.analyzers.causes.advice import CAUSES, GATHERS, advice
from tracekit.analyzers.overlap import KIND, communication
from tracekit.model.device_time import DEVICE_KEY
from tracekit.table_schema import Column, Groupings, Schema

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.intervals import Intervals
    from tracekit.model.run import Run

_CAUSE = Column("cause", pl.String, f"Why it was exposed: {', '.join(CAUSES)}.")
EXPOSURE_BY = Groupings(
    (c.RANK, c.STEP, c.LAYER, c.PHASE, KIND, _CAUSE, c.AXIS, c.DEVICE, c.GROUP, c.GROUP_SIZE, c.DTYPE),
    default=("rank", "step", "layer", "phase", "kind", "cause"),
)
EXPOSURE_SCHEMA = Schema(
    c.RANK,
    c.STEP,
    c.LAYER,
    c.PHASE,
    KIND,
    _CAUSE,
    c.EXPOSED_NS.but(meaning="Exposed time of the group; over all causes it is the exposed time of the step."),
    Column(
        "advice",
        pl.String,
        "What to try against the cause: for the part of the group that is exposed longest, with settings of the run's "
        "framework that are off.",
        "not grouped by cause",
    ),
)
IDEAL_SCHEMA = Schema(
    c.RANK,
    c.DEVICE,
    c.STEP.but(null="the trace has no step marks"),
    c.STEP_NS,
    c.EXPOSED_NS.but(meaning="Communication during which no compute ran."),
    Column(
        "hideable_ns",
        pl.Int64,
        "The smaller of the exposed communication and the compute that has no communication beside it.",
    ),
    Column("ideal_ns", pl.Int64, "Length of the step without `hideable_ns`: all that can overlap does."),
)
# Two things that begin within this time of one another on a device belong together (launch and event latency).
SLACK_NS = 20_000
# What advice depends on.
_ADVISED = ["cause", "kind", "phase", "axis"]
# What a transfer between two ranks waits for. It is given none of the collectives' causes and advice.
_WAITS = {"recv": "waits for its sender", "send": "waits for its receiver"}


def exposure(run: Run, *, by: Sequence[str] | None = None) -> pl.DataFrame:
    """Exposed time by cause (or other columns of EXPOSURE_BY), largest first within a rank and step: EXPOSURE_SCHEMA.

    Every exposed nanosecond has one collective, the one that started first of those in flight, and one cause:

    - `late rank`: the collective was still waiting for another rank (needs all ranks of its group);
    - `waits for its sender`, `waits for its receiver`: a recv or send was still waiting for its peer (needs that rank);
    - `point-to-point`: the rest of a recv or send;
    - `first use`: no compute of the step ran before it;
    - `end of step`: forward and backward are over when it begins;
    - `serialised`: issued before the collective ahead of it on its lane ended, and started when that one did;
    - `no prefetch`: a gather that started only when the compute before it had ended, and whose layer computes next;
    - `synchronous`: on a CPU, anything else that the computing thread waited for;
    - `launched late`: issued after the device had run out of compute;
    - `link`: it ran beside compute and outlasted it. And of the causes above from `first use` on, together, what is
      more than the compute of the step that has no communication beside it: no order of the step could hide that
      (where the device computed anything in the step).

    Causes add up to the exposed time of the step.

    Raises:
        UsageError: `by` names a column that exposed time cannot be grouped by.
    """
    keys = EXPOSURE_BY.keys(by, "exposure")
    pieces = _causes(run)
    first = [key for key in ("rank", "step") if key in keys]
    order = {**dict.fromkeys(first, False), "exposed_ns": True, **{key: False for key in keys if key not in first}}
    told = pl.col("advice").sort_by("exposed_ns", "kind", "phase", descending=[True, False, False]).first()
    return (
        pieces.group_by(*keys, *(name for name in _ADVISED if name not in keys))
        .agg(pl.col("exposed_ns").sum())
        .with_columns(_advice(run))
        .group_by(keys or [pl.lit(0).alias("all")])
        .agg(pl.col("exposed_ns").sum(), told if "cause" in keys else pl.lit(None, pl.String).alias("advice"))
        .filter(pl.col("exposed_ns") > 0)
        .sort(list(order), descending=list(order.values()))
        .select(*keys, "exposed_ns", "advice")
    )


def ideal(run: Run) -> pl.DataFrame:
    """Length of each step if all exposed communication that can overlap did: IDEAL_SCHEMA.

    `hideable_ns` is the smaller of the exposed communication and the compute that has no communication beside it;
    `ideal_ns` is the step without it.
    """
    return (
        _free(run)
        .with_columns(
            pl.col("exposed_comm_ns").alias("exposed_ns"),
            pl.min_horizontal("exposed_comm_ns", "free_ns").alias("hideable_ns"),
        )
        .with_columns((pl.col("step_ns") - pl.col("hideable_ns")).alias("ideal_ns"))
        .select(pl.col(name).cast(dtype) for name, dtype in IDEAL_SCHEMA.items())
    )


def _free(run: Run) -> pl.DataFrame:
    """The breakdown with `free_ns`, the compute of a step that has no communication beside it."""
    hidden = run.table("overlap", by=("rank", "device", "step")).select("rank", "device", "step", "overlapped_ns")
    free = pl.col("compute_ns") - pl.col("overlapped_ns").fill_null(0)
    return (
        run.table("breakdown")
        .join(hidden, on=["rank", "device", "step"], how="left", nulls_equal=True, maintain_order="left")
        .with_columns(pl.max_horizontal(free, pl.lit(0)).alias("free_ns"))
    )


def _advice(run: Run) -> pl.Expr:
    """The advice of a row with the columns _ADVISED."""
    struct = pl.struct(_ADVISED)
    return struct.map_elements(lambda row: advice(run.manifest, **row), return_dtype=pl.String).alias("advice")


def _causes(run: Run) -> pl.DataFrame:
    """A row for each piece of communication and cause of its exposed time, with the columns of EXPOSURE_BY."""
    cover = run.compute_cover
    compute = run.work.filter(pl.col("class") == "compute").sort("start_ns").partition_by(DEVICE_KEY, as_dict=True)
    ran = communication(run).filter(pl.col("dur_ns").is_not_null(), ~pl.col("is_further")).sort("start_ns", "index")
    parts = [
        _of_device(group, compute.get(key, run.work.clear()), cover.get(key, intervals.EMPTY), is_cpu=key[1] == "cpu")
        for key, group in ran.partition_by(DEVICE_KEY, as_dict=True, maintain_order=True).items()
    ]
    columns = [column.name for column in EXPOSURE_BY.columns]
    if not parts:
        return ran.with_columns(cause=pl.lit(None, pl.String), exposed_ns=pl.lit(0, pl.Int64)).select(
            *columns, "exposed_ns"
        )
    pieces = pl.concat(parts)
    waiting = pl.col("kind").replace_strict(_WAITS, default="late rank", return_dtype=pl.String).alias("cause")
    waited = pieces.with_columns(waiting, pl.col("waited_ns").alias("exposed_ns"))
    rest = pieces.with_columns((pl.col("exposed_ns") - pl.col("waited_ns")).alias("exposed_ns"))
    both = pl.concat([frame.select(*columns, "exposed_ns") for frame in (waited, _with_link(run, rest))])
    return both.filter(pl.col("exposed_ns") > 0)


def _of_device(sent: pl.DataFrame, compute: pl.DataFrame, busy: Intervals, *, is_cpu: bool) -> pl.DataFrame:
    """Communication of one device in time order with `exposed_ns`, the waiting in it, and the cause of the rest."""
    start, end = pl.col("start_ns"), pl.col("start_ns") + pl.col("dur_ns")
    wait = pl.when("is_collective").then(pl.col("wait_ns")).fill_null(0)
    # Time in which collectives of two steps run counts in each of the steps, as in the overlap table; a call waits at
    # its first kernel.
    sent = sent.with_columns(end_ns=end).with_columns(
        lane_end_ns=pl.col("end_ns").shift(1).over("lane"),
        own_ns=pl.max_horizontal(start, pl.col("end_ns").cum_max().shift(1).over("step")),
        waits_until_ns=pl.min_horizontal(end, start + wait),
        issued=pl.coalesce("issued_ns", start),
    )
    exposed = [_outside(sent["own_ns"], sent[until], busy) for until in ("end_ns", "waits_until_ns")]
    before = _compute_end_before(busy, sent["start_ns"])
    after = _next_layer(compute, sent["end_ns"])
    reaches = _reaches(compute)
    return (
        sent.with_columns(exposed[0].alias("exposed_ns"), exposed[1].alias("waited_ns"), before, after)
        .join(reaches, on="step", how="left", nulls_equal=True, maintain_order="left")
        .with_columns(_cause(is_cpu=is_cpu))
    )


def _outside(starts: pl.Series, ends: pl.Series, busy: Intervals) -> pl.Series:
    """Length of each interval outside `busy`; 0 for one that ends before it begins."""
    last = pl.Series(np.maximum(starts.to_numpy(), ends.to_numpy()))
    return last - starts - pl.Series(intervals.covered(starts, last, busy))


def _reaches(compute: pl.DataFrame) -> pl.DataFrame:
    """Of each step: the start of its first compute, and of its last in forward or backward (where these are known)."""
    learning = pl.col("start_ns").filter(pl.col("phase").is_in(["forward", "backward"])).max()
    any_other = pl.col("start_ns").filter(pl.col("phase") != "optimizer").max()
    return compute.group_by("step").agg(
        pl.col("start_ns").min().alias("first_ns"), pl.coalesce(learning, any_other).alias("last_ns")
    )


def _cause(*, is_cpu: bool) -> pl.Expr:
    """Cause of the exposed time of one collective, less what it waited for late ranks."""
    start, issued = pl.col("start_ns"), pl.col("issued")
    queued = (issued < pl.col("lane_end_ns")) & (start - pl.col("lane_end_ns") <= SLACK_NS)
    is_next = pl.col("next_layer").is_null() | pl.col("next_layer").eq_missing(pl.col("layer"))
    needed = pl.col("kind").is_in(GATHERS) & is_next & (pl.lit(is_cpu) | (issued < pl.col("before_ns")))
    late = issued >= pl.col("before_ns")
    return (
        pl.when(pl.col("kind").is_in(list(_WAITS)))
        .then(pl.lit("point-to-point"))
        .when((pl.col("first_ns") >= start).fill_null(value=True))
        .then(pl.lit("first use"))
        .when((pl.col("last_ns") < start).fill_null(value=True))
        .then(pl.lit("end of step"))
        .when(queued)
        .then(pl.lit("serialised"))
        .when(pl.col("before_ns").is_null())
        .then(pl.lit("link"))
        .when(needed)
        .then(pl.lit("no prefetch"))
        .when(pl.lit(is_cpu))
        .then(pl.lit("synchronous"))
        .when(late)
        .then(pl.lit("launched late"))
        .otherwise(pl.lit("link"))
        .alias("cause")
    )


def _compute_end_before(compute: Intervals, starts: pl.Series) -> pl.Series:
    """End of the compute before each start, as `before_ns`; null where compute runs then, or none ran before."""
    at = np.searchsorted(compute.starts, starts.to_numpy(), side="right") - 1
    if not compute.ends.size:
        return pl.Series("before_ns", [None] * starts.len(), pl.Int64)
    ends = pl.Series("before_ns", compute.ends[np.maximum(at, 0)])
    idle = pl.Series(at >= 0) & (ends <= starts)
    return pl.select(pl.when(idle).then(ends).alias("before_ns")).to_series()


def _next_layer(compute: pl.DataFrame, ends: pl.Series) -> pl.Series:
    """Layer of the first compute from each end on; null where it is unknown, or nothing computes any more."""
    at = np.searchsorted(compute["start_ns"].to_numpy(), ends.to_numpy(), side="left")
    padded = pl.concat([compute["layer"], pl.Series([None], dtype=pl.String)])
    return padded.gather(at).alias("next_layer")


def _with_link(run: Run, pieces: pl.DataFrame) -> pl.DataFrame:
    """The pieces, and for those that the order of the step exposed the share that no other order could hide, as `link`.

    Of a device and step that share is the sum of such pieces less the compute that has no communication beside it. It
    is taken from each in proportion, in whole ns that add up. A device that computes nothing has nothing to compare.
    """
    key = ["rank", "device", "step"]
    free = _free(run).filter(pl.col("compute_ns") > 0).select(*key, "free_ns")
    ordered = ~pl.col("cause").is_in(["link", "point-to-point"])
    mine = (
        pieces.filter(ordered)
        .join(free, on=key, how="left", nulls_equal=True, maintain_order="left")
        .with_columns(pl.col("exposed_ns").sum().over(key).alias("all_ns"))
        .with_columns(pl.min_horizontal("free_ns", "all_ns").alias("kept_ns"))
        .with_columns(_share(pl.col("exposed_ns").cum_sum().over(key)).alias("kept_until"))
        .with_columns((pl.col("kept_until") - pl.col("kept_until").shift(1, fill_value=0).over(key)).alias("kept"))
    )
    beyond = mine.with_columns(
        pl.lit("link").alias("cause"), (pl.col("exposed_ns") - pl.col("kept")).alias("exposed_ns")
    )
    within = mine.with_columns(pl.col("kept").alias("exposed_ns"))
    columns = pieces.columns
    return pl.concat([pieces.filter(~ordered), within.select(columns), beyond.select(columns)])


def _share(done: pl.Expr) -> pl.Expr:
    """The part of `kept_ns` that falls to the first `done` ns of `all_ns`, rounded down: exact in 128 bits."""
    whole = done.cast(pl.Int128) * pl.col("kept_ns").cast(pl.Int128) // pl.col("all_ns").cast(pl.Int128)
    return pl.when(pl.col("all_ns") > 0).then(whole).otherwise(0).cast(pl.Int64)
