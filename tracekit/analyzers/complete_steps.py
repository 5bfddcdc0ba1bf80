"""The complete steps of a run: the one rule for means and comparisons."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from tracekit.model.run import Run

_STEP = ("rank", "step")


def complete_steps(run: Run) -> pl.DataFrame:
    """The complete steps that have a number: rank and step, in order."""
    return run.steps.filter("complete", pl.col("step").is_not_null()).select(_STEP).unique().sort(_STEP)


def of_complete_steps(run: Run, table: pl.DataFrame) -> pl.DataFrame:
    """The rows of complete steps, numbered or not; all rows where the run has no step that is complete."""
    return of_complete_steps_alone(run, table) if run.steps["complete"].any() else table


def of_complete_steps_alone(run: Run, table: pl.DataFrame) -> pl.DataFrame:
    """The rows of complete steps, numbered or not; none where the run has no step that is complete."""
    whole = run.steps.filter("complete").select(_STEP).unique()
    return table.join(whole, on=list(_STEP), how="semi", nulls_equal=True)
