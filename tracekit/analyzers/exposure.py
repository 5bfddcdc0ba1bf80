"""Causes of exposed communication, with advice; and the length of each step if all that can overlap did."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl

from tracekit import common_columns as c
from tracekit import intervals
from tracekit.analyzers.overlap import KIND, communication
from tracekit.model.device_time import DEVICE_KEY
from tracekit.table_schema import Column, Groupings, Schema

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from tracekit.intervals import Intervals
    from tracekit.model.run import Run

# What to try against each cause, by its name in torch or DeepSpeed.
ADVICE = {
    "late rank": "another rank came later: look at that rank's data loading, its clock speed or an uneven batch",
    "waits for its sender": "the rank that sends had nothing to send yet: more micro-batches, an interleaved schedule, "
    "stages of equal work",
    "waits for its receiver": "the rank that receives was not there yet: post its receives earlier, "
    "stages of equal work",
    "point-to-point": "the transfer itself, or a wait for a peer whose part is not known: batched or earlier sends and "
    "receives, more micro-batches",
    "first use": "nothing ran before it to hide under: a smaller first unit, or gather it in the step before",
    "end of step": "nothing is left to hide it under: a smaller last bucket or unit, or overlap it with the next step",
    "serialised": "it waited behind another collective on its lane: fewer, larger collectives, or a stream of its own",
    "launched late": "the device ran dry before the CPU issued it: torch.compile, CUDA graphs, larger micro-batches",
    "no prefetch": "issued only when it was needed: set_modules_to_forward_prefetch, set_modules_to_backward_prefetch",
    "synchronous": "the computing thread waited for it: asynchronous collectives (on a CPU, FSDP2's async unshard)",
    "bandwidth": "longer than the compute beside it: larger micro-batches, reshard_after_forward, a smaller dtype",
}
_CAUSE = Column("cause", pl.String, f"Why it was exposed: {', '.join(ADVICE)}.")
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
    Column("advice", pl.String, "What to try against the cause.", "not grouped by cause"),
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
# Collectives that bring what the next compute needs.
GATHERS = ("all_gather", "broadcast")
# What a transfer between two ranks waits for. It is given none of the collectives' causes and advice.
_WAITS = {"recv": "waits for its sender", "send": "waits for its receiver"}


class _Device(NamedTuple):
    """The compute of one device of one rank, in time order."""

    busy: Intervals
    starts: npt.NDArray[np.int64]
    layers: list[str | None]
    # Of each step: the start of its first compute, and of its last in forward or backward (where these are known).
    reaches: dict[int | None, tuple[int | None, int | None]]
    is_cpu: bool


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
    - `bandwidth`: it ran beside compute and outlasted it.

    Causes add up to the exposed time of the step.

    Raises:
        UsageError: `by` names a column that exposed time cannot be grouped by.
    """
    keys = EXPOSURE_BY.keys(by, "exposure")
    where = [column for column in EXPOSURE_BY.columns if column.name != "cause"]
    columns = {column.name: column.dtype for column in (*where, _CAUSE, EXPOSURE_SCHEMA.columns["exposed_ns"])}
    pieces = pl.DataFrame(list(_causes(run, [column.name for column in where])), schema=columns, orient="row")
    first = [key for key in ("rank", "step") if key in keys]
    order = {**dict.fromkeys(first, False), "exposed_ns": True, **{key: False for key in keys if key not in first}}
    advice = (
        pl.col("cause").replace_strict(ADVICE, return_dtype=pl.String) if "cause" in keys else pl.lit(None, pl.String)
    )
    return (
        pieces.group_by(keys or [pl.lit(0).alias("all")])
        .agg(pl.col("exposed_ns").sum())
        .filter(pl.col("exposed_ns") > 0)
        .sort(list(order), descending=list(order.values()))
        .select(*keys, "exposed_ns", advice.alias("advice"))
    )


def ideal(run: Run) -> pl.DataFrame:
    """Length of each step if all exposed communication that can overlap did: IDEAL_SCHEMA.

    `hideable_ns` is the smaller of the exposed communication and the compute that has no communication beside it;
    `ideal_ns` is the step without it.
    """
    hidden = run.table("overlap", by=("rank", "device", "step")).select("rank", "device", "step", "overlapped_ns")
    free = pl.col("compute_ns") - pl.col("overlapped_ns").fill_null(0)
    return (
        run.table("breakdown")
        .join(hidden, on=["rank", "device", "step"], how="left", nulls_equal=True, maintain_order="left")
        .with_columns(
            pl.col("exposed_comm_ns").alias("exposed_ns"),
            pl.min_horizontal("exposed_comm_ns", pl.max_horizontal(free, pl.lit(0))).alias("hideable_ns"),
        )
        .with_columns((pl.col("step_ns") - pl.col("hideable_ns")).alias("ideal_ns"))
        .select(pl.col(name).cast(dtype) for name, dtype in IDEAL_SCHEMA.items())
    )


