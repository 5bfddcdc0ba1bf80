"""Work of a CPU: spans of its communication backend (``gloo:all_reduce``) and, of a CPU run, operators by own time."""

from __future__ import annotations

import polars as pl

from tracekit.model import names
from tracekit.model.as_of import around, latest
from tracekit.model.collectives.backend_spans import horizons, match_spans
from tracekit.model.devices.operators import own_time
from tracekit.model.event_kinds import Kinds, timed
from tracekit.model.recordings import RUN, joined

_THREAD = [*RUN, "pid", "tid"]


def cpu_work(
    kinds: Kinds,
    operators: pl.DataFrame,
    arguments: pl.DataFrame,
    calls: pl.DataFrame,
    device: pl.DataFrame,
    steps: pl.DataFrame,
    repairs: pl.DataFrame,
) -> pl.DataFrame:
    """Return spans of the backend and own time of `operators`, those of CPU runs; `device` is the work of devices.

    `repairs` of the files tell which of them lack events.

    What the backend's own threads run is part of its collectives. A span may also be drawn on the thread that called,
    from the call to its completion (gloo's send and recv; all of torch up to 1.9): the training goes on there, beside
    the span, which has a lane of its own.
    """
    spans = _spans(kinds)
    # Until torch 1.9 step marks and the backend's spans are operators too.
    drawn = pl.col("name").str.contains(f"{names.BACKEND_SPAN}|{names.STEP_MARK}")
    ops = timed(operators.filter(~drawn))
    own_threads = _backend_threads(timed(kinds.operators.filter(~drawn)), spans, kinds) if spans.height else spans
    ran = _collectives(spans, arguments, calls, device)
    if ran.height:
        ran = match_spans(ran, calls, steps, horizons(repairs, kinds, spans))
    if ran.height:
        own = own_threads.with_columns(pl.lit(value=True).alias("is_own"))
        ran = ran.join(own, on=_THREAD, how="left", nulls_equal=True, maintain_order="left")
        apart = pl.format("{}, {}", "lane", pl.col("name").str.extract("^([a-z]+)", 1))
        ran = ran.with_columns(pl.when("is_own").then("lane").otherwise(apart).alias("lane")).drop("is_own")
    work = _own_work(ops.join(own_threads, on=_THREAD, how="anti", nulls_equal=True))
    return pl.concat([ran, work], how="diagonal_relaxed")


def _spans(kinds: Kinds) -> pl.DataFrame:
    # Those of backends of devices (xccl) only enqueue; their device was recorded, or it was not.
    named = pl.col("name").str.contains(names.BACKEND_SPAN) & ~pl.col("name").str.contains(names.OF_DEVICES)
    return timed(pl.concat([part.filter(named) for part in (kinds.annotations, kinds.operators)]))


def _collectives(
    spans: pl.DataFrame, arguments: pl.DataFrame, calls: pl.DataFrame, device: pl.DataFrame
) -> pl.DataFrame:
    """Return the collectives that the CPU carried out.

    A span of a backend that drives devices (``xccl:``) only enqueues where a device shows the collective: by a kernel
    that was launched inside of the span, or by one of the call around it.
    """
    if spans.is_empty():
        return spans
    rows = _without_enqueues(spans.rename({"ts_ns": "start_ns"}), device, calls)
    return _on_cpu(joined(rows, arguments.select(*RUN, "index", "input_dims"), "index"), pl.lit("comm"))


def _without_enqueues(spans: pl.DataFrame, device: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Return the spans of which no device shows the collective, and those of backends that only the CPU runs."""
    can_enqueue = spans["name"].str.contains(names.ENQUEUES)
    if device.is_empty() or not can_enqueue.any():
        return spans
    thread = [*RUN, "tid"]
    kernels = device.filter(pl.col("role") == "kernel")
    launches = kernels.select(*RUN, pl.col("launched_tid").alias("tid"), "launched_ns").drop_nulls("launched_ns")
    ends = spans.with_columns((pl.col("start_ns") + pl.col("dur_ns")).alias("end_ns"))
    last = latest(ends, "end_ns", launches.sort("launched_ns"), "launched_ns", thread)["launched_ns"]
    call = around(spans, "start_ns", calls.sort("start_ns"), ("start_ns", "end_ns"), thread)["call"]
    of_calls = spans.select(RUN).with_columns(call).join(
        kernels.drop_nulls("call").select(*RUN, "call").unique().with_columns(pl.lit(value=True).alias("shown")),
        on=[*RUN, "call"], how="left", maintain_order="left",
    )["shown"]  # fmt: skip
    is_shown = (last >= spans["start_ns"]).fill_null(value=False) | of_calls.fill_null(value=False)
    return spans.filter(~(can_enqueue & is_shown))


def _own_work(ops: pl.DataFrame) -> pl.DataFrame:
    """Return operators by own time; calls and waits are not compute, frames of autograd not work."""
    if ops.is_empty():
        return ops
    own = own_time(ops.rename({"ts_ns": "start_ns"}), _THREAD)
    own = own.filter(~pl.col("name").str.contains(names.AUTOGRAD_FRAME))
    kind = pl.when(pl.col("name").str.contains(names.CALL_OR_WAIT)).then(pl.lit("other")).otherwise(pl.lit("compute"))
    unlaunched = [pl.lit(None, pl.Int64).alias(c) for c in ("launched_ns", "call")]
    return _on_cpu(own, kind).with_columns(*unlaunched, pl.lit("time").alias("linked_by"))


def _backend_threads(ops: pl.DataFrame, spans: pl.DataFrame, kinds: Kinds) -> pl.DataFrame:
    """Return the threads of the backend: they hold spans, run nothing outside of these, and call no collective."""
    threads = spans.select(_THREAD).unique()
    if threads.is_empty():
        return threads
    prefixes = (*names.CALL_PREFIXES, names.STEP_MARK_PREFIX)
    called = pl.any_horizontal(pl.col("name").str.starts_with(prefix) for prefix in prefixes)
    callers = pl.concat([part.filter(called).select(_THREAD) for part in (kinds.annotations, kinds.operators)])
    there = ops.join(threads, on=_THREAD, how="semi", nulls_equal=True)
    ends = pl.col("ts_ns") + pl.col("dur_ns")
    reaches = spans.sort("ts_ns").with_columns(ends.cum_max().over(_THREAD).alias("reach_ns"))
    reach = latest(there, "ts_ns", reaches, "ts_ns", _THREAD)["reach_ns"]
    outside = there.filter((there["ts_ns"] + there["dur_ns"] > reach).fill_null(value=True))
    others = pl.concat([outside.select(_THREAD), callers])
    return threads.join(others, on=_THREAD, how="anti", nulls_equal=True)


def _on_cpu(rows: pl.DataFrame, kind: pl.Expr) -> pl.DataFrame:
    return rows.with_columns(
        kind.alias("class"),
        pl.lit("cpu").alias("device"),
        pl.format("thread {}", "tid").fill_null("thread ?").alias("lane"),
    )
