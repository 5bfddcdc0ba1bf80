"""The same collective matched on all of its ranks, with the time of its transfer and of each rank's wait.

Matched by process group and sequence number where the trace has them (torch 2.12 on), else by order within step, group,
kind and size; the mesh decides which ranks make up a group that the trace does not name. All ranks of an all-gather,
reduce-scatter, all-reduce or all-to-all leave it together, so the rank that came last was in it for the shortest time:
that is the transfer, and what another rank spent beyond it is waiting. Broadcasts, reduces and point-to-point do not
bind their ranks so and get neither.
"""

from __future__ import annotations

import polars as pl

# Kinds that no rank can leave before all ranks have entered.
SYMMETRIC = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")
# Their sizes differ between ranks by nature.
_UNEVEN = ("all_to_all", "send", "recv", "other")


def with_matches(collectives: pl.DataFrame, world_size: int | None) -> pl.DataFrame:
    """Return the collectives with `match`, the same number on all ranks of one, and `num_matched` ranks in it.

    They have `turn`: the step that ranks did together, which need not be its number (see steps.turns). `is_certain` is
    false where ranks have different numbers of them without sequence numbers, or a sequence number occurs twice.
    """
    size = pl.when(pl.col("kind").is_in(_UNEVEN)).then(0).otherwise(pl.coalesce("in_numel", "out_numel", pl.lit(-1)))
    numbered = collectives.with_columns(
        # Names may repeat between groups of an axis, so where the mesh knows the group it decides with the name.
        pl.concat_str("mesh_group", "group", "members", separator=" ", ignore_nulls=True).alias("__group"),
        size.cast(pl.Int64).alias("__size"),
        pl.col("turn").alias("__turn"),
    )
    same = ["cycle", "__turn", "__group", "kind", "__size"]
    nth = pl.int_range(pl.len(), dtype=pl.Int64).over("rank", *same, order_by="issued_ns")
    count = pl.len().over("rank", *same)
    by_order = pl.col("seq").is_null()
    numbered = (
        numbered.with_columns(nth.alias("__nth"), count.alias("__count"))
        .with_columns((~by_order | (pl.col("__count").n_unique().over(same) == 1)).alias("is_certain"))
        .with_columns(pl.when(by_order).then(name).alias(name) for name in ("__turn", "__size", "__nth"))
    )
    key = ["cycle", "__group", "kind", "seq", "__turn", "__size", "__nth"]
    return (
        numbered.with_columns(pl.struct(key).rank("dense").cast(pl.Int64).alias("match"))
        .with_columns(pl.col("rank").n_unique().over("match").cast(pl.Int32).alias("num_matched"))
        .with_columns((pl.col("is_certain") & (pl.len().over("match", "rank") == 1)).alias("is_certain"))
        .with_columns(pl.coalesce("group_size", pl.lit(world_size, pl.Int32)).alias("num_needed"))
        .with_columns(_has_known_ranks(world_size).alias("has_known_ranks"))
        .drop("__group", "__size", "__turn", "__nth", "__count")
    )


def _has_known_ranks(world_size: int | None) -> pl.Expr:
    """Return whether the ranks of the group are known: by its name, by the mesh, or since all ranks are in it."""
    everyone = (pl.col("num_needed") == world_size) if world_size else pl.lit(value=False)
    return pl.any_horizontal(pl.col("group", "members", "mesh_group").is_not_null(), everyone)


def with_waits(matched: pl.DataFrame) -> pl.DataFrame:
    """Return the matched collectives with `transfer_ns` and `wait_ns`.

    Both are null where a rank of the group is missing or it is not known which ranks make it up, and where it is not
    certain that the ranks met in this one.
    """
    all_here = (pl.col("num_matched") >= 2) & (pl.col("num_matched") == pl.col("num_needed"))
    whole = pl.col("kind").is_in(SYMMETRIC) & all_here & pl.col("is_certain") & pl.col("has_known_ranks")
    shortest = pl.col("dur_ns").min().over("match")
    ran = pl.col("dur_ns").is_not_null().all().over("match")
    transfer = pl.when(whole & ran).then(shortest)
    return matched.with_columns(transfer.alias("transfer_ns"), (pl.col("dur_ns") - transfer).alias("wait_ns"))
