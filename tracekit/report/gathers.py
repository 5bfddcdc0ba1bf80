"""The sentence on units that are gathered more often than a forward and a backward take."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.layer_names import ROOT
from tracekit.strategies import STRATEGIES
from tracekit.text import plain
from tracekit.units import counted

if TYPE_CHECKING:
    from tracekit.model.run import Run

# A unit is gathered for its forward and again for its backward.
_MOST_A_MICRO_BATCH = 2
_NAMED = 3


def gathered_often(run: Run) -> str | None:
    """Units that a step gathers more than twice a micro-batch, and the likely causes; None where there is none.

    How many micro-batches a step has is the manifest's word or, without one, how often most units are gathered in
    forward. Buckets of several layers are no units, and DeepSpeed gathers parameters where FSDP gathers units.
    """
    strategy = STRATEGIES.get(run.manifest.strategy) if run.manifest is not None else None
    counts = _counts(run)
    if counts.is_empty() or (strategy is not None and not strategy.framework.startswith("torch FSDP")):
        return None
    number = _micro_batches(run, counts)
    often = (
        counts.filter(pl.col("times") > _MOST_A_MICRO_BATCH * number)
        .group_by("layer")
        .agg(pl.col("times").max())
        .sort("times", "layer", descending=[True, False])
    )
    if often.is_empty():
        return None
    named = [f"{plain(layer or ROOT)} {times} times" for layer, times in often.head(_NAMED).iter_rows()]
    more = often.height - len(named)
    listed = ", ".join(named) + (f", and {counted(more, 'other unit')}" if more else "")
    batches = "one micro-batch" if number == 1 else f"{number} micro-batches"
    return (
        f"In a step of {batches} all-gathers bring {listed}: more than once for forward and once for backward. Likely "
        "causes: activation checkpointing that does not coincide with the unit, a second forward of it, or an "
        "evaluation in the step."
    )


def _counts(run: Run) -> pl.DataFrame:
    """Gathers of each unit in each complete step of a rank: rank, step, layer, times, forwards."""
    whole = run.steps.filter("complete").select("rank", "step").unique()
    gathers = run.collectives.filter(
        pl.col("kind") == "all_gather",
        pl.col("layer").is_not_null(),
        ~pl.col("layer").str.contains("..", literal=True),
        pl.col("phase").is_in(["forward", "backward"]),
    ).join(whole, on=["rank", "step"], how="semi")
    forward = (pl.col("phase") == "forward").sum().alias("forwards")
    return gathers.group_by("rank", "step", "layer").agg(pl.len().cast(pl.Int64).alias("times"), forward)


def _micro_batches(run: Run, counts: pl.DataFrame) -> int:
    if run.manifest is not None:
        return run.manifest.micro_batches
    usual = counts.filter(pl.col("forwards") > 0)["forwards"].mode().sort()
    return max(int(usual[0]), 1) if usual.len() else 1
