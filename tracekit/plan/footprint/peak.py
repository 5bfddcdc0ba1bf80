"""The most that a step holds, by category, and what the caching allocator reserves for it."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import polars as pl

from tracekit.plan.footprint.allocator import CachingAllocator

PEAK_SCHEMA = pl.Schema(
    {
        "category": pl.String,
        "live_bytes": pl.Int64,
        "reserved_bytes": pl.Int64,
        "low_bytes": pl.Int64,
        "high_bytes": pl.Int64,
    }
)
COMPONENTS = {
    "optimizer_state": "optimizer state",
    "unsharded_parameters": "gathered parameters",
    "collective_buffers": "collective buffers",
}
SLACK, TOTAL = "allocator's slack", "total"
# Libraries take workspaces through the allocator that no tensor shows: cuBLAS 32 MiB a handle on Hopper (torch 2.13,
# aten/src/ATen/cuda/CUDABlas.cpp, `parseChosenWorkspaceSize`), one for the training and one for the autograd thread.
WORKSPACES_BYTES = 2 * (32 << 20)


class Replayed(NamedTuple):
    """What a list of changes comes to, in bytes: the most alive in the last step by category, and the most reserved."""

    live: Counter[str]
    live_bytes: int
    rounded_bytes: int
    reserved_bytes: int


def replay(changes: pl.DataFrame, *, expandable: bool = False) -> Replayed:
    """The changes (CHANGES_SCHEMA) as a caching allocator sees them; a resized storage is freed and made anew."""
    device = CachingAllocator(expandable=expandable)
    sizes: Counter[int] = Counter()
    alive: Counter[str] = Counter()
    live, most, at_most = 0, 0, Counter[str]()
    last = changes["step"].max()
    columns = ("storage", "delta_bytes", "stream", "category", "step")
    for storage, delta, stream, category, step in changes.select(columns).iter_rows():
        if sizes[storage]:
            device.free(storage)
        sizes[storage] += delta
        if sizes[storage]:
            device.allocate(storage, sizes[storage], stream)
        alive[category] += delta
        live += delta
        if step == last and live > most:
            most, at_most = live, alive.copy()
    return Replayed(+at_most, most, device.peak_allocated, device.peak_reserved)


def components(held: pl.DataFrame) -> pl.DataFrame:
    """The same columns where no step can be run without data: what `plan.memory` knows, all else null: PEAK_SCHEMA."""
    known = held.select(
        pl.col("component").replace(COMPONENTS).alias("category"), pl.col("peak_bytes").alias("live_bytes")
    )
    unknown = pl.DataFrame({"category": ["activations", "temporaries", SLACK, TOTAL]})
    return pl.concat([known, unknown], how="diagonal").select(
        pl.col(name).cast(dtype) if name in known.columns else pl.lit(None, dtype).alias(name)
        for name, dtype in PEAK_SCHEMA.items()
    )


def peak(changes: pl.DataFrame) -> pl.DataFrame:
    """Bytes at the peak by category, largest first, then the allocator's slack and the total: PEAK_SCHEMA.

    `live_bytes` is what tensors hold, `reserved_bytes` what the allocator takes from the device for them. The interval
    is that of the reserved total: from segments that expand, which leave next to nothing unused, to the allocator's own
    rules with the libraries' workspaces on top. A category's numbers are exact but for what kernels of another device
    or release save for backward.
    """
    found, tight = replay(changes), replay(changes, expandable=True)
    rows = [(name, size, size, size, size) for name, size in found.live.most_common()]
    slack = found.reserved_bytes - found.live_bytes
    low = min(tight.reserved_bytes, found.reserved_bytes)
    high = found.reserved_bytes + WORKSPACES_BYTES
    rows.append((SLACK, 0, slack, low - found.live_bytes, high - found.live_bytes))
    rows.append((TOTAL, found.live_bytes, found.reserved_bytes, low, high))
    return pl.DataFrame(rows, schema=PEAK_SCHEMA, orient="row")
