"""Marks of a pipeline's schedule in a trace, and the stage of each rank.

The names are those of torch.distributed.pipelining (schedules.py): GPipe marks `Forward 0` and `Backward 0`, schedules
with several stages a rank `PP:0F0` (stage 0, forward of micro-batch 0; B is a whole backward, I and W are its halves).
1F1B marks nothing.
"""

from __future__ import annotations

import polars as pl

_ALONE = r"^(Forward|Backward) (\d+)$"
_ACTION = r"^PP::?(\d+)([FBIW])(\d+)$"
MARKS_SCHEMA = pl.Schema(
    {
        "rank": pl.Int32,
        "cycle": pl.Int32,
        "stage": pl.Int64,
        "micro_batch": pl.Int64,
        "phase": pl.String,
        "start_ns": pl.Int64,
        "end_ns": pl.Int64,
    }
)


def pipeline_marks(events: pl.DataFrame) -> pl.DataFrame:
    """Forward and backward of each micro-batch as the schedule's marks have them: MARKS_SCHEMA, by start.

    The stage is null where the mark names none.
    """
    name = pl.col("name")
    forward = name.str.starts_with("Forward") | (name.str.extract(_ACTION, 2) == "F")
    number = pl.coalesce(name.str.extract(_ALONE, 2), name.str.extract(_ACTION, 3))
    return (
        events.filter(pl.col("cat") == "user_annotation", pl.col("ph") == "X", pl.col("dur_ns") > 0)
        .filter(name.str.contains(_ALONE) | name.str.contains(_ACTION))
        .select(
            "rank",
            "cycle",
            name.str.extract(_ACTION, 1).cast(pl.Int64, strict=False).alias("stage"),
            number.cast(pl.Int64, strict=False).alias("micro_batch"),
            pl.when(forward).then(pl.lit("forward")).otherwise(pl.lit("backward")).alias("phase"),
            pl.col("ts_ns").alias("start_ns"),
            (pl.col("ts_ns") + pl.col("dur_ns")).alias("end_ns"),
        )
        .drop_nulls("micro_batch")
        .cast(MARKS_SCHEMA)  # type: ignore[arg-type]
        .sort("rank", "cycle", "start_ns")
    )


def stages(marks: pl.DataFrame, collectives: pl.DataFrame) -> dict[int, int]:
    """The stage of each rank that has one; ranks whose stage is unknown, or that have several, are left out.

    By the marks where they name stages. Else by sends and the recvs that they meet: of two ranks the one comes first
    that begins by sending to the other, which begins by receiving. Ranks that do not form lines (a ring, a tree), or
    that begin with an exchange, have no stage.
    """
    named = marks.drop_nulls("stage").group_by("rank").agg(pl.col("stage").unique())
    if named.height:
        return {rank: of_rank[0] for rank, of_rank in named.iter_rows() if len(of_rank) == 1}
    return _by_peers(collectives)


def _by_peers(collectives: pl.DataFrame) -> dict[int, int]:
    matched = collectives.filter(pl.col("matched_by") == "peer", pl.col("kind").is_in(["send", "recv"]))
    others = matched.select("match", pl.col("rank").alias("peer"))
    own = matched.join(others, on="match").filter(pl.col("rank") != pl.col("peer"))
    begun = pl.coalesce("batch", "call", "index")
    first = own.group_by("rank", "peer").agg(
        pl.col("kind").filter(begun == begun.sort_by("issued_ns").first()).unique()
    )
    if first["kind"].list.len().gt(1).any():
        return {}
    sends = first["kind"].list.contains("send")
    before = pl.Series(first["rank"]).zip_with(sends, first["peer"]).to_list()
    after = pl.Series(first["peer"]).zip_with(sends, first["rank"]).to_list()
    return _lines(sorted(set(zip(before, after, strict=True))))


def _lines(pairs: list[tuple[int, int]]) -> dict[int, int]:
    """Place of each rank in its line, given who comes right before whom; empty where that is not lines alone."""
    following = dict(pairs)
    if (
        set(pairs) & {(b, a) for a, b in pairs}
        or len(following) < len(pairs)
        or len(set(following.values())) < len(pairs)
    ):
        return {}
    found: dict[int, int] = {}
    for first in set(following) - set(following.values()):
        rank, place = first, 0
        while rank is not None:
            found[rank] = place
            rank, place = following.get(rank), place + 1
    return found if set(found) == {*following, *following.values()} else {}
