"""Model states of a rank by the ZeRO paper's closed form, beside those that the recorder measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit import common_columns as c
from tracekit.table_schema import Column, Schema
from tracekit.theory import strategy_stage, zero_memory_per_gpu

if TYPE_CHECKING:
    from tracekit.manifest import Manifest, RankInfo
    from tracekit.model.run import Run

MODEL_STATES_SCHEMA = Schema(
    c.RANK,
    Column("stage", pl.Int8, "ZeRO stage of the strategy: 0 (replicated) to 3."),
    Column("num_ranks", pl.Int32, "Number of ranks that share the model states: the dp_shard axis, else all."),
    Column("component", pl.String, "parameters, gradients, optimizer_state, buffers or total."),
    Column(
        "theory_bytes",
        pl.Int64,
        "Closed form of the ZeRO paper: 2 bytes a parameter, 2 a gradient, 12 of optimizer state, each over N from the "
        "stage on that shards it.",
        "of buffers, which the closed form leaves out",
    ),
    Column(
        "held_bytes", pl.Int64, "Bytes that the recorder measured between steps.", "the recorder did not measure it"
    ),
)
# What a rank holds through the window: the recorder measured it, in this order. The first four are of the model.
HELD = ("parameters", "gradients", "optimizer_state", "buffers", "collective_buffers")


def model_states(run: Run) -> pl.DataFrame:
    """Model states of each rank by the ZeRO paper's closed form, beside those measured: MODEL_STATES_SCHEMA.

    Theory assumes 2 bytes a parameter and a gradient and 12 bytes of optimizer state, and rounds to whole bytes; it has
    no buffers. Held is measured between steps, when gradients may be freed. Empty without a manifest, for a strategy
    that claims no stage, and with tensor parallelism, which the closed form leaves out.
    """
    manifest = run.manifest
    stage = strategy_stage(manifest.strategy) if manifest is not None else None
    if manifest is None or stage is None or manifest.psi <= 0:
        return pl.DataFrame(schema=MODEL_STATES_SCHEMA)
    if any(axis.axis == "tp" and axis.size > 1 for axis in manifest.mesh):
        return pl.DataFrame(schema=MODEL_STATES_SCHEMA)
    ranks = next((axis.size for axis in manifest.mesh if axis.axis == "dp_shard"), manifest.world_size)
    theory = _theory(manifest.psi, ranks, stage)
    rows = [
        (info.rank, stage, ranks, component, expected, _held(info).get(component))
        for info in manifest.ranks
        for component, expected in theory.items()
    ]
    return pl.DataFrame(rows, schema=MODEL_STATES_SCHEMA, orient="row")


def held_on(manifest: Manifest | None, rank: int, device: str) -> dict[str, int]:
    """Bytes that the recorder measured on this rank by component; empty where it measured another device."""
    info = next((info for info in manifest.ranks if info.rank == rank), None) if manifest else None
    measured = (info.device or "cpu") if info else ""
    if info is None or (device != measured if ":" in measured else not device.startswith(measured)):
        return {}
    return {name: size for name, size in _held(info).items() if name != "total"}


def _theory(psi: int, ranks: int, stage: int) -> dict[str, int | None]:
    """Bytes by component; the total is that of the closed form itself, rounded once."""
    share = {
        "parameters": 2 * psi / (ranks if stage == 3 else 1),
        "gradients": 2 * psi / (ranks if stage >= 2 else 1),
        "optimizer_state": 12 * psi / (ranks if stage >= 1 else 1),
    }
    total = round(zero_memory_per_gpu(psi, ranks, stage))
    return {**{name: round(size) for name, size in share.items()}, "buffers": None, "total": total}


def _held(info: RankInfo) -> dict[str, int]:
    if info.held_bytes is None:
        return {}
    held = {name: int(getattr(info.held_bytes, name)) for name in HELD}
    return {**held, "total": sum(held[name] for name in HELD[:4])}
