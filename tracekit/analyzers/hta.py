"""HolisticTraceAnalysis on our own tables: the only place that knows its classes.

HTA (module `hta`, published as `traceinsight`) never reads a file here. It is handed frames with times in
ns, opaque event names that carry our classification (it judges by names, and misjudges some), and lanes as
streams, which makes it work for CPU runs too. Its columns called "(us)" are therefore ns. Facts about it:
HTA 0.6.1, analyzers/ breakdown_analysis.py and communication_analysis.py.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl

from tracekit import common_columns as c
from tracekit.extras import require
from tracekit.table_schema import Column, Schema

if TYPE_CHECKING:
    from collections.abc import Generator

    from tracekit.model.run import Run

_PLACE_COLUMNS = (c.RANK, c.CYCLE, c.DEVICE)
TEMPORAL_BREAKDOWN_SCHEMA = Schema(
    *_PLACE_COLUMNS,
    Column(
        "kernel_ns", pl.Int64, "From the start of the first work to the end of the last: the sum of the next three."
    ),
    Column("compute_ns", pl.Int64, "Time during which compute ran."),
    Column("non_compute_ns", pl.Int64, "Time during which other work ran and no compute."),
    Column("idle_ns", pl.Int64, "Time during which nothing ran."),
)
IDLE_SCHEMA = Schema(
    *_PLACE_COLUMNS,
    c.LANE,
    Column(
        "cause",
        pl.String,
        "host_wait: the work was launched after its neighbour had ended; kernel_wait: a gap below 30 µs; other: the "
        "lane waited for something else.",
    ),
    Column("idle_ns", pl.Int64, "Idle time of the lane between two pieces of work, by that cause."),
)
KERNEL_BREAKDOWN_SCHEMA = Schema(
    *_PLACE_COLUMNS,
    Column("class", pl.String, "compute, comm or copy."),
    c.NAME,
    Column("total_ns", pl.Int64, "Sum of the durations of all work of that name."),
    Column("max_ns", pl.Int64, "The longest of them."),
    Column("min_ns", pl.Int64, "The shortest of them."),
    Column("mean_ns", pl.Float64, "Their mean."),
)
OVERLAP_SCHEMA = Schema(
    *_PLACE_COLUMNS,
    Column(
        "overlap_percent",
        pl.Float64,
        "Share of communication time that ran under compute, rounded to two digits.",
        "there was no communication",
    ),
)

# HTA counts a gap shorter than 30 µs between neighbours on a stream as launch overhead; its default, in our
# unit.
LAUNCH_GAP_NS = 30_000

# A name that HTA takes for the class, whatever the work is really called. `Stream Wait Event` is neither.
_PREFIXES = {"compute": "op", "comm": "nccl", "copy": "Memcpy", "other": "Stream Wait Event"}
_CLASSES = {"COMPUTATION": "compute", "COMMUNICATION": "comm", "MEMORY": "copy"}
_PLACE = ("rank", "cycle", "device")


class _Fed(NamedTuple):
    """HTA's trace object and what its numbers stand for: places by rank, names by symbol, lanes by stream."""

    trace: Any
    places: list[tuple[int, int, str]]
    names: dict[str, str]
    lanes: list[str]


def temporal_breakdown(run: Run) -> pl.DataFrame:
    """HTA's temporal breakdown of each rank, cycle and device, in ns: compute, non-compute and idle.

    kernel_ns, their sum, runs from the start of the first work to the end of the last. Unlike in
    `tracekit.analyzers.breakdown`, work of class `other` is not idle to HTA but non-compute.
    """
    fed = _feed(run)
    if fed is None:
        return pl.DataFrame(schema=TEMPORAL_BREAKDOWN_SCHEMA)
    from hta.analyzers.breakdown_analysis import BreakdownAnalysis

    with _quiet():
        table = BreakdownAnalysis.get_temporal_breakdown(fed.trace, visualize=False)
    columns = [f"{name}_time(us)" for name in ("kernel", "compute", "non_compute", "idle")]
    rows = [
        (*fed.places[int(rank)], *map(int, values))
        for rank, *values in table[["rank", *columns]].itertuples(index=False)
    ]
    return pl.DataFrame(rows, schema=TEMPORAL_BREAKDOWN_SCHEMA, orient="row")


