"""A plan added up: by kind, axis and type, and as a whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Sequence

KEYS = ("kind", "axis", "group_size", "dtype")


def volume(plan: pl.DataFrame, psi: int, by: Sequence[str] = KEYS) -> pl.DataFrame:
    """Calls, elements, bytes and wire bytes of each group of calls, in order of appearance.

    Columns: those of `by`, num_collectives, passes_numel (elements times passes), psi (that over Ψ), payload_bytes,
    wire_bytes (ring-equivalent: passes × payload × (n−1)/n, what one rank sends).
    """
    rows = plan.with_columns(
        (pl.col("payload_numel") * pl.col("passes").cast(pl.Int64)).alias("passes_numel"), wire().alias("wire_bytes")
    )
    return (
        rows.group_by(by, maintain_order=True)
        .agg(
            pl.len().cast(pl.Int64).alias("num_collectives"),
            pl.col("passes_numel", "payload_bytes", "wire_bytes").sum(),
        )
        .with_columns((pl.col("passes_numel") / pl.lit(psi or None, pl.Float64)).alias("psi"))
        .select(*by, "num_collectives", "passes_numel", "psi", "payload_bytes", "wire_bytes")
    )


def totals(plan: pl.DataFrame) -> dict[str, int]:
    """Of a whole step: num_collectives, passes_numel, payload_bytes, wire_bytes."""
    summed = volume(plan.with_columns(pl.lit(0).alias("all")), 1, ["all"]).drop("all", "psi")
    return dict.fromkeys(summed.columns, 0) if summed.is_empty() else summed.row(0, named=True)


def wire() -> pl.Expr:
    """Ring-equivalent bytes that one rank sends for a call of the plan."""
    ranks = pl.col("group_size").cast(pl.Int64)
    return pl.col("payload_bytes") * pl.col("passes").cast(pl.Int64) * (ranks - 1) // ranks
