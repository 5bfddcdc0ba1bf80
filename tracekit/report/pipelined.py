"""The sentence on a pipeline: how much of a step its stages stand idle, and which of them the others wait for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.analyzers.complete_steps import of_complete_steps
from tracekit.analyzers.stages.pipeline import is_pipeline
from tracekit.units import duration, share

if TYPE_CHECKING:
    from tracekit.model.run import Run

# A rank is called the busiest where it is busy this much longer than the next one.
_CLEARLY = 1.1


def pipelined(run: Run) -> str | None:
    """The bubble's share of the steps of all ranks, and the busiest rank; None where no pipeline is recognised."""
    table = of_complete_steps(run, run.table("pipeline"))
    if not is_pipeline(run, table):
        return None
    parts = ["busy_ns", "transfer_ns", "bubble_ns"]
    ranks = (
        table.group_by("rank")
        .agg(pl.col(parts).sum(), pl.col("wait_ns").count().alias("known"), pl.col("stage").drop_nulls().unique())
        .sort("busy_ns", "rank", descending=[True, False])
    )
    length = int(ranks.select(pl.sum_horizontal(parts)).to_series().sum())
    busy = ranks["busy_ns"].to_list()
    if not length or not busy[0]:
        return None
    idle = share(int(ranks["bubble_ns"].sum()) / length)
    told = "The pipeline's ranks stood idle or waited for one another (its bubble) for"
    if ranks["known"].min():
        told += f" {idle} of their steps"
    else:
        told += f" at least {idle} of their steps (how long some sends and recvs waited is unknown)"
    if len(busy) < 2 or busy[0] < _CLEARLY * busy[1]:
        return f"{told}."
    stage = ranks["stage"][0].to_list()
    where = f"stage {stage[0]} (rank {ranks['rank'][0]})" if len(stage) == 1 else f"rank {ranks['rank'][0]}"
    steps = table.filter(pl.col("rank") == ranks["rank"][0])["step"].n_unique()
    own, following = (duration(time // steps) for time in busy[:2])
    return f"{told}; {where} is the busiest, {own} a step, the next {following}."
