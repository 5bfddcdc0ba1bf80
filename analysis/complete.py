"""Which rows of an analysis are of whole steps: means and comparisons are made of these."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import polars as pl

    from tracekit.model.run import Run


def of_complete_steps(run: Run, table: pl.DataFrame) -> pl.DataFrame:
    """The rows of complete steps; all rows where the run has no step that is complete."""
    whole = run.steps.filter("complete").select("rank", "step").unique()
    return table.join(whole, on=["rank", "step"], how="semi", nulls_equal=True) if whole.height else table
