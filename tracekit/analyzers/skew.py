"""Waits of ranks for one another: collectives on all of their ranks and one clock, stragglers, clocks of hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from tracekit import common_columns as c
from tracekit.analyzers.complete_steps import of_complete_steps
from tracekit.model.collectives.matching import SYMMETRIC
from tracekit.model.steps import turns
from tracekit.table_schema import Column, Schema

if TYPE_CHECKING:
    from tracekit.model.run import Run

SKEW_SCHEMA = Schema(
    c.STEP,
    c.KIND,
    c.GROUP,
    c.SEQ.but(
        meaning="Sequence number of the collective in its group or, where the trace has none, its place in this table.",
        null="",
    ),
    c.RANK,
    c.START_NS.but(meaning="When it began on this rank, since the epoch, on the clock of the first host."),
    c.DUR_NS,
    c.TRANSFER_NS,
    c.WAIT_NS,
    Column("last_rank", pl.Int32, "Rank that came last: the one with the least wait.", "as `transfer_ns`"),
)
CLOCKS_SCHEMA = Schema(
    c.HOST.but(meaning="Name of the machine; a rank of an unknown host is a host of its own (`rank 3`).", null=""),
    Column("reference", pl.String, "Host of the lowest rank, whose clock the others are held against."),
    Column("offset_ns", pl.Int64, "How far its clock is ahead: the median over the ends of matched collectives."),
    Column(
        "spread_ns",
        pl.Int64,
        "Widest distance of one collective from that median: no shorter wait between hosts is reliable.",
    ),
    c.NUM_COLLECTIVES.but(meaning="Number of matched collectives that the offset rests on."),
)
MISMATCHES_SCHEMA = Schema(
    c.STEP,
    c.KIND,
    c.GROUP,
    c.IN_NUMEL,
    c.RANK,
    c.NUM_COLLECTIVES.but(meaning="Number of such collectives on this rank."),
    Column("num_elsewhere", pl.Int64, "Number that most ranks have."),
)
STRAGGLERS_SCHEMA = Schema(
    c.RANK,
    Column(
        "num_last",
        pl.Int64,
        "Number of collectives to which it came last, none where no wait exceeds the spread between the two hosts.",
    ),
    Column(
        "num_left_out",
        pl.Int64,
        "Number of them that have no last rank: no wait in them exceeds the spread of clocks, their step is not "
        "complete on all ranks, or they are the first and hold seconds of waiting.",
    ),
    c.NUM_COLLECTIVES.but(meaning="Number of collectives that were matched on all of their ranks."),
    Column("waited_ns", pl.Int64, "Time that it waited for others, in the steps that all ranks have in full."),
    Column(
        "made_others_wait_ns",
        pl.Int64,
        "Over the collectives to which it came last: how long the longest-waiting other rank waited.",
    ),
)
# A first collective that holds this much waiting, and so many times the usual, shows when recordings began.
_START_NS = 1_000_000_000
_TIMES_USUAL = 10
# Ranks leave these together, so their ends are the same instant on every clock.
_COMMON_END = ("all_gather", "reduce_scatter", "all_reduce")


def skew(run: Run) -> pl.DataFrame:
    """Each matched collective on each of its ranks, ordered by time: SKEW_SCHEMA.

    `start_ns` is on the clock of the first host (see :func:`clocks`). `seq` is the trace's sequence number or, without
    one, the order of the collective in the table. `last_rank` is the rank that came last, the one with the least wait;
    it, `transfer_ns` and `wait_ns` are null where a rank of the group is missing or the kind does not bind its ranks.
    """
    return _met(run).select(pl.col(name).cast(dtype) for name, dtype in SKEW_SCHEMA.items())


def _met(run: Run) -> pl.DataFrame:
    """SKEW_SCHEMA and `match`, the same number on all ranks of one collective."""
    matched = _matched(run)
    last = pl.col("rank").sort_by("dur_ns", "rank").first().over("match")
    begin = pl.col("start_ns").min().over("match")
    shared = pl.when(pl.col("matched_by") == "seq").then("seq")
    return (
        matched.with_columns(
            (pl.col("start_ns") - pl.col("offset_ns")).alias("start_ns"),
            pl.when(pl.col("transfer_ns").is_not_null()).then(last).alias("last_rank"),
        )
        .with_columns(begin.alias("begin"))
        .sort("begin", "match", "rank")
        .with_columns(pl.coalesce(shared, pl.struct("begin", "match").rle_id()).alias("seq"))
    )


def clocks(run: Run) -> pl.DataFrame:
    """Offset of each host's clock from the first host's, by the common ends of matched collectives: CLOCKS_SCHEMA.

    A wait between hosts that is shorter than the spread cannot be told from clock error. Ranks of an unknown host count
    as hosts of their own ("rank 3").
    """
    ahead = _ahead(run)
    center = _middle("ahead")
    return (
        ahead.group_by("host", "reference")
        .agg(
            center.alias("offset_ns"),
            (pl.col("ahead") - center).abs().max().alias("spread_ns"),
            pl.len().alias("num_collectives"),
        )
        .sort("host")
        .select(pl.col(name).cast(dtype) for name, dtype in CLOCKS_SCHEMA.items())
    )


def _ahead(run: Run) -> pl.DataFrame:
    """By collective and host, how far the host's clock is ahead of the reference's: match, host, reference, ahead.

    Nothing is a float: nanoseconds since the epoch are beyond what one holds. Ranks of one host have one clock, so
    their common end is the mean of theirs.
    """
    ends = _ends(run)
    if ends.is_empty():
        return pl.DataFrame(schema={"match": pl.Int64, "host": pl.String, "reference": pl.String, "ahead": pl.Int64})
    reference = ends.sort("rank")["host"][0]
    since = pl.col("end_ns") - pl.col("end_ns").min().over("match")
    of_hosts = (
        ends.with_columns(since.alias("end_ns")).group_by("match", "host").agg(pl.col("end_ns").sum() // pl.len())
    )
    base = of_hosts.filter(pl.col("host") == reference).select("match", pl.col("end_ns").alias("base_ns"))
    return of_hosts.join(base, on="match").select(
        "match", "host", pl.lit(reference).alias("reference"), (pl.col("end_ns") - pl.col("base_ns")).alias("ahead")
    )


def _middle(column: str) -> pl.Expr:
    """Median of integers as an integer: of two in the middle their mean, rounded down."""
    count = pl.col(column).len()
    return pl.col(column).sort().slice((count - 1) // 2, 2 - count % 2).sum() // (2 - count % 2)


def _spreads(run: Run, pairs: pl.DataFrame) -> pl.DataFrame:
    """The pairs (host, last_host) with `spread_ns`: how far one collective's ends show them from their offsets.

    Null for hosts whose clocks no collective compares; one host has one clock.
    """
    ahead = _ahead(run)
    apart = ahead.with_columns((pl.col("ahead") - _middle("ahead").over("host")).alias("apart"))
    by_host = dict(apart.select("match", "host", "apart").partition_by("host", as_dict=True).items())
    rows: list[tuple[str, str, int | None]] = []
    for host, last_host in pairs.select("host", "last_host").unique().iter_rows():
        one, other = by_host.get((host,)), by_host.get((last_host,))
        if host == last_host:
            rows.append((host, last_host, 0))
        elif one is not None and other is not None:
            both = one.join(other, on="match")
            widest = (both["apart"] - both["apart_right"]).abs().max()
            rows.append((host, last_host, None if widest is None else int(str(widest))))
    schema = {"host": pl.String, "last_host": pl.String, "spread_ns": pl.Int64}
    return pl.DataFrame(rows, schema=schema, orient="row")


def stragglers(run: Run) -> pl.DataFrame:
    """How often each rank came last, how long it waited, and how long the longest-waiting other rank waited for it.

    Of the steps that all ranks have in full. A collective in which nobody waited longer than the spread between the two
    hosts' clocks has no last rank; neither has the first one if it held seconds of waiting (see :func:`start_wait`).
    """
    everything = _met(run).drop_nulls("transfer_ns")
    first = start_wait(run)
    is_start = pl.lit(value=False) if first is None else pl.col("match") == first["match"]
    ranked = of_complete_steps(run, everything).filter(~is_start)
    hosts = ranked.select(pl.col("rank").alias("last_rank"), pl.col("host").alias("last_host")).unique()
    ranked = ranked.join(hosts, on="last_rank", how="left", maintain_order="left")
    ranked = ranked.join(_spreads(run, ranked), on=["host", "last_host"], how="left", maintain_order="left")
    told = pl.col("wait_ns") > pl.col("spread_ns").fill_null(clocks(run)["spread_ns"].max() or 0)
    longest = pl.col("wait_ns").filter(told).max().over("match")
    is_last = pl.col("longest").is_not_null() & (pl.col("rank") == pl.col("last_rank"))
    return (
        everything.group_by("rank")
        .agg(pl.len().alias("num_collectives"))
        .join(
            ranked.with_columns(longest.alias("longest"))
            .group_by("rank")
            .agg(
                is_last.sum().alias("num_last"),
                pl.col("longest").count().alias("num_told"),
                pl.col("wait_ns").sum().alias("waited_ns"),
                pl.col("longest").filter(is_last).sum().alias("made_others_wait_ns"),
            ),
            on="rank",
            how="left",
        )
        .with_columns(pl.exclude("rank").fill_null(0))
        .with_columns((pl.col("num_collectives").cast(pl.Int64) - pl.col("num_told")).alias("num_left_out"))
        .sort("rank")
        .select(pl.col(name).cast(dtype) for name, dtype in STRAGGLERS_SCHEMA.items())
    )


def start_wait(run: Run) -> dict[str, Any] | None:
    """The longest wait in the run's first collective (match, kind, step, rank, wait_ns), if it is of another order.

    A second or more, and ten times what is usual: a profiler that started later, or set-up, rather than a slow rank.
    """
    table = _met(run).drop_nulls("wait_ns")
    if table.is_empty():
        return None
    longest = table.sort("wait_ns", descending=True, maintain_order=True).unique("match", keep="first").sort("begin")
    usual = longest["wait_ns"][1:].median()
    first = longest.row(0, named=True)
    return first if first["wait_ns"] >= max(_START_NS, _TIMES_USUAL * int(str(usual or 0).partition(".")[0])) else None


def mismatches(run: Run) -> pl.DataFrame:
    """Collectives of which ranks recorded different numbers in a step: MISMATCHES_SCHEMA.

    One row for each rank that has another number than most ranks (`num_elsewhere`). No waits are computed for these.
    """
    rows = run.collectives.join(
        turns(run.steps).select("rank", "cycle", "step", "turn"),
        on=["rank", "cycle", "step"],
        how="left",
        nulls_equal=True,
    )
    same = ["cycle", "turn", "group", "kind", "in_numel"]
    counts = (
        rows.filter(pl.col("seq").is_null(), pl.col("kind").is_in(SYMMETRIC), pl.col("kind") != "all_to_all")
        .group_by(*same, "rank")
        .agg(pl.col("step").first(), pl.len().alias("num_collectives"))
    )
    usual = counts.group_by(same).agg(pl.col("num_collectives").mode().min().alias("num_elsewhere"))
    return (
        counts.join(usual, on=same, nulls_equal=True)
        .filter(pl.col("num_collectives") != pl.col("num_elsewhere"))
        .sort("step", "kind", "group", "in_numel", "rank")
        .select(pl.col(name).cast(dtype) for name, dtype in MISMATCHES_SCHEMA.items())
    )


def _matched(run: Run) -> pl.DataFrame:
    """Collectives that ran, seen on more than one rank, with their host and its clock's offset."""
    offsets = run.table("clocks").select("host", "offset_ns")
    return (
        _with_host(run, run.collectives)
        .filter(pl.col("dur_ns").is_not_null(), pl.col("num_matched") > 1)
        .join(offsets, on="host", how="left")
        .with_columns(pl.col("offset_ns").fill_null(0))
    )


def _ends(run: Run) -> pl.DataFrame:
    # Without a transfer time it is not certain that the ranks met in this one, and its ends say nothing of clocks.
    rows = run.collectives.filter(pl.col("transfer_ns").is_not_null(), pl.col("kind").is_in(_COMMON_END))
    return _with_host(run, rows).select(
        "rank", "host", "match", (pl.col("start_ns") + pl.col("dur_ns")).alias("end_ns")
    )


def _with_host(run: Run, rows: pl.DataFrame) -> pl.DataFrame:
    hosts = run.ranks.drop_nulls("num_events").select("rank", "host").unique("rank")
    own = pl.format("rank {}", "rank")
    return rows.join(hosts, on="rank", how="left", maintain_order="left").with_columns(
        pl.coalesce("host", own).alias("host")
    )
