"""Bytes that a step needs over time: the allocations of a rank, and what a caching allocator makes of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.strategies import find

if TYPE_CHECKING:
    import polars as pl

    from tracekit.manifest import Manifest

# A step that needs data takes memory and time of its own: 16 bytes a parameter and 6 operations for each token.
MAX_NUMEL, MAX_OPERATIONS = 200_000_000, 500_000_000_000


def can_run(manifest: Manifest, model: str | None) -> bool:
    """Whether a step of `model` can be run in one process as the manifest says; only then is its peak known whole."""
    how = find(manifest.strategy).dry_step
    if model is None or how == "not at all":
        return False
    tokens = int(manifest.options.get("batch_size", 1)) * int(manifest.options.get("seq_len", 1))
    operations = 6 * manifest.psi * tokens * manifest.micro_batches
    return how == "without data" or (manifest.psi <= MAX_NUMEL and operations <= MAX_OPERATIONS)


def planned(manifest: Manifest, model: str | None) -> pl.DataFrame:
    """The peak of a step by category (`peak.PEAK_SCHEMA`); what cannot be known without running a step is null.

    Raises:
        UsageError: the training program refuses an option.
    """
    from tracekit import plan
    from tracekit.plan.footprint import dry_run, peak

    if model is None or not can_run(manifest, model):
        return peak.components(plan.memory(manifest))
    return peak.peak(dry_run.changes(manifest, model))
