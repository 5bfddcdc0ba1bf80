"""The same collective matched on all of its ranks, with the time of its transfer and of each rank's wait.

Matched by process group and sequence number where the trace has them (torch 2.12 on), else by order within step, group,
kind and size; the mesh decides which ranks make up a group that the trace does not name. All ranks of an all-gather,
reduce-scatter, all-reduce or all-to-all leave it together, so the rank that came last was in it for the shortest time:
that is the transfer, and what another rank spent beyond it is waiting. So it is with a send and its recv, which source,
destination and order bring together. Broadcasts and reduces do not bind their ranks so and get neither.
"""

from __future__ import annotations

import polars as pl

# Kinds that no rank can leave before all ranks have entered.
SYMMETRIC = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")
# Their sizes differ between ranks by nature.
_UNEVEN = ("all_to_all", "send", "recv", "other")
SEQ_DIFFERS = "order: Seq differs between ranks"


def with_matches(collectives: pl.DataFrame, world_size: int | None) -> pl.DataFrame:
    """Return the collectives with `match`, the same number on all ranks of one, `num_matched` ranks and `matched_by`.

    They have `turn`: the step that ranks did together, which need not be its number (see steps.turns). `is_certain` is
    false where ranks have different numbers of them without sequence numbers, or a sequence number occurs twice.
    """
    size = pl.when(pl.col("kind").is_in(_UNEVEN)).then(0).otherwise(pl.coalesce("in_numel", "out_numel", pl.lit(-1)))
    # Names may repeat between groups of an axis, so where the mesh knows the group it decides with the name.
    group = pl.concat_str("mesh_group", "group", "members", separator=" ", ignore_nulls=True)
    numbered = _paired(collectives).with_columns(
        pl.when(pl.col("pair").is_null()).then(group).otherwise("group").alias("__group"),
        pl.when(pl.col("pair").is_null()).then("kind").otherwise(pl.lit("pair")).alias("__kind"),
        size.cast(pl.Int64).alias("__size"),
        pl.col("turn").alias("__turn"),
    )
    numbered = _with_seq(numbered)
    same = ["cycle", "__turn", "__group", "__kind", "pair", "__size"]
    nth = pl.int_range(pl.len(), dtype=pl.Int64).over("rank", *same, order_by=["issued_ns", "call"])
    count = pl.len().over("rank", *same)
    by_order = pl.col("__seq").is_null()
    numbered = (
        numbered.with_columns(nth.alias("__nth"), count.alias("__count"))
        .with_columns((~by_order | (pl.col("__count").n_unique().over(same) == 1)).alias("is_certain"))
        .with_columns(pl.when(by_order).then(name).alias(name) for name in ("__turn", "__size", "__nth"))
    )
    key = ["cycle", "__group", "__kind", "pair", "__seq", "__turn", "__size", "__nth"]
    is_pair = pl.col("pair").is_not_null()
    one_size = ~is_pair | (pl.coalesce("in_numel", "out_numel").n_unique().over("match") == 1)
    once = pl.len().over("match", "rank") == 1
    needed = (
        pl.when(is_pair).then(pl.lit(2, pl.Int32)).otherwise(pl.coalesce("group_size", pl.lit(world_size, pl.Int32)))
    )
    return (
        numbered.with_columns(pl.struct(key).rank("dense").cast(pl.Int64).alias("match"))
        .with_columns(pl.col("rank").n_unique().over("match").cast(pl.Int32).alias("num_matched"))
        .with_columns((pl.col("is_certain") & once & one_size).alias("is_certain"), needed.alias("num_needed"))
        .with_columns(
            _has_known_ranks(world_size).alias("has_known_ranks"),
            pl.when(pl.col("num_matched") > 1).then(_matched_by()).alias("matched_by"),
        )
        .drop("__group", "__kind", "__size", "__turn", "__nth", "__count", "__seq", "__differs")
    )


def _matched_by() -> pl.Expr:
    return (
        pl.when(pl.col("pair").is_not_null()).then(pl.lit("peer"))
        .when("__differs").then(pl.lit(SEQ_DIFFERS))
        .when(pl.col("__seq").is_not_null()).then(pl.lit("seq"))
        .otherwise(pl.lit("order"))
    )  # fmt: skip


def _paired(collectives: pl.DataFrame) -> pl.DataFrame:
    """Return the collectives with `pair`, source and destination of a send or recv ("0 to 1"); null where not known.

    A rank outside its group's members, or its own, is taken for a place in the group; in a group of two the peer is
    the other one.
    """
    is_send = pl.col("kind") == "send"
    point_to_point = collectives.filter(pl.col("kind").is_in(["send", "recv"]))
    if point_to_point.is_empty():
        return collectives.with_columns(pl.lit(None, pl.String).alias("pair"))
    told = pl.when(is_send).then("dst_rank").otherwise("src_rank")
    members = pl.col("members").str.split(", ").list.eval(pl.element().cast(pl.Int64, strict=False))
    rank = pl.col("rank").cast(pl.Int64)
    in_group = members.list.contains(told) & (told != rank)
    by_place = members.list.get(told.clip(0), null_on_oob=True)
    other = pl.when(members.list.len() == 2).then(members.list.sum() - rank)
    peer = pl.when(told.is_null()).then(other).when(in_group | members.is_null()).then(told).otherwise(by_place)
    pair = pl.when(is_send).then(pl.format("{} to {}", rank, peer)).otherwise(pl.format("{} to {}", peer, rank))
    paired = collectives.with_columns(
        pl.when(pl.col("kind").is_in(["send", "recv"]), peer.is_not_null()).then(pair).alias("pair")
    )
    return paired if _agree(paired) else paired.with_columns(
        pl.when(pl.col("members").is_not_null()).then("pair").alias("pair")
    )  # fmt: skip


