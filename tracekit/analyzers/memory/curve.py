"""Memory over time by category, on each device."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from tracekit import common_columns as c
from tracekit.analyzers.memory.model_states import HELD, held_on
from tracekit.model.memory.categories import BEFORE_WINDOW
from tracekit.model.memory.lifetimes import CALL_DONE, REUSED
from tracekit.table_schema import Column, Schema

if TYPE_CHECKING:
    from tracekit.manifest import Manifest
    from tracekit.model.run import Run

_AT_START = "as the recorder measured it when the window began; 0 without a manifest"
MEMORY_SCHEMA = Schema(
    c.RANK,
    c.DEVICE,
    c.TS_NS,
    c.ALLOCATED_BYTES.but(
        meaning="Bytes in use after this allocation or free. On a GPU the allocator's total; on a CPU what was held "
        "when the window began, plus what was allocated since, less what was freed."
    ),
    c.RESERVED_BYTES,
    Column("parameters_bytes", pl.Int64, f"Parameters, {_AT_START}."),
    Column(
        "gradients_bytes", pl.Int64, f"Gradients, {_AT_START}; what is freed later of before the window is taken off."
    ),
    Column("optimizer_state_bytes", pl.Int64, f"State of the optimizer, {_AT_START}."),
    Column("buffers_bytes", pl.Int64, f"Buffers of the model, {_AT_START}."),
    Column("collective_buffers_bytes", pl.Int64, f"Buffers of collectives, {_AT_START}, and those that came since."),
    Column("*_bytes", pl.Int64, "One column for each other `category` of the blocks: what is held of it."),
    Column(
        "before_the_window_bytes", pl.Int64, "The rest of `allocated_bytes`: what was there before and has no name."
    ),
)
# What a recorder measures before the window, by category.
HELD_CATEGORIES = {name: name.replace("_", " ") for name in HELD}

_PLACE = ("rank", "cycle", "device")


class _Baseline(NamedTuple):
    """Allocations at the beginning of the window, on one device of one rank."""

    held: dict[str, int]
    before: int

    def total(self) -> int:
        return sum(self.held.values()) + self.before


def memory(run: Run) -> pl.DataFrame:
    """Allocated bytes after every allocation and free, in time order, with a column a category: MEMORY_SCHEMA.

    The categories add up to `allocated_bytes`: what the recorder measured when the window began, what was allocated for
    each purpose since, and the rest from before the window.

    On a GPU the allocator's own totals are used. A CPU has none from before the window, so the curve starts at what was
    held plus every block that is freed later without having been allocated in the window; without a manifest it counts
    from the window's start and is a lower bound. Frees that were not recorded stand where the block's end is known.
    """
    names = categories(run)
    *fixed, before = MEMORY_SCHEMA
    schema = {name: MEMORY_SCHEMA.get(name, pl.Int64()) for name in (*fixed, *map(column_of, names), before)}
    rows = pl.concat([run.allocations.drop_nulls("ts_ns"), _unseen_frees(run)], how="diagonal").sort(
        *_PLACE, "ts_ns", maintain_order=True
    )
    curves = [
        _curve(part, _baseline(part, run.manifest), names) for _, part in rows.group_by(_PLACE, maintain_order=True)
    ]
    if not curves:
        return pl.DataFrame(schema=schema)
    return pl.concat(curves).select(pl.col(name).cast(dtype) for name, dtype in schema.items())


def is_lower_bound(run: Run, rank: int, device: str) -> bool:
    """Whether the curve of a device counts from the window's start: no allocator's totals, nothing measured before."""
    told = run.allocations.filter((pl.col("rank") == rank) & (pl.col("device") == device))["allocated_bytes"].count()
    return not held_on(run.manifest, rank, device) and (device == "cpu" or not told)


def categories(run: Run) -> list[str]:
    """Categories with a column of their own: what is measured before the window, then what came in it, by name."""
    found = run.allocations["category"].drop_nulls().unique().sort().to_list()
    held = HELD_CATEGORIES.values()
    return [*held, *(name for name in found if name not in {*held, BEFORE_WINDOW})]


def column_of(category: str) -> str:
    """Column of a category: `gathered parameters` is in `gathered_parameters_bytes`."""
    return category.replace(" ", "_") + "_bytes"


def _unseen_frees(run: Run) -> pl.DataFrame:
    """The frees that must have been and were not recorded, as rows of `allocations`."""
    gone = run.blocks.filter(pl.col("end_from").is_in([REUSED, CALL_DONE]))
    freed = (-pl.col("bytes")).alias("delta_bytes")
    return gone.select("rank", "cycle", "device", pl.col("end_ns").alias("ts_ns"), freed, "category")


def _curve(rows: pl.DataFrame, baseline: _Baseline, names: list[str]) -> pl.DataFrame:
    """Curve of one device in one window; what is left of allocated once the rest is named was there before."""
    parts = [
        (
            pl.lit(baseline.held.get(name, 0))
            + pl.when(pl.col("category") == name).then("delta_bytes").otherwise(0).cum_sum()
        ).alias(column_of(name))
        for name in names
    ]
    counted = pl.lit(baseline.total()) + pl.col("delta_bytes").cum_sum()
    on_cpu = pl.col("device") == "cpu"
    counter = pl.when(on_cpu).then(None).otherwise(pl.col("allocated_bytes").forward_fill())
    return rows.with_columns(
        *parts,
        pl.coalesce(counter, counted).alias("allocated_bytes"),
        # The CPU's allocator keeps nothing back, and the profiler writes 0 for what it does not know.
        pl.when(~on_cpu).then(pl.col("reserved_bytes").forward_fill()).alias("reserved_bytes"),
    ).with_columns(
        (pl.col("allocated_bytes") - pl.sum_horizontal(map(column_of, names))).alias(column_of(BEFORE_WINDOW))
    )


def _baseline(rows: pl.DataFrame, manifest: Manifest | None) -> _Baseline:
    """Bytes from before the window: measured by the recorder, from the allocator's total, or from later frees."""
    measured = held_on(manifest, rows["rank"][0], rows["device"][0])
    held = {HELD_CATEGORIES[name]: size for name, size in measured.items()}
    freed = -int(rows.filter(pl.col("category") == BEFORE_WINDOW)["delta_bytes"].sum())
    if held:
        # Gradients held at the start are the first thing a step frees: do not count them twice.
        held = {**held, "gradients": max(held["gradients"] - max(freed, 0), 0)}
    total, delta = rows["allocated_bytes"][0], rows["delta_bytes"][0]
    if rows["device"][0] != "cpu" and total is not None:
        before = total - delta - sum(held.values())
        # More held than allocated: part of it is elsewhere (offloaded, on another device), and which is not known.
        return _Baseline(held, before) if before >= 0 else _Baseline({}, total - delta)
    return _Baseline(held, max(freed, 0))
