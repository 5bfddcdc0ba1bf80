"""The mesh axis and group size of each collective: from its group, FSDP2's annotation around it, or its size.

NCCL traces name the group, and torch names the groups of a device mesh after its axes. gloo traces name none; there
FSDP2's own annotations decide: inside `FSDP::all_gather` and `FSDP::post_backward_reduce` gathers and reduce-scatters
are the shard axis', an all-reduce is the replicate axis', which may have one rank. What is outside of them belongs to
tensor parallelism where the mesh has it, but for the gradient norms of the optimizer step, which go over one axis after
the other.

The ranks of a group follow from its axis and the mesh, which torch fills in row-major order: `mesh_group` tells the
groups of an axis apart where the trace does not name them.
"""

from __future__ import annotations

import math

import polars as pl

from tracekit.manifest import Axis, Manifest
from tracekit.model import names
from tracekit.model.as_of import around
from tracekit.model.recordings import RUN

SHARD, REPLICATE, TENSOR = "dp_shard", "dp_replicate", "tp"
# `axis_from` says how an axis was found: group, annotation, strategy, size (the only axis of it), order, or null.
# DeviceMesh describes the group of an axis as "mesh_dp_shard".
_DESCRIBED = r"^mesh_(?:dim_)?(\w+)$"
# What Megatron calls its groups.
_DESCRIPTIONS = {
    "TENSOR_MODEL_PARALLEL_GROUP": "tp",
    "PIPELINE_MODEL_PARALLEL_GROUP": "pp",
    "CONTEXT_PARALLEL_GROUP": "cp",
    "EXPERT_MODEL_PARALLEL_GROUP": "ep",
    "DATA_PARALLEL_GROUP": "dp",
    "DATA_PARALLEL_GROUP_WITH_CP": "dp",
}


def with_axes(rows: pl.DataFrame, manifest: Manifest | None, annotations: pl.DataFrame) -> pl.DataFrame:
    """Return the rows with `group_size` filled in where it can be known, `axis`, `axis_from` and `mesh_group`.

    Needs kind, phase, in_numel, out_numel, group_desc and at_ns, in the order of issue for the norms.
    """
    axes, mesh = _axes(manifest), manifest.mesh if manifest else []
    rows = _inside(_sized(rows), annotations).with_columns(_described(mesh).alias("axis"))
    found = [
        (pl.col("axis"), "group"),
        (_annotated(mesh), "annotation"),
        (_flat(manifest), "strategy"),
        (_only(axes), "size"),
        (_outside(axes), "order"),
    ]
    for axis, source in found[1:]:
        rows = rows.with_columns(
            pl.coalesce("axis", axis).alias("axis"),
            pl.when(pl.col("axis").is_null(), axis.is_not_null()).then(pl.lit(source)).alias(source),
        )
    group = pl.when(_described(mesh).is_not_null()).then(pl.lit("group"))
    sources = [source for _, source in found[1:]]
    sizes = {axis.axis: axis.size for axis in mesh}
    by_axis = pl.col("axis").replace_strict(sizes, default=None, return_dtype=pl.Int32)
    rows = rows.with_columns(
        pl.coalesce(group, *sources).alias("axis_from"),
        pl.coalesce("group_size", by_axis).alias("group_size"),
    )
    return _grouped(rows.drop(*sources, "in_fsdp", "follows"), manifest)


def _axes(manifest: Manifest | None) -> list[Axis]:
    """Return the axes that a call may be of by its size alone: those of several ranks, or the first of one rank."""
    mesh = manifest.mesh if manifest else []
    return [axis for axis in mesh if axis.size > 1] or mesh[:1]


def _grouped(rows: pl.DataFrame, manifest: Manifest | None) -> pl.DataFrame:
    """Return the rows with `mesh_group`, the axis and the first rank along it; null where the group is another.

    A collective around the step (a loss, a norm) whose axis follows from its order alone may be of all ranks as well.
    """
    whole = pl.lit(None, pl.String)
    sizes = [axis.size for axis in manifest.mesh] if manifest else []
    if manifest is None or math.prod(sizes) != manifest.world_size:
        return rows.with_columns(whole.alias("mesh_group"))
    is_guess = (pl.col("axis_from") == "order") & ~pl.col("phase").is_in(["forward", "backward"]).fill_null(value=False)
    inner = 1
    for axis in reversed(manifest.mesh):
        position = pl.col("rank") // inner % axis.size
        fits = (pl.col("axis") == axis.axis) & (pl.col("group_size") == axis.size) & ~is_guess.fill_null(value=False)
        fits &= pl.col("rank") < manifest.world_size
        first = pl.format("{}:{}", pl.lit(axis.axis), pl.col("rank") - position * inner)
        whole = pl.coalesce(whole, pl.when(fits).then(first))
        inner *= axis.size
    return rows.with_columns(whole.alias("mesh_group"))


