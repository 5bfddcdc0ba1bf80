"""Bytes that a step needs over time: the allocations of a rank, and what a caching allocator makes of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.strategies import find

if TYPE_CHECKING:
    import polars as pl

    from tracekit.manifest import Manifest


def runs_without_data(manifest: Manifest, model: str | None) -> bool:
    """Whether a step of `model` can be run without data as the manifest says; only then is its peak known whole."""
    return model is not None and find(manifest.strategy).dry_run


def planned(manifest: Manifest, model: str | None) -> pl.DataFrame:
    """The peak of a step by category (`peak.PEAK_SCHEMA`); what cannot be known without running a step is null.

    Raises:
        UsageError: the training program refuses an option.
    """
    from tracekit import plan
    from tracekit.plan.footprint import dry_run, peak

    if model is None or not runs_without_data(manifest, model):
        return peak.components(plan.memory(manifest))
    return peak.peak(dry_run.changes(manifest, model))
