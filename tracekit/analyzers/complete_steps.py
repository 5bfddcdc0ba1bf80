"""The complete steps of a run: the one rule for means and comparisons."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.model.steps import turns

if TYPE_CHECKING:
    from tracekit.model.run import Run

_STEP = ("rank", "step")


def complete_steps(run: Run) -> pl.DataFrame:
    """The complete steps that have a number: rank and step, in order."""
    return run.steps.filter("complete", pl.col("step").is_not_null()).select(_STEP).unique().sort(_STEP)


def of_complete_steps(run: Run, table: pl.DataFrame) -> pl.DataFrame:
    """The rows of steps that all ranks have in full, numbered or not; all rows where no step is complete."""
    return of_complete_steps_alone(run, table) if run.steps["complete"].any() else table


def of_complete_steps_alone(run: Run, table: pl.DataFrame) -> pl.DataFrame:
    """The rows of steps that all ranks have in full, numbered or not; none where the run has no complete step."""
    return table.join(shared_steps(run), on=list(_STEP), how="semi", nulls_equal=True)


def shared_steps(run: Run) -> pl.DataFrame:
    """The steps that are complete on all ranks, as rank and step; where there are none, those complete on any.

    A rank whose profiler started later, or which has one step more, would else weigh in a mean with other steps.
    """
    whole = turns(run.steps).filter("complete")
    ranks = pl.col("rank").n_unique().over("cycle", "turn")
    shared = whole.filter(ranks == run.steps["rank"].n_unique())
    return (shared if shared.height else whole).select(_STEP).unique()
