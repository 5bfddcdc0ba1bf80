"""Memory over time by category, its peak, and the model states that the ZeRO paper's closed form gives."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from tracekit import common_columns as c
from tracekit.table_schema import Column, Schema
from tracekit.theory import strategy_stage, zero_memory_per_gpu

if TYPE_CHECKING:
    from tracekit.manifest import Manifest, RankInfo
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
    Column("*_bytes", pl.Int64, "One column for each other `category` of the allocations: what is held of it."),
    Column(
        "before_the_window_bytes", pl.Int64, "The rest of `allocated_bytes`: what was there before and has no name."
    ),
)
PEAK_SCHEMA = Schema(
    c.RANK,
    c.DEVICE,
    c.TS_NS.but(meaning="When the device held most, since the epoch, on the clock of its host."),
    c.CATEGORY.but(
        meaning="What the memory was for, by the columns of `memory`; `reserved beyond allocated` is what the caching "
        "allocator kept on top."
    ),
    Column("bytes", pl.Int64, "Bytes of that category at that moment; the others add up to the allocated bytes."),
)
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

# What a rank holds through the window: the recorder measured it, in this order.
HELD = ("parameters", "gradients", "optimizer_state", "buffers")
BEFORE_WINDOW = "before the window"
RESERVED = "reserved beyond allocated"

_PLACE = ("rank", "cycle", "device")
_CURVE = ("rank", "device")


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
    from the window's start and is a lower bound.
    """
    names = _categories(run.allocations)
    *fixed, before = MEMORY_SCHEMA
    schema = {name: MEMORY_SCHEMA.get(name, pl.Int64()) for name in (*fixed, *map(column_of, names), before)}
    curves = [
        _curve(rows, _baseline(rows, run.manifest), names)
        for _, rows in run.allocations.sort(*_PLACE, "ts_ns", maintain_order=True).group_by(_PLACE, maintain_order=True)
    ]
    if not curves:
        return pl.DataFrame(schema=schema)
    return pl.concat(curves).select(pl.col(name).cast(dtype) for name, dtype in schema.items())


def peak(run: Run) -> pl.DataFrame:
    """Bytes by category at the highest point of each curve, largest first: PEAK_SCHEMA.

    They add up to the device's allocated bytes, but for the category `reserved beyond allocated`: what the caching
    allocator holds on top. Categories of 0 bytes are left out.
    """
    curve = run.table("memory")
    if curve.is_empty():
        return pl.DataFrame(schema=PEAK_SCHEMA)
    top = curve.filter(
        pl.int_range(pl.len()).over(_CURVE) == pl.col("allocated_bytes").arg_max().over(_CURVE)
    ).with_columns((pl.col("reserved_bytes") - pl.col("allocated_bytes")).alias(column_of(RESERVED)))
    names = {column_of(name): name for name in (*HELD, *_categories(run.allocations), BEFORE_WINDOW, RESERVED)}
    return (
        top.unpivot(list(names), index=[*_CURVE, "ts_ns"], variable_name="category", value_name="bytes")
        .with_columns(pl.col("category").replace_strict(names, return_dtype=pl.String))
        .filter(pl.col("bytes") != 0)
        .sort(*_CURVE, "bytes", descending=[False, False, True], maintain_order=True)
        .select(pl.col(name).cast(dtype) for name, dtype in PEAK_SCHEMA.items())
    )


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


def is_lower_bound(run: Run, rank: int, device: str) -> bool:
    """Whether the curve of a device counts from the window's start: no allocator's totals, nothing measured before."""
    told = run.allocations.filter((pl.col("rank") == rank) & (pl.col("device") == device))["allocated_bytes"].count()
    return not _held_on(run.manifest, rank, device) and (device == "cpu" or not told)


def column_of(category: str) -> str:
    """Column of a category: `unsharded parameters` is in `unsharded_parameters_bytes`."""
    return category.replace(" ", "_") + "_bytes"


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
    return {**held, "total": sum(held.values())}


def _categories(memory: pl.DataFrame) -> list[str]:
    """Categories of the allocations in the window, by name; memory from before it has columns of its own."""
    found = memory["category"].drop_nulls().unique().sort().to_list()
    return [name for name in found if name not in {*HELD, BEFORE_WINDOW}]


def _curve(rows: pl.DataFrame, baseline: _Baseline, names: list[str]) -> pl.DataFrame:
    """Curve of one device in one window; what is left of allocated once the rest is named was there before."""
    since = [
        (pl.when(pl.col("category") == name).then("delta_bytes").otherwise(0)).cum_sum().alias(column_of(name))
        for name in names
    ]
    # The same column may hold what was held before and what came since, when the model names a purpose like
    # that.
    start = [
        pl.lit(baseline.held.get(name, 0))
        + pl.when(pl.col("category") == name).then("delta_bytes").otherwise(0).cum_sum()
        for name in HELD
    ]
    counted = pl.lit(baseline.total()) + pl.col("delta_bytes").cum_sum()
    on_cpu = pl.col("device") == "cpu"
    counter = pl.when(on_cpu).then(None).otherwise("allocated_bytes")
    named = [column_of(name) for name in (*HELD, *names)]
    return rows.with_columns(
        *since,
        *(value.alias(column_of(name)) for name, value in zip(HELD, start, strict=True)),
        pl.coalesce(counter, counted).alias("allocated_bytes"),
        # The CPU's allocator keeps nothing back, and the profiler writes 0 for what it does not know.
        pl.when(~on_cpu).then("reserved_bytes").alias("reserved_bytes"),
    ).with_columns((pl.col("allocated_bytes") - pl.sum_horizontal(named)).alias(column_of(BEFORE_WINDOW)))


def _baseline(rows: pl.DataFrame, manifest: Manifest | None) -> _Baseline:
    """Bytes from before the window: measured by the recorder, from the allocator's total, or from later frees."""
    rank, device = rows["rank"][0], rows["device"][0]
    held = _held_on(manifest, rank, device)
    freed = -int(rows.filter(pl.col("category") == BEFORE_WINDOW)["delta_bytes"].sum())
    if held:
        # Gradients held at the start are the first thing a step frees: do not count them twice.
        held = {**held, "gradients": max(held["gradients"] - max(freed, 0), 0)}
    total, delta = rows["allocated_bytes"][0], rows["delta_bytes"][0]
    if device != "cpu" and total is not None:
        before = total - delta - sum(held.values())
        # More held than allocated: part of it is elsewhere (offloaded, on another device), and which is not known.
        return _Baseline(held, before) if before >= 0 else _Baseline({}, total - delta)
    return _Baseline(held, max(freed, 0))


def _held_on(manifest: Manifest | None, rank: int, device: str) -> dict[str, int]:
    """Bytes that the recorder measured on this rank by component; empty where it measured another device."""
    info = next((info for info in manifest.ranks if info.rank == rank), None) if manifest else None
    measured = (info.device or "cpu") if info else ""
    if info is None or (device != measured if ":" in measured else not device.startswith(measured)):
        return {}
    return {name: size for name, size in _held(info).items() if name != "total"}
