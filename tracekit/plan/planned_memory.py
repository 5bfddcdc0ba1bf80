"""Bytes that a strategy holds on one rank, by component: between two steps, and at most inside one.

The model states of the ZeRO paper and what it leaves out: unsharded parameters, and the buffers that collectives work
in. Activations are not planned. What a rank holds between two steps is what the recorder measures.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.plan.schema import item_size
from tracekit.plan.strategies import planner_of

if TYPE_CHECKING:
    from tracekit.manifest import Manifest

MEMORY_SCHEMA = pl.Schema({"component": pl.String, "held_bytes": pl.Int64, "peak_bytes": pl.Int64})


def memory(manifest: Manifest | None, rank: int = 0) -> pl.DataFrame:
    """Expected bytes of a rank by component: MEMORY_SCHEMA.

    `held_bytes` between two steps, `peak_bytes` the most inside one. Empty without a manifest or a plan.
    """
    planner = planner_of(manifest)
    if manifest is None or planner is None:
        return pl.DataFrame(schema=MEMORY_SCHEMA)
    holds = planner.memory(manifest, rank)
    buffers = sum(buffer.numel * item_size(buffer.dtype) for buffer in manifest.buffers)
    rows = [
        ("parameters", holds.parameters, holds.parameters),
        ("gradients", holds.gradients, holds.peak_gradients),
        ("optimizer_state", holds.optimizer_state, holds.optimizer_state),
        ("buffers", buffers, buffers),
        ("unsharded_parameters", 0, holds.unsharded),
        ("collective_buffers", holds.always_buffers, holds.collective_buffers),
    ]
    return pl.DataFrame(rows, schema=MEMORY_SCHEMA, orient="row")
