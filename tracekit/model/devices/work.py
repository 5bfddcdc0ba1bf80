"""Everything that occupies a device: kernels, copies and memsets on GPUs; operators and backend spans on a CPU."""

from __future__ import annotations

import polars as pl

from tracekit import common_columns as c
from tracekit.model import names
from tracekit.model.as_of import around
from tracekit.model.attribution.layers import Attribution
from tracekit.model.collectives.backend_spans import match_spans
from tracekit.model.collectives.batches import with_batches
from tracekit.model.devices.operators import own_time
from tracekit.model.devices.overruns import cut_overruns
from tracekit.model.event_kinds import Kinds, nccl_calls, timed
from tracekit.model.patterns import Patterns
from tracekit.model.recordings import RUN, joined, with_first, without
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
        "How step, layer and phase were found: correlation, flow, external id, order (spans of a CPU backend) or time.",
    ),
    Column(
        "overrun_ns",
        pl.Int64,
        "Time that was cut off, since it outlasted the next work of its stream (see model/devices/overruns.py).",
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
    patterns: Patterns = (),
) -> pl.DataFrame:
    """Return WORK_SCHEMA: of devices (see device_rows.py), else of the CPU.

    `arguments` are those of rows that name a collective, as read; `patterns` are the user's names of communication.
    """
    # A trace without device rows is a CPU run, whose work are its operators; unless it calls NCCL: then its device was
    # not recorded, and the time of its CPU operators measures nothing.
    spans = _backend_spans(kinds, arguments, calls)
    operators = _cpu_operators(without(kinds.operators, device, nccl_calls(kinds)), spans)
    rows = pl.concat([_device_work(device, calls, patterns), spans, operators], how="diagonal_relaxed")
    rows = rows.with_columns(pl.coalesce("launched_ns", "start_ns").alias("at_ns"))
    located = attribution.locate(step_at(rows, steps, "at_ns"), "at_ns")
    return located.select(list(WORK_SCHEMA)).cast(WORK_SCHEMA).sort("rank", "cycle", "start_ns", "index")  # type: ignore[arg-type]


def _device_work(device: pl.DataFrame, calls: pl.DataFrame, patterns: Patterns) -> pl.DataFrame:
    """Return rows of devices with class, device, lane and collective call."""
    rows = _link_calls(device, calls)
    is_copy = (pl.col("role") == "copy").fill_null(value=False)
    is_comm = (
        pl.col("collective").is_not_null() & (pl.col("collective") != "wait")
        | pl.col("linked_by_args")
        | (_named_like(rows["name"], _communication(patterns)) & ~is_copy)
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
    number = pl.coalesce("device", "pid").cast(pl.String)
    named = rows.with_columns(
        kind.alias("class"),
        pl.when(is_comm).then("call").alias("call"),
        pl.format("cuda:{}", number).fill_null("cuda").alias("device"),
        pl.format("stream {}", pl.coalesce("stream", "tid")).fill_null("stream ?").alias("lane"),
    )
    return cut_overruns(named)


def _named_like(values: pl.Series, pattern: str) -> pl.Series:
    """Return whether each name matches; names are long and few, so each distinct one is matched once."""
    distinct = values.unique()
    return values.is_in(distinct.filter(distinct.str.contains(pattern)).to_list())


def _communication(patterns: Patterns) -> str:
    """Return the pattern for names of communication kernels: ours, and the user's."""
    return "|".join([names.COMM_KERNEL, *(f"(?-i:{pattern.name})" for pattern in patterns)])


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


def _backend_spans(kinds: Kinds, arguments: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Return collectives that ran on the CPU: spans of the backend (``gloo:all_reduce``), operators in early torch."""
    named = pl.col("name").str.contains(names.BACKEND_SPAN)
    rows = timed(pl.concat([part.filter(named) for part in (kinds.annotations, kinds.operators)]))
    if rows.is_empty():
        return rows
    rows = joined(rows, arguments.select(*RUN, "index", "input_dims"), "index")
    matched = match_spans(rows.rename({"ts_ns": "start_ns"}), calls)
    by_order = pl.when(pl.col("call").is_not_null()).then(pl.lit("order")).otherwise(pl.lit("time"))
    return _on_cpu(matched, pl.lit("comm")).with_columns(by_order.alias("linked_by"))


def _cpu_operators(operators: pl.DataFrame, spans: pl.DataFrame) -> pl.DataFrame:
    """Return operators of a CPU run by own time; calls and waits are not compute, frames of autograd not work."""
    thread = [*RUN, "pid", "tid"]
    if operators.is_empty():
        return operators
    ops = timed(operators).join(spans.select(thread).unique(), on=thread, how="anti")
    own = own_time(ops.rename({"ts_ns": "start_ns"}), thread)
    own = own.filter(~pl.col("name").str.contains(names.AUTOGRAD_FRAME))
    kind = pl.when(pl.col("name").str.contains(names.CALL_OR_WAIT)).then(pl.lit("other")).otherwise(pl.lit("compute"))
    unlaunched = [pl.lit(None, pl.Int64).alias(c) for c in ("launched_ns", "call")]
    return _on_cpu(own, kind).with_columns(*unlaunched, pl.lit("time").alias("linked_by"))


def _on_cpu(rows: pl.DataFrame, kind: pl.Expr) -> pl.DataFrame:
    return rows.with_columns(
        kind.alias("class"),
        pl.lit("cpu").alias("device"),
        pl.format("thread {}", "tid").fill_null("thread ?").alias("lane"),
    )