def idle(run: Run) -> pl.DataFrame:
    """HTA's idle time of each lane by cause, in ns: host_wait, kernel_wait or other.

    host_wait: the work was launched after its neighbour had ended, so the host was late. kernel_wait: a gap
    below LAUNCH_GAP_NS. other: the lane waited for something else. Lanes with one piece of work have no gaps.
    """
    fed = _feed(run)
    if fed is None:
        return pl.DataFrame(schema=IDLE_SCHEMA)
    from hta.analyzers.breakdown_analysis import BreakdownAnalysis

    rows: list[tuple[object, ...]] = []
    with _quiet():
        for number, place in enumerate(fed.places):
            table, _ = BreakdownAnalysis.get_idle_time_breakdown(fed.trace, LAUNCH_GAP_NS, rank=number, visualize=False)
            picked = table[["stream", "idle_category", "idle_time"]].itertuples(index=False)
            rows += ((*place, fed.lanes[int(stream)], cause, int(gap)) for stream, cause, gap in picked)
    return pl.DataFrame(rows, schema=IDLE_SCHEMA, orient="row").filter(pl.col("idle_ns") != 0)


def kernel_breakdown(run: Run) -> pl.DataFrame:
    """HTA's time of each class and name of work, in ns, longest total first.

    Columns: rank, cycle, device, class (compute, comm or copy), name, total_ns, max_ns, min_ns, mean_ns. Every name is
    given: where HTA cuts its list short, it puts sums in place of maxima, minima and means.
    """
    fed = _feed(run)
    if fed is None:
        return pl.DataFrame(schema=KERNEL_BREAKDOWN_SCHEMA)
    from hta.analyzers.breakdown_analysis import BreakdownAnalysis

    with _quiet():
        _, table = BreakdownAnalysis.get_gpu_kernel_breakdown(
            fed.trace, visualize=False, num_kernels=len(fed.names), include_memory_kernels=True
        )
    columns = ["rank", "kernel_type", "name", "sum (us)", "max (us)", "min (us)", "mean (us)"]
    rows = [
        (*fed.places[int(rank)], _CLASSES[kind], fed.names[name], *map(int, sums), float(mean))
        for rank, kind, name, *sums, mean in table[columns].itertuples(index=False)
    ]
    order = [*_PLACE, "class", "total_ns"]
    return pl.DataFrame(rows, schema=KERNEL_BREAKDOWN_SCHEMA, orient="row").sort(
        order, descending=[False] * 4 + [True], maintain_order=True
    )


def comm_comp_overlap(run: Run) -> pl.DataFrame:
    """HTA's share of communication time that ran under compute, in percent; null without communication.

    Columns: rank, cycle, device, overlap_percent, which HTA rounds to two digits.
    """
    fed = _feed(run)
    if fed is None:
        return pl.DataFrame(schema=OVERLAP_SCHEMA)
    from hta.analyzers.communication_analysis import CommunicationAnalysis

    with _quiet():
        table = CommunicationAnalysis.get_comm_comp_overlap(fed.trace, visualize=False)
    rows = [
        (*fed.places[int(rank)], float(percent))
        for rank, percent in table[["rank", "comp_comm_overlap_pctg"]].itertuples(index=False)
    ]
    return pl.DataFrame(rows, schema=OVERLAP_SCHEMA, orient="row").with_columns(
        pl.col("overlap_percent").fill_nan(None)
    )