def _causes(run: Run, columns: list[str]) -> Iterator[tuple[object, ...]]:
    """Values of these columns, cause and exposed ns, for each piece of communication and cause."""
    cover = run.compute_cover
    compute = run.work.filter(pl.col("class") == "compute").sort("start_ns").partition_by(DEVICE_KEY, as_dict=True)
    ran = communication(run).filter(pl.col("dur_ns").is_not_null(), ~pl.col("is_further")).sort("start_ns", "index")
    for key, group in ran.partition_by(DEVICE_KEY, as_dict=True, maintain_order=True).items():
        hidden_by = cover.get(key, intervals.EMPTY)
        device = _device(compute.get(key, run.work.clear()), hidden_by, is_cpu=key[1] == "cpu")
        # Time in which collectives of two steps run counts in each of the steps, as in the overlap table.
        accounted: dict[int | None, int] = {}
        lane_ends: dict[str, int] = {}
        for row in group.iter_rows(named=True):
            start, end = row["start_ns"], row["start_ns"] + row["dur_ns"]
            until = accounted.get(row["step"], start)
            own = intervals.union([max(start, until)], [end])
            accounted[row["step"]] = max(until, end)
            exposed = intervals.subtract(own, hidden_by)
            # A call waits at its first kernel.
            waited = intervals.clip(exposed, start, start + (row["wait_ns"] or 0 if row["is_collective"] else 0))
            rest = intervals.length(exposed) - intervals.length(waited)
            where = [row[name] for name in columns]
            yield (*where, _WAITS.get(row["kind"], "late rank"), intervals.length(waited))
            yield (*where, _cause(row, lane_ends.get(row["lane"]), device), rest)
            lane_ends[row["lane"]] = end


def _device(work: pl.DataFrame, busy: Intervals, *, is_cpu: bool) -> _Device:
    learning = pl.col("start_ns").filter(pl.col("phase").is_in(["forward", "backward"])).max()
    any_other = pl.col("start_ns").filter(pl.col("phase") != "optimizer").max()
    last = pl.coalesce(learning, any_other).alias("last")
    reaches = work.group_by("step").agg(pl.col("start_ns").min().alias("first"), last)
    return _Device(
        busy,
        work["start_ns"].to_numpy(),
        work["layer"].to_list(),
        {step: (first, last) for step, first, last in reaches.iter_rows()},
        is_cpu,
    )


def _cause(row: dict[str, Any], lane_end: int | None, device: _Device) -> str:
    """Cause of the exposed time of one collective, less what it waited for late ranks."""
    if row["kind"] in _WAITS:
        return "point-to-point"
    start = row["start_ns"]
    issued = start if row["issued_ns"] is None else row["issued_ns"]
    first, last = device.reaches.get(row["step"], (None, None))
    if first is None or first >= start:
        return "first use"
    if last is None or last < start:
        return "end of step"
    if lane_end is not None and issued < lane_end and start - lane_end <= SLACK_NS:
        return "serialised"
    before = _compute_end_before(device.busy, start)
    return "bandwidth" if before is None else _cause_after_compute(row, issued, before, device)


def _cause_after_compute(row: dict[str, Any], issued: int, before: int, device: _Device) -> str:
    """Cause for a collective that began when no compute ran any more; the last had ended at `before`."""
    needed = row["kind"] in GATHERS and _next_layer(device, row["start_ns"] + row["dur_ns"]) in (row["layer"], None)
    if needed and (device.is_cpu or issued < before):
        return "no prefetch"
    if device.is_cpu:
        return "synchronous"
    return "launched late" if issued >= before else "bandwidth"


def _compute_end_before(compute: Intervals, start: int) -> int | None:
    """End of the compute before `start`; None where compute runs at that time."""
    at = int(np.searchsorted(compute.starts, start, side="right")) - 1
    if at < 0 or compute.ends[at] > start:
        return None
    return int(compute.ends[at])


def _next_layer(device: _Device, end: int) -> str | None:
    """Layer of the first compute from `end` on; None where it is unknown."""
    at = int(np.searchsorted(device.starts, end, side="left"))
    return device.layers[at] if at < len(device.layers) else None