def _agree(paired: pl.DataFrame) -> bool:
    """Return whether peers of groups without members are ranks, and not places in groups: sends and recvs then meet.

    That takes each pair of ranks of which both were recorded to have as many sends as recvs in each step that both
    ranks have, and none to be one rank alone.
    """
    bare = paired.filter(pl.col("members").is_null(), pl.col("pair").is_not_null())
    if bare.is_empty():
        return True
    ends = pl.col("pair").str.split(" to ").list.eval(pl.element().cast(pl.Int64))
    sides = bare.with_columns(ends.list.get(0).alias("from"), ends.list.get(1).alias("to"))
    if (sides["from"] == sides["to"]).any():
        return False
    here = paired["rank"].unique().to_list()
    both = sides.filter(pl.col("from").is_in(here), pl.col("to").is_in(here))
    turns = paired.group_by("cycle", "turn").agg(pl.col("rank").n_unique().alias("ranks"))
    whole = turns.filter(pl.col("ranks") == len(here)).select("cycle", "turn")
    counts = (
        both.join(whole, on=["cycle", "turn"], how="semi", nulls_equal=True)
        .group_by("cycle", "turn", "pair")
        .agg((pl.col("kind") == "send").sum().alias("sends"), (pl.col("kind") == "recv").sum().alias("recvs"))
    )
    return bool((counts["sends"] == counts["recvs"]).all())


def _with_seq(numbered: pl.DataFrame) -> pl.DataFrame:
    """Return the rows with `__seq`, the number that ranks share, and `__differs` where they do not share it.

    Each rank counts its collectives itself. Where the same calls of a step have other numbers on other ranks, and never
    the same ones, order tells which belong together. Sends and recvs have a counter of their own on each side.
    """
    of_ranks = pl.col("seq").is_not_null() & pl.col("pair").is_null()
    told = numbered.filter(of_ranks)
    where = ["cycle", "__group"]
    if told.is_empty() or told["rank"].n_unique() == 1:
        seq = pl.when(pl.col("pair").is_null()).then("seq").alias("__seq")
        return numbered.with_columns(seq, pl.lit(value=False).alias("__differs"))
    in_order = told.sort("issued_ns", "call")
    texts = [pl.concat_str("kind", "__size", separator=" ").str.join(",").alias("calls"), pl.col("seq").alias("seqs")]
    lists = in_order.group_by(*where, "__turn", "rank", maintain_order=True).agg(texts)
    at_once = pl.len() > 1
    shared = told.group_by(*where, "seq").agg(pl.col("rank").n_unique()).group_by(where).agg(
        (pl.col("rank") > 1).any().alias("any_shared")
    )  # fmt: skip
    turns = lists.group_by(*where, "__turn").agg(
        (at_once & (pl.col("calls").n_unique() == 1)).alias("alike"),
        (pl.col("seqs").list.eval(pl.element().cast(pl.String)).list.join(",").n_unique() == 1).alias("equal"),
        at_once.alias("several"),
    )
    verdict = turns.join(shared, on=where, nulls_equal=True).group_by(where).agg(
        (
            (pl.col("alike") & ~pl.col("equal") & (pl.col("__turn").is_not_null() | ~pl.col("any_shared"))).any()
            & ~(pl.col("several") & pl.col("equal")).any()
        ).alias("__differs")
    )  # fmt: skip
    joined = numbered.join(verdict, on=where, how="left", nulls_equal=True, maintain_order="left")
    differs = pl.col("__differs").fill_null(value=False) & of_ranks
    return joined.with_columns(differs.alias("__differs")).with_columns(
        pl.when(of_ranks & ~pl.col("__differs")).then("seq").alias("__seq")
    )


def _has_known_ranks(world_size: int | None) -> pl.Expr:
    """Return whether the ranks of the group are known: by its name, by the mesh, or since all ranks are in it."""
    everyone = (pl.col("num_needed") == world_size) if world_size else pl.lit(value=False)
    return pl.any_horizontal(pl.col("group", "members", "mesh_group", "pair").is_not_null(), everyone)


def with_waits(matched: pl.DataFrame) -> pl.DataFrame:
    """Return the matched collectives with `transfer_ns` and `wait_ns`.

    Both are null where a rank of the group is missing or it is not known which ranks make it up, and where it is not
    certain that the ranks met in this one.
    """
    all_here = (pl.col("num_matched") >= 2) & (pl.col("num_matched") == pl.col("num_needed"))
    binds = pl.col("kind").is_in(SYMMETRIC) | pl.col("pair").is_not_null()
    whole = binds & all_here & pl.col("is_certain") & pl.col("has_known_ranks")
    shortest = pl.col("dur_ns").min().over("match")
    ran = pl.col("dur_ns").is_not_null().all().over("match")
    transfer = pl.when(whole & ran).then(shortest)
    return matched.with_columns(transfer.alias("transfer_ns"), (pl.col("dur_ns") - transfer).alias("wait_ns"))
