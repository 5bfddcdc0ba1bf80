"""Everything that occupies a device: kernels, copies and memsets on GPUs; operators and backend spans on a CPU."""

from __future__ import annotations

import polars as pl

from tracekit import common_columns as c
from tracekit.model import names
from tracekit.model.as_of import around
from tracekit.model.attribution.layers import Attribution
from tracekit.model.collectives.batches import with_batches
from tracekit.model.devices.cpu_work import cpu_work
from tracekit.model.devices.device_rows import BEFORE
from tracekit.model.devices.serial_lanes import on_serial_lanes
from tracekit.model.event_kinds import Kinds, device_calls
from tracekit.model.patterns import Patterns
from tracekit.model.recordings import RUN, with_first, without
from tracekit.model.steps import step_at
from tracekit.table_schema import Column, Schema

# In time order; an operator of a CPU run can have several rows (see operators.py).
WORK_SCHEMA = Schema(
    c.RANK,
    c.CYCLE,
    c.STEP,
    c.INDEX,
    c.DEVICE,
    c.LANE.but(meaning="Where it ran: a stream of the device, or a thread; work on one lane is serial."),
    Column("class", pl.String, "compute, comm, copy or other (waits, rows of unknown kind)."),
    c.NAME,
    c.START_NS,
    c.DUR_NS,
    Column("launched_ns", pl.Int64, "When the CPU issued it, since the epoch.", "its launch is not in the trace"),
    c.LAYER,
    c.LAYER_FROM,
    c.PHASE,
    Column(
        "linked_by",
        pl.String,
        "How step, layer and phase were found: correlation, flow, external id, order (spans of a CPU backend) or time; "
        "`before the recording` where it was launched before that began, so that it has none of them; `time: the file "
        "is damaged` of such a span whose call may be another or lost.",
    ),
    Column(
        "overrun_ns",
        pl.Int64,
        "Time that was cut off, since it outlasted the next work of its stream (see model/devices/serial_lanes.py).",
        "nothing was cut off",
    ),
    Column(
        "call", pl.Int64, "Call of a collective that it belongs to; the same number in `collectives`.", "none is known"
    ),
)


def work(
    device: pl.DataFrame,
    arguments: pl.DataFrame,
    kinds: Kinds,
    calls: pl.DataFrame,
    steps: pl.DataFrame,
    attribution: Attribution,
    repairs: pl.DataFrame,
    patterns: Patterns = (),
) -> pl.DataFrame:
    """Return WORK_SCHEMA: of devices (see device_rows.py), else of the CPU.

    `arguments` are those of rows that name a collective, as read; `repairs` are those of the files; `patterns` are the
    user's names of communication.
    """
    # A trace without device rows is a CPU run, whose work are its operators; unless it calls NCCL or another backend of
    # devices: then its device was not recorded, and the time of its CPU operators measures nothing.
    operators = without(kinds.operators, device, device_calls(kinds))
    on_device = _device_work(device, calls, patterns)
    on_cpu = cpu_work(kinds, operators, arguments, calls, on_device, steps, repairs)
    rows = pl.concat([on_device, on_cpu], how="diagonal_relaxed")
    at = pl.when(pl.col("linked_by").ne_missing(BEFORE)).then(pl.coalesce("launched_ns", "start_ns"))
    rows = rows.with_columns(at.alias("at_ns"))
    located = attribution.locate(step_at(rows, steps, "at_ns"), "at_ns")
    return located.select(list(WORK_SCHEMA)).cast(WORK_SCHEMA).sort("rank", "cycle", "start_ns", "index")  # type: ignore[arg-type]


def _device_work(device: pl.DataFrame, calls: pl.DataFrame, patterns: Patterns) -> pl.DataFrame:
    """Return rows of devices with class and collective call, on lanes that are serial."""
    rows = _link_calls(device, calls)
    is_copy = (pl.col("role") == "copy").fill_null(value=False)
    is_comm = (
        pl.col("collective").is_not_null() & (pl.col("collective") != "wait")
        | pl.col("linked_by_args")
        | (_named_as_communication(rows["name"], patterns) & ~is_copy)
        | (_named_like(rows["name"], names.PEER_COPY) & pl.col("call").is_not_null())
    )
    rows = with_batches(rows.with_columns(is_comm.alias("is_comm")), calls)
    is_comm = pl.col("is_comm")
    kind = (
        pl.when(is_comm).then(pl.lit("comm"))
        .when(is_copy).then(pl.lit("copy"))
        .when(pl.col("role") == "kernel").then(pl.lit("compute"))
        .otherwise(pl.lit("other"))
    )  # fmt: skip
    return on_serial_lanes(rows.with_columns(kind.alias("class"), pl.when(is_comm).then("call").alias("call")))


def _named_like(values: pl.Series, pattern: str) -> pl.Series:
    """Return whether each name matches; names are long and few, so each distinct one is matched once."""
    distinct = values.unique()
    return values.is_in(distinct.filter(distinct.str.contains(pattern)).to_list())


def _named_as_communication(values: pl.Series, patterns: Patterns) -> pl.Series:
    """Return whether each name is one of communication, by our own patterns or by the user's."""
    ours = _named_like(values, names.COMM_KERNEL) & ~_named_like(values, names.FUSED_KERNEL)
    if not patterns:
        return ours
    return ours | _named_like(values, "|".join(f"(?:{pattern.name})" for pattern in patterns))


def _link_calls(rows: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Return the rows with their collective `call`: the one with their external id, else the one around the launch."""
    if calls.is_empty():
        none = pl.lit(None, pl.Int64)
        return rows.with_columns(none.alias("call"), pl.lit(value=False).alias("linked_by_args"))
    by_id = (
        calls.select(*RUN, pl.col("call").alias("call_by_id"), pl.col("external_ids").alias("op_id"))
        .explode("op_id", empty_as_null=True)
        .drop_nulls("op_id")
    )
    rows = with_first(rows, by_id, "op_id")
    on_thread = calls.sort("start_ns").with_columns(pl.col("tid").alias("launched_tid"))
    inside = around(rows, "launched_ns", on_thread, ("start_ns", "end_ns"), [*RUN, "launched_tid"])["call"]
    # The id is that of the row with the collective's arguments: a row with this id is the collective, also where a copy
    # engine does the work. A copy that an operator makes inside the call has that operator's id.
    return rows.with_columns(
        pl.coalesce("call_by_id", inside).alias("call"), pl.col("call_by_id").is_not_null().alias("linked_by_args")
    )
