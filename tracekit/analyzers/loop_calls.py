"""Collectives that a training loop issues by itself, outside of every wrapper: metrics, losses, norms, seeds.

Small is no proof: pieces of gradients are small, too. Such a call lies outside forward and backward, is beyond what the
plan has of its kind and size, and has no parameter's size; how many there are and when is told with the term.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.analyzers import volume

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.analyzers.expectation import Expectation
    from tracekit.model.run import Run

KINDS = ("all_reduce", "all_gather", "broadcast", "reduce")
# Metrics, losses and norms are scalars or short lists. More elements than this are told as unexplained.
MOST_NUMEL = 1024
_STEP = ("rank", "step")
_CALL = ("kind", "payload_numel", "dtype")


def loop_calls(run: Run, known: Expectation, steps: pl.DataFrame, groups: Sequence[str] = ()) -> pl.DataFrame:
    """Sums of such calls in each of the steps (rank, step) and group: passes_numel, payload_bytes, backend_numel, num.

    None without a plan, which alone tells what is beyond it.
    """
    keys = [*_STEP, *groups]
    sizes = ["passes_numel", "payload_bytes", "backend_numel"]
    of_call = [*groups, *(name for name in _CALL if name not in groups)]
    outside = pl.col("kind").is_in(KINDS) & ~pl.col("phase").is_in(["forward", "backward"])
    outside &= pl.col("payload_numel").is_between(0, MOST_NUMEL)
    planned = known.calls.filter(outside).group_by(of_call).agg(pl.len().alias("planned"))
    found = (
        volume.sized(run)
        .filter(outside, ~pl.col("payload_numel").is_in(sorted(_sizes_of_parameters(run))))
        .filter(pl.lit(not known.calls.is_empty()))
        .join(steps, on=list(_STEP), how="semi")
        .group_by(*_STEP, *of_call)
        .agg(pl.len().alias("num"), *(pl.col(size).sum() for size in sizes))
        .join(planned, on=of_call, how="left", nulls_equal=True)
        .with_columns((pl.col("num") - pl.col("planned").fill_null(0)).clip(0).cast(pl.Int64).alias("more"))
        .filter(pl.col("more") > 0)
    )
    # Calls of one kind, size and type are alike, so that each beyond the plan has its share of their sums.
    shares = [(pl.col(size) // pl.col("num") * pl.col("more")).alias(size) for size in sizes]
    return (
        found.with_columns(shares)
        .group_by(keys)
        .agg(*(pl.col(s).sum() for s in sizes), pl.col("more").sum().alias("num"))
    )


def _sizes_of_parameters(run: Run) -> set[int]:
    """Elements of parameters that are trained, but for scalars: a call of that size may be a gradient's."""
    manifest = run.manifest
    return {p.numel for p in manifest.parameters if p.requires_grad and p.numel > 1} if manifest is not None else set()
