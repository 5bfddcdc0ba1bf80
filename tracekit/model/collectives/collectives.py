"""The collectives of a run: kind as called and as run, sizes, times, and the part hidden under compute."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from tracekit import common_columns as c
from tracekit.collective_kinds import PASSES
from tracekit.dtypes import ITEM_SIZES, dtype_of
from tracekit.intervals import Intervals
from tracekit.manifest import Manifest
from tracekit.model import names
from tracekit.model.attribution.layers import Attribution
from tracekit.model.collectives.axes import with_axes
from tracekit.model.collectives.backend_spans import UNSURE
from tracekit.model.collectives.batches import batched
from tracekit.model.collectives.bucket_layers import with_layers
from tracekit.model.collectives.calls import MOST_ELEMENTS, OF_GROUP, first_numel
from tracekit.model.collectives.matching import with_matches, with_waits
from tracekit.model.collectives.process_groups import with_process_groups
from tracekit.model.device_time import DEVICE_KEY, Key, covered_ns
from tracekit.model.devices.device_rows import BEFORE
from tracekit.model.patterns import Patterns, kind_by_name
from tracekit.model.recordings import RUN
from tracekit.model.steps import step_at, turns
from tracekit.table_schema import Column, Schema

# In time order, each collective once on each of its ranks.
_NEVER_RAN = "it was issued and nothing of it ran inside the window"
COLLECTIVES_SCHEMA = Schema(
    c.RANK,
    c.CYCLE,
    c.STEP,
    c.INDEX,
    c.DEVICE.but(null=_NEVER_RAN),
    c.LANE.but(null=_NEVER_RAN),
    c.LAYER,
    c.LAYER_FROM,
    c.PHASE,
    c.KIND,
    c.BACKEND_KIND.but(null="neither arguments nor name have it"),
    c.GROUP,
    c.GROUP_SIZE,
    Column(
        "members", pl.String, "Ranks of its group, separated by commas.", "neither arguments nor header list them all"
    ),
    c.AXIS,
    Column(
        "axis_from",
        pl.String,
        "How the axis was found: group (its name), annotation (FSDP2's around it), size (the only axis of that size) "
        "or order (of gradient norms).",
        "the axis is unknown",
    ),
    c.SEQ,
    c.DTYPE,
    c.IN_NUMEL.but(null="neither arguments nor shapes have it"),
    c.OUT_NUMEL.but(null="neither arguments nor shapes have it"),
    Column(
        "payload_numel",
        pl.Int64,
        "Elements of the full tensor: of an all_gather its output, of the others their input.",
        "its sizes are unknown",
    ),
    c.PAYLOAD_BYTES.but(null="its sizes or its dtype are unknown"),
    Column(
        "passes",
        pl.Int8,
        "How often the payload crosses: all_reduce 2; all_gather, reduce_scatter, broadcast and reduce 1.",
        "the kind is `other`",
    ),
    c.WIRE_BYTES,
    Column(
        "issued_ns", pl.Int64, "When the CPU issued it, since the epoch.", "neither call nor launch is in the trace"
    ),
    c.START_NS.but(null=_NEVER_RAN),
    c.DUR_NS.but(meaning="From the start of its first kernel to the end of its last.", null=_NEVER_RAN),
    c.OVERLAPPED_NS.but(
        meaning="Time of its kernels during which compute ran on another lane of the same device; pauses left out.",
        null=_NEVER_RAN,
    ),
    c.EXPOSED_NS.but(meaning="Time of its kernels during which no such compute ran.", null=_NEVER_RAN),
    Column("call", pl.Int64, "Number of the call on its rank; the same in `work`.", "the call is not in the trace"),
    Column(
        "batch",
        pl.Int64,
        "Call of the first of those that one kernel carried out (`batch_isend_irecv`, `_coalescing_manager`): all have "
        "its start and duration; the first has its overlapped and exposed time, the others 0.",
        "it has a kernel of its own",
    ),
    Column("match", pl.Int64, "Number of the collective, the same on all of its ranks (see matching.py)."),
    Column("num_matched", pl.Int32, "Number of its ranks that are at hand."),
    Column("num_needed", pl.Int32, "Number of ranks in its group, else in the run.", "neither is known"),
    Column(
        "matched_by",
        pl.String,
        "How it was found on other ranks: seq, order, `order: Seq differs between ranks`, or peer (a send and its "
        "recv, by source, destination and order).",
        "it was found on this rank alone",
    ),
    c.WAIT_NS,
    c.TRANSFER_NS,
    Column("kind_from", pl.String, "How the kind was found: args, op, shapes, annotation or name.", "unknown"),
    Column("bytes_from", pl.String, "How the size was found: args or shapes.", "`payload_bytes` is null"),
)


def collectives(
    arguments: pl.DataFrame,
    calls: pl.DataFrame,
    work: pl.DataFrame,
    steps: pl.DataFrame,
    attribution: Attribution,
    *,
    cover: Mapping[Key, Intervals],
    annotations: pl.DataFrame,
    manifest: Manifest | None = None,
    process_groups: pl.DataFrame,
    world_size: int | None = None,
    patterns: Patterns = (),
) -> pl.DataFrame:
    """Return COLLECTIVES_SCHEMA: every call and every piece of communication work, each once.

    `arguments` are those of rows that name a collective, as read; `patterns` are the user's names of communication;
    `cover` is when compute runs on each device; `process_groups` are those of the files' headers.
    """
    if calls.is_empty() and not (work["class"] == "comm").any():
        return pl.DataFrame(schema=COLLECTIVES_SCHEMA)
    rows = _calls_with_work(batched(_executions(arguments, work, cover), calls), calls, patterns)
    rows = with_process_groups(rows, process_groups)
    rows = attribution.locate(step_at(rows, steps, "at_ns"), "at_ns").with_row_index("row")
    rows = with_layers(rows.sort("at_ns", "index"), manifest)
    # What the call itself, its elements and the mesh tell of a group's size comes before the header's only one.
    size = pl.coalesce("group_size", "only_group_size").alias("group_size")
    rows = _with_sizes(with_axes(rows, manifest, annotations).with_columns(size))
    together = turns(steps).select(*RUN, "step", "turn")
    rows = rows.join(together, on=[*RUN, "step"], how="left", nulls_equal=True)
    rows = with_waits(with_matches(rows, world_size))
    ordered = rows.sort(*RUN, "at_ns", "index")
    return ordered.select(list(COLLECTIVES_SCHEMA)).cast(COLLECTIVES_SCHEMA, strict=False)  # type: ignore[arg-type]


def _executions(arguments: pl.DataFrame, work: pl.DataFrame, cover: Mapping[Key, Intervals]) -> pl.DataFrame:
    """Return what ran: one row for each call or, if unknown, each piece of work; arguments of its first row.

    A call of several kernels lasts from the first to the last of them; overlapped and exposed leave its pauses out.
    """
    own = [name for name in arguments.columns if name not in {*RUN, "index"}]
    comm = work.filter(pl.col("class") == "comm").join(arguments, on=[*RUN, "index"], how="left")
    alone = pl.when(pl.col("call").is_null()).then("index").otherwise(-1)
    key = [*RUN, "call", "alone"]
    comm = _with_overlap(comm.with_columns(alone.alias("alone")), cover)
    return (
        comm.sort("start_ns")
        .group_by(key, maintain_order=True)
        .agg(
            pl.col("index", "device", "lane", "name", "start_ns", "launched_ns", "linked_by", *own).first(),
            (pl.col("start_ns") + pl.col("dur_ns")).max().alias("end_ns"),
            pl.col("overlapped_ns", "exposed_ns").sum(),
        )
        .with_columns((pl.col("end_ns") - pl.col("start_ns")).alias("dur_ns"))
        .drop("end_ns", "alone")
    )


def _with_overlap(comm: pl.DataFrame, cover: Mapping[Key, Intervals]) -> pl.DataFrame:
    """Return the communication with `overlapped_ns`, under compute of its own device, and `exposed_ns`, the rest."""
    # Kernels of one call may run side by side: what two of them share counts for the first.
    ends = pl.col("start_ns") + pl.col("dur_ns")
    reach = ends.cum_max().shift(1).over(*RUN, "device", "call", "alone", order_by="start_ns")
    own = pl.max_horizontal("start_ns", pl.min_horizontal(reach.fill_null(pl.col("start_ns")), ends))
    comm = comm.with_columns(own.alias("own_ns"))
    spans = comm.select(*DEVICE_KEY, pl.col("own_ns").alias("start_ns"), ends.alias("end_ns"))
    hidden = covered_ns(spans, cover).alias("overlapped_ns")
    length = pl.col("start_ns") + pl.col("dur_ns") - pl.col("own_ns")
    return comm.with_columns(hidden).with_columns((length - pl.col("overlapped_ns")).alias("exposed_ns"))


def _calls_with_work(ran: pl.DataFrame, calls: pl.DataFrame, patterns: Patterns) -> pl.DataFrame:
    """Return calls joined with executions: the execution's own arguments first, then the call's, then the name."""
    called = calls.rename({"start_ns": "called_ns", "index": "call_index"}).drop("pid", "tid", "end_ns", "external_ids")
    rows = called.join(ran, on=[*RUN, "call"], how="full", suffix="_ran", nulls_equal=False, coalesce=True)
    by_arg = pl.col("collective").map_elements(names.kind_of, return_dtype=pl.String)
    by_name = pl.col("name").map_elements(lambda name: kind_by_name(name, patterns), return_dtype=pl.String)
    is_span = pl.col("name").str.contains(names.BACKEND_SPAN)
    # Of a damaged file the call may be there too, with its size.
    is_sure = is_span & (pl.col("linked_by") != UNSURE)
    span_numel = pl.when(is_sure).then(pl.col("input_dims").map_elements(first_numel, return_dtype=pl.Int64))
    span_dtype = pl.col("input_type").str.extract(r'^\["([^"]*)"').map_elements(dtype_of, return_dtype=pl.String)
    own_dtype = pl.col("dtype_ran").map_elements(dtype_of, return_dtype=pl.String)
    # A kernel has the size of one collective: of a call that coalesces several, only the call has all.
    has_size = pl.col("in_numel_ran").is_not_null() | pl.col("out_numel_ran").is_not_null()
    own_size = has_size & (pl.col("num_merged").fill_null(1) == 1)
    in_window = pl.when(pl.col("linked_by").ne_missing(BEFORE)).then("start_ns")
    return rows.with_columns(
        pl.coalesce(by_arg, "kind", by_name, pl.lit("other")).alias("kind"),
        pl.when(by_arg.is_not_null()).then(pl.lit("args")).otherwise(
            pl.coalesce("kind_from", pl.when(by_name.is_not_null()).then(pl.lit("name")))
        ).alias("kind_from"),
        pl.when(is_span).then(by_name).otherwise(pl.coalesce(by_arg, "kind", by_name)).alias("backend_kind"),
        pl.when(own_size).then("in_numel_ran").otherwise(pl.coalesce("in_numel", span_numel)).alias("in_numel"),
        pl.when(own_size).then("out_numel_ran").otherwise("out_numel").alias("out_numel"),
        pl.when(own_size).then(pl.lit("args")).otherwise(
            pl.coalesce("sizes_from", pl.when(span_numel.is_not_null()).then(pl.lit("shapes")))
        ).alias("sizes_from"),
        pl.coalesce(own_dtype, "dtype", span_dtype).alias("dtype"),
        *(pl.coalesce(f"{name}_ran", name).alias(name) for name in OF_GROUP),
        pl.coalesce("index", "call_index").alias("index"),
        pl.coalesce("launched_ns", "called_ns").alias("issued_ns"),
        pl.coalesce("launched_ns", "called_ns", in_window).alias("at_ns"),
    )  # fmt: skip


def _with_sizes(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows with payload (all-gather: output; others: input), passes and ring-equivalent wire bytes."""
    gathered = pl.coalesce("out_numel", pl.col("in_numel") * pl.col("group_size"))
    is_gather = pl.col("kind") == "all_gather"
    numel = pl.when(is_gather).then(gathered).otherwise("in_numel")
    # A negative or an astronomical number of elements is damage: it counts as unknown.
    numel = pl.when(numel.is_between(0, MOST_ELEMENTS)).then(numel)
    width = pl.col("dtype").replace_strict(ITEM_SIZES, default=None, return_dtype=pl.Int64)
    nothing = numel == 0
    payload = pl.when(nothing).then(0).otherwise(numel * width)
    passes = pl.col("kind").replace_strict(PASSES, default=None, return_dtype=pl.Int64)
    n = pl.col("group_size").cast(pl.Int64)
    point_to_point = pl.col("kind").is_in(["send", "recv"])
    wire = pl.when(point_to_point).then(payload).otherwise(passes * payload * (n - 1) // n)
    return rows.with_columns(
        pl.when(is_gather).then(numel).otherwise("out_numel").alias("out_numel"),
        numel.cast(pl.Int64).alias("payload_numel"),
        payload.alias("payload_bytes"),
        passes.alias("passes"),
        wire.alias("wire_bytes"),
        pl.when(payload.is_not_null()).then("sizes_from").alias("bytes_from"),
    )
