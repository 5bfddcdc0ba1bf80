"""The same collective on all of its ranks: who waited for whom, and what the transfer itself took.

Matched by process group and sequence number where the trace has them (torch 2.12 on), else by order within step, group,
kind and size; the mesh tells which ranks make up a group that the trace does not name. All ranks of an all-gather,
reduce-scatter, all-reduce or all-to-all leave it together, so the rank that came last was in it for the shortest time:
that is the transfer, and what another rank spent beyond it is waiting. Broadcasts, reduces and point-to-point do not
bind their ranks so and get neither.
"""

from __future__ import annotations

import polars as pl

# Kinds that no rank can leave before all have come.
SYMMETRIC = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")
# Their sizes differ between ranks by nature.
_UNEVEN = ("all_to_all", "send", "recv", "other")


def with_matches(collectives: pl.DataFrame, world_size: int | None) -> pl.DataFrame:
    """Return the collectives with `match`, the same number on all ranks of one, and `num_matched` ranks in it.

    They come with `turn`: the step by what ranks did together, which need not be its number (see steps.turns). Where
    ranks have different numbers of them and no sequence number tells which is missing, or a number comes twice,
    `is_certain` is false.
    """
    size = pl.when(pl.col("kind").is_in(_UNEVEN)).then(0).otherwise(pl.coalesce("in_numel", "out_numel", pl.lit(-1)))
    numbered = collectives.with_columns(
        # Names may repeat between groups of an axis, so where the mesh tells the group it decides with the name.
        pl.concat_str("mesh_group", "group", separator=" ", ignore_nulls=True).alias("__group"),
        size.cast(pl.Int64).alias("__size"),
        pl.col("turn").alias("__turn"),
    )
    place = ["cycle", "__turn", "__group", "kind", "__size"]
    nth = pl.int_range(pl.len(), dtype=pl.Int64).over("rank", *place, order_by="issued_ns")
    count = pl.len().over("rank", *place)
    by_order = pl.col("seq").is_null()
    numbered = (
        numbered.with_columns(nth.alias("__nth"), count.alias("__count"))
        .with_columns((~by_order | (pl.col("__count").n_unique().over(place) == 1)).alias("is_certain"))
        .with_columns(pl.when(by_order).then(name).alias(name) for name in ("__turn", "__size", "__nth"))
    )
    key = ["cycle", "__group", "kind", "seq", "__turn", "__size", "__nth"]
    return (
        numbered.with_columns(pl.struct(key).rank("dense").cast(pl.Int64).alias("match"))
        .with_columns(pl.col("rank").n_unique().over("match").cast(pl.Int32).alias("num_matched"))
        .with_columns((pl.col("is_certain") & (pl.len().over("match", "rank") == 1)).alias("is_certain"))
        .with_columns(pl.coalesce("group_size", pl.lit(world_size, pl.Int32)).alias("num_needed"))
        .with_columns(_is_told(world_size).alias("is_told"))
        .drop("__group", "__size", "__turn", "__nth", "__count")
    )


def _is_told(world_size: int | None) -> pl.Expr:
    """Whether it is known which ranks make up the group: by its name, by the mesh, or since all ranks do."""
    everyone = (pl.col("num_needed") == world_size) if world_size else pl.lit(value=False)
    return pl.col("group").is_not_null() | pl.col("mesh_group").is_not_null() | everyone


def with_waits(matched: pl.DataFrame) -> pl.DataFrame:
    """Return the matched collectives with `transfer_ns` and `wait_ns`.

    Both are null where a rank of the group is missing or it is not known which ranks make it up, and where it is not
    certain that the ranks met in this one.
    """
    all_here = (pl.col("num_matched") >= 2) & (pl.col("num_matched") == pl.col("num_needed"))
    whole = pl.col("kind").is_in(SYMMETRIC) & all_here & pl.col("is_certain") & pl.col("is_told")
    shortest = pl.col("dur_ns").min().over("match")
    ran = pl.col("dur_ns").is_not_null().all().over("match")
    transfer = pl.when(whole & ran).then(shortest)
    return matched.with_columns(transfer.alias("transfer_ns"), (pl.col("dur_ns") - transfer).alias("wait_ns"))