def _feed(run: Run) -> _Fed | None:
    """An HTA trace of the run's work, an HTA rank for each rank, cycle and device; None without work.

    A device of which all work is of unknown kind is left out: HTA would take it for busy, the breakdown does not.

    Raises:
        MissingExtraError: HTA is not installed.
    """
    require("hta", "showing HTA's own numbers")
    is_known = (pl.col("class") != "other").any().over(_PLACE)
    work = run.work.filter(pl.col("dur_ns") >= 0, is_known).sort(*_PLACE, "start_ns", maintain_order=True)
    if work.is_empty():
        return None
    from hta.common.trace import Trace
    from hta.common.trace_symbol_table import TraceSymbolTable

    names = work.select("class", "name").unique(maintain_order=True).with_row_index("symbol")
    symbols = [f"{_PREFIXES[kind]} {number}" for number, kind, _ in names.iter_rows()]
    lanes = work["lane"].unique(maintain_order=True).fill_null("").to_list()
    table = TraceSymbolTable()
    table.add_symbols([*symbols, "kernel", "cuda_runtime", "launch"])
    coded = work.join(names, on=["class", "name"], how="left", nulls_equal=True).with_columns(
        pl.col("lane").fill_null("").replace_strict(lanes, range(len(lanes)), return_dtype=pl.Int64).alias("stream")
    )
    with _quiet():
        trace = Trace(trace_files={}, trace_dir="")
    groups = coded.group_by(_PLACE, maintain_order=True)
    origin = int(work.select(pl.col("start_ns").min()).item())
    places: list[tuple[int, int, str]] = []
    for place, rows in groups:
        trace.traces[len(places)] = _hta_frame(rows, table.get_sym_id_map(), origin)
        trace.meta_data[len(places)] = {"device_type": "GPU"}
        places.append((int(place[0]), int(place[1]), str(place[2])))
    trace.symbol_table = table
    trace.min_ts = 0
    trace.is_parsed = True
    named = dict(zip(symbols, names["name"].to_list(), strict=True))
    return _Fed(trace, places, named, lanes)


def _hta_frame(rows: pl.DataFrame, ids: dict[str, int], origin: int) -> Any:
    """One place's work and, where known, its launches as host events; HTA links the two by index."""
    from pandas import DataFrame

    launched = pl.col("launched_ns").is_not_null()
    count = rows.height
    own = pl.int_range(pl.len(), dtype=pl.Int64)
    base = rows.with_columns(own.alias("index"))
    launches = base.filter(launched).select(
        (pl.col("index") + count).alias("index"),
        (pl.col("launched_ns") - origin).alias("ts"),
        pl.lit(0, pl.Int64).alias("dur"),
        pl.lit(ids["launch"], pl.Int64).alias("name"),
        pl.lit(ids["cuda_runtime"], pl.Int64).alias("cat"),
        pl.lit(-1, pl.Int64).alias("stream"),
        pl.col("index").alias("index_correlation"),
    )
    device = base.select(
        "index",
        (pl.col("start_ns") - origin).alias("ts"),
        pl.col("dur_ns").alias("dur"),
        pl.col("symbol").cast(pl.Int64).alias("name"),
        pl.lit(ids["kernel"], pl.Int64).alias("cat"),
        "stream",
        pl.when(launched).then(pl.col("index") + count).otherwise(-1).alias("index_correlation"),
    )
    both = pl.concat([device, launches]).with_columns(
        (pl.col("ts") + pl.col("dur")).alias("end"),
        pl.lit(0, pl.Int64).alias("pid"),
        pl.lit(0, pl.Int64).alias("tid"),
        pl.lit(-1, pl.Int64).alias("iteration"),
        pl.col("index_correlation").alias("correlation"),
        pl.lit(0.0).alias("memory_bw_gbps"),
    )
    frame = DataFrame({name: both[name].to_numpy() for name in both.columns})
    return frame.set_index("index", drop=False)


@contextmanager
def _quiet() -> Generator[None]:
    """Keeps HTA's log lines and its warnings about its own use of pandas to itself."""
    import logging
    import warnings

    logger = logging.getLogger("hta")
    level, disabled = logger.level, logger.disabled
    logger.disabled = True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
        logger.disabled = disabled
