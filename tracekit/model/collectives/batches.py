"""Calls whose kernel is launched when their group ends: batched point-to-point, coalesced collectives.

Inside ``batch_isend_irecv`` and ``_coalescing_manager`` calls launch nothing; at the end NCCL launches one kernel,
outside of all of them. It belongs to the calls before it on its thread that have no kernel, since the last
communication that was launched there. The first of them has the kernel, the others its times.
"""

from __future__ import annotations

from bisect import bisect_left

import polars as pl

from tracekit.model import names
from tracekit.model.recordings import RUN

_POINT_TO_POINT = ("send", "recv")


def with_batches(rows: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Return device rows with the `call` of kernels that a group launched: the first call of the group.

    `rows` have index, name, call, launched_ns, launched_tid and `is_comm`.
    """
    launches = rows.filter("is_comm", pl.col("launched_ns").is_not_null()).sort("launched_ns")
    orphans = launches.filter(pl.col("call").is_null())
    if orphans.is_empty() or calls.is_empty():
        return rows
    without = calls.join(rows.drop_nulls("call"), on=[*RUN, "call"], how="anti").sort("start_ns")
    key = [*RUN, "launched_tid"]
    threads = launches.partition_by(key, as_dict=True)
    waiting = without.partition_by([*RUN, "tid"], as_dict=True)
    found: list[tuple[object, ...]] = []
    for thread, kernels in orphans.partition_by(key, as_dict=True).items():
        if thread in waiting:
            others = threads[thread]["launched_ns"].to_list()
            found += [(*thread[:2], *pair) for pair in _first_calls(kernels, others, waiting[thread])]
    first = pl.DataFrame(
        found, schema=[*((n, rows.schema[n]) for n in (*RUN, "index")), ("first", pl.Int64)], orient="row"
    )
    joined = rows.join(first, on=[*RUN, "index"], how="left", maintain_order="left")
    return joined.with_columns(pl.coalesce("call", "first").alias("call")).drop("first")


def _first_calls(kernels: pl.DataFrame, launches: list[int], calls: pl.DataFrame) -> list[tuple[int, int]]:
    """Return index and first call of the kernels of one thread, which has these launches and calls without a kernel."""
    found: list[tuple[int, int]] = []
    for index, name, at in kernels.select("index", "name", "launched_ns").iter_rows():
        before = bisect_left(launches, at) - 1
        since = launches[before] if before >= 0 else None
        group = _of_kind(_between(calls, since, at), names.kind_of(name))
        if group.height:
            found.append((index, group["call"][0]))
    return found


def _between(calls: pl.DataFrame, since: int | None, until: int) -> pl.DataFrame:
    first = 0 if since is None else calls["start_ns"].search_sorted(since)
    near = calls[int(first) : int(calls["start_ns"].search_sorted(until, side="right"))]
    return near.filter(pl.col("end_ns") <= until)


def _of_kind(calls: pl.DataFrame, kind: str | None) -> pl.DataFrame:
    """Return the calls that a kernel of this kind carries out: those of its kind where there are any, else all."""
    kinds = (*_POINT_TO_POINT, "all_to_all") if kind in ("other", *_POINT_TO_POINT) else (kind,)
    alike = calls.filter(pl.col("kind").is_in(kinds))
    return alike if alike.height else calls


def batched(ran: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Return what ran with a row for each further call of a batch, and `batch`: the number of its first call.

    All rows of a batch have its start and duration; that time is counted as overlapped or exposed once, by the first.
    """
    own = calls.select(*RUN, "call", "tid", "kind", pl.col("start_ns").alias("called_ns"), "end_ns")
    led = ran.drop_nulls("call").join(own, on=[*RUN, "call"]).filter(pl.col("launched_ns") >= pl.col("end_ns"))
    ran = ran.with_columns(pl.lit(None, pl.Int64).alias("batch"))
    if led.is_empty():
        return ran
    without = own.join(ran.drop_nulls("call"), on=[*RUN, "call"], how="anti").sort("called_ns")
    waiting = without.rename({"called_ns": "start_ns"}).partition_by([*RUN, "tid"], as_dict=True)
    pairs: list[tuple[int, int, int, int]] = []
    for rank, cycle, tid, call, name, since, at in led.select(
        *RUN, "tid", "call", "name", "called_ns", "launched_ns"
    ).iter_rows():
        if (rank, cycle, tid) in waiting:
            further = _of_kind(_between(waiting[rank, cycle, tid], since, at), names.kind_of(name))["call"]
            pairs += [(rank, cycle, call, other) for other in further]
    schema = {**{name: ran.schema[name] for name in RUN}, "call": pl.Int64, "other": pl.Int64}
    further = pl.DataFrame(pairs, schema=schema, orient="row")
    nothing = [pl.lit(None, ran.schema[name]).alias(name) for name in _OF_ONE if name in ran.columns]
    others = (
        further.join(ran, on=[*RUN, "call"])
        .with_columns(pl.col("call").alias("batch"), pl.col("other").alias("call"), *nothing)
        .with_columns(
            pl.lit(None, pl.Int64).alias("index"), pl.lit(0).alias("overlapped_ns"), pl.lit(0).alias("exposed_ns")
        )
        .select(ran.columns)
        .cast(ran.schema)  # type: ignore[arg-type]
    )
    is_first = pl.struct(*RUN, "call").is_in(further.select(pl.struct(*RUN, "call")).unique().to_series().implode())
    # What a kernel's own arguments tell is of one of its calls at most.
    of_batch = [pl.when(~is_first).then(name).alias(name) for name in _OF_ONE if name in ran.columns]
    return pl.concat([ran.with_columns(pl.when(is_first).then("call").alias("batch"), *of_batch), others])


_OF_ONE = ("collective", "in_numel", "out_numel", "dtype", "src_rank", "dst_rank", "seq")