def _sized(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows with the group's size where it follows from the elements in and out."""
    ratio = (
        pl.when(pl.col("kind") == "all_gather").then(pl.col("out_numel") // pl.col("in_numel"))
        .when(pl.col("kind") == "reduce_scatter").then(pl.col("in_numel") // pl.col("out_numel"))
    )  # fmt: skip
    return rows.with_columns(pl.coalesce("group_size", ratio.cast(pl.Int32, strict=False)).alias("group_size"))


def _inside(rows: pl.DataFrame, annotations: pl.DataFrame) -> pl.DataFrame:
    """Return the rows with `in_fsdp` (issued by FSDP2) and `follows` (the last of several calls of one size in a row).

    Not each that follows: two norms of one size over the shard axis may be in front of that over tp.
    """
    marks = annotations.filter(pl.col("ph") == "X", pl.col("name").str.contains(names.FSDP_COMM)).select(
        *RUN, pl.col("ts_ns").alias("mark_ns"), (pl.col("ts_ns") + pl.col("dur_ns")).alias("mark_end_ns")
    )
    inside = around(rows, "at_ns", marks.sort("mark_ns"), ("mark_ns", "mark_end_ns"), RUN)
    joined = rows.with_columns(inside["mark_ns"].is_not_null().alias("in_fsdp"))
    same = pl.struct("kind", "in_numel", "phase", "in_fsdp")
    before, after = ((same == same.shift(by)).over(*RUN, "step").fill_null(value=False) for by in (1, -1))
    follows = before & ~after
    return joined.with_columns(follows.alias("follows"))


def _described(axes: list[Axis]) -> pl.Expr:
    name = pl.col("group_desc").str.extract(_DESCRIBED)
    if not axes:
        by_description = pl.col("group_desc").replace_strict(_DESCRIPTIONS, default=None, return_dtype=pl.String)
        return pl.coalesce(name, by_description)
    return pl.when(name.is_in([axis.axis for axis in axes])).then(name)


def _annotated(axes: list[Axis]) -> pl.Expr:
    """Return the axis inside FSDP2: shard for gathers and reduce-scatters, replicate for all-reduces."""
    known = {axis.axis for axis in axes}
    shard = pl.lit(SHARD if SHARD in known else None, pl.String)
    replicate = pl.lit(REPLICATE if REPLICATE in known else None, pl.String)
    reduced = pl.when(pl.col("kind") == "all_reduce").then(replicate).otherwise(shard)
    sizes = {axis.axis: axis.size for axis in axes}
    most = reduced.replace_strict(sizes, default=None, return_dtype=pl.Int32)
    # A unit may be resharded to fewer ranks than the axis has, never to more.
    return pl.when(pl.col("in_fsdp") & (pl.col("group_size") <= most).fill_null(value=True)).then(reduced)


def _flat(manifest: Manifest | None) -> pl.Expr:
    """Return the axis of FSDP1's calls on a mesh of two: shards gather and reduce-scatter, replicas all-reduce."""
    both = manifest is not None and [axis.axis for axis in manifest.mesh] == [REPLICATE, SHARD]
    if manifest is None or not both or not any(unit.flat for unit in manifest.units):
        return pl.lit(None, pl.String)
    shard = pl.when(pl.col("kind").is_in(["all_gather", "reduce_scatter"])).then(pl.lit(SHARD))
    in_backward = (pl.col("kind") == "all_reduce") & (pl.col("phase") == "backward")
    return shard.when(in_backward).then(pl.lit(REPLICATE))


def _only(axes: list[Axis]) -> pl.Expr:
    """Return the mesh's only axis, for groups of its size or of unknown size."""
    if len(axes) != 1:
        return pl.lit(None, pl.String)
    fits = pl.col("group_size").fill_null(axes[0].size) == axes[0].size
    return pl.when(fits).then(pl.lit(axes[0].axis))


def _outside(axes: list[Axis]) -> pl.Expr:
    """Return the axis outside FSDP2 on a mesh of several: tensor parallelism; norms over the shard axis, then tp."""
    known = {axis.axis for axis in axes}
    if len(axes) < 2 or SHARD not in known:
        return pl.lit(None, pl.String)
    tensor = pl.lit(TENSOR if TENSOR in known else None, pl.String)
    norm = pl.when("follows").then(pl.coalesce(tensor, pl.lit(SHARD))).otherwise(pl.lit(SHARD))
    in_step = pl.col("phase").is_in(["forward", "backward"])
    found = pl.when(in_step).then(tensor).otherwise(norm)
    size = found.replace_strict({axis.axis: axis.size for axis in axes}, default=None, return_dtype=pl.Int32)
    return pl.when(~pl.col("in_fsdp") & (pl.col("group_size") == size).fill_null(value=True)).then(found)
