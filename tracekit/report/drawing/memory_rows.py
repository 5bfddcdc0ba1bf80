"""Rows of the charts of memory: curves of ranks, one device by category, and its peak taken apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.analyzers.memory.curve import categories, column_of
from tracekit.layer_names import ROOT
from tracekit.model.memory.categories import BEFORE_WINDOW
from tracekit.report.drawing import style, thinning
from tracekit.report.drawing.chart_rows import Drawn, accelerators, few_ranks
from tracekit.report.drawing.thinning import mib, ms
from tracekit.units import BYTES_PER_MIB

if TYPE_CHECKING:
    from tracekit.model.run import Run

MAX_CURVES = 8
# Of one device: a point has a row for each category.
MAX_POINTS = 400
_NUMBER, _TEXT = pl.Float64(), pl.String()
_ROWS = {"category": _TEXT, "t_ms": _NUMBER, "mib": _NUMBER, "order": pl.Int64()}
_BESIDE = {
    "phases": {"phase": _TEXT, "from_ms": _NUMBER, "to_ms": _NUMBER},
    "lines": {"t_ms": _NUMBER, "mib": _NUMBER, "line": _TEXT},
    "peak": {"t_ms": _NUMBER, "mib": _NUMBER, "label": _TEXT},
}


def memory_rows(run: Run) -> Drawn:
    """Allocated memory over time of the first ranks, and the model states, which must be held at least."""
    curve = accelerators(run.table("memory")).drop_nulls("allocated_bytes")
    series = curve.select("rank", "device").unique().sort("rank", "device")
    shown = series.head(MAX_CURVES)
    origin = run.steps["start_ns"].min() if run.steps.height else curve["ts_ns"].min()
    origin = origin if isinstance(origin, int) else 0
    limit = thinning.MAX_ROWS // max(shown.height, 1)
    several = series["device"].n_unique() > series["rank"].n_unique()
    parts = [
        thinning.thin_curve(rows.sort("ts_ns", maintain_order=True), "allocated_bytes", limit)
        for _, rows in curve.join(shown, on=["rank", "device"], how="semi").group_by(
            "rank", "device", maintain_order=True
        )
    ]
    drawn = pl.concat(parts) if parts else curve
    name = pl.format("rank {} · {}", "rank", "device") if several else pl.format("rank {}", "rank")
    rows = drawn.select("rank", series=name, t_ms=ms("ts_ns", origin), mib=mib("allocated_bytes"))
    theory = run.table("model-states").filter(pl.col("component") == "total")["theory_bytes"].max()
    notes: list[str] = []
    if drawn.height < curve.height:
        notes.append(f"{drawn.height:,} of {curve.height:,} points are drawn, with every peak and trough.")
    if series.height > shown.height:
        notes.append(f"The first {shown.height} of {series.height} curves are drawn.")
    return Drawn(rows, " ".join(notes), {"level_mib": theory / BYTES_PER_MIB} if isinstance(theory, int) else None)


def peak_rows(run: Run) -> Drawn:
    """Memory of each rank at its peak by category, largest category first."""
    table = accelerators(run.table("peak")).with_columns(series=pl.format("rank {}", "rank"))
    order = (
        table.group_by("category")
        .agg(pl.col("bytes").max().alias("_size"))
        .sort("_size", "category", descending=[True, False])
    )
    ranked = table.join(order.with_row_index("order"), on="category", how="left").sort("rank", "order")
    rows = ranked.select("rank", "series", "category", pl.col("order").cast(pl.Int64), mib=mib("bytes"))
    rows = rows.with_columns(pl.col("category").str.replace_all("_", " ", literal=True))
    return few_ranks(rows)


def category_rows(run: Run) -> Drawn:
    """What the device that held most held over time, by category; phases of the step, and the peak beside them."""
    curve = accelerators(run.table("memory")).drop_nulls("allocated_bytes")
    # A curve that never leaves 0 has no peak.
    if curve.is_empty() or not (curve["allocated_bytes"] > 0).any():
        return Drawn(pl.DataFrame(schema=_ROWS), "", {name: pl.DataFrame(schema=_BESIDE[name]) for name in _BESIDE})
    rank, device = curve.sort("allocated_bytes").select("rank", "device").row(-1)
    whole = curve.filter(rank=rank, device=device).sort("ts_ns", maintain_order=True)
    origin = _origin(run, whole)
    drawn = thinning.thin_curve(whole, "allocated_bytes", MAX_POINTS)
    names = {column_of(name): name for name in (*categories(run), BEFORE_WINDOW) if (whole[column_of(name)] != 0).any()}
    order = {name: place for place, name in enumerate(style.MEMORY)}
    rows = drawn.unpivot(list(names), index="ts_ns", variable_name="category", value_name="bytes").select(
        pl.col("category").replace_strict(names), t_ms=ms("ts_ns", origin), mib=mib("bytes").cast(pl.Float64)
    )
    rows = rows.with_columns(order=pl.col("category").replace_strict(order, default=len(order), return_dtype=pl.Int64))
    phases = _phases(run, rank, origin, whole["ts_ns"][-1])
    theory = run.table("model-states").filter(component="total", rank=rank)["theory_bytes"].max()
    level = theory / BYTES_PER_MIB if isinstance(theory, int) else None
    beside = {"phases": phases, "lines": _lines(drawn, origin), "peak": _peak(run, rank, device, origin)}
    note = f"Rank {rank}, {device}, which held most."
    if drawn.height < whole.height:
        note += f" {drawn.height:,} of {whole.height:,} points are drawn, with every peak and trough."
    return Drawn(rows, note, {**beside, "level_mib": level})


def _origin(run: Run, curve: pl.DataFrame) -> int:
    origin = run.steps["start_ns"].min() if run.steps.height else curve["ts_ns"].min()
    return origin if isinstance(origin, int) else 0


def _phases(run: Run, rank: int, origin: int, end: int) -> pl.DataFrame:
    """Stretches of one phase, by the allocations in them: phase, from_ms, to_ms."""
    rows = run.allocations.filter(rank=rank).sort("ts_ns", maintain_order=True)
    runs = rows.group_by(pl.struct("phase").rle_id().alias("stretch"), maintain_order=True).agg(
        pl.col("phase").first(), pl.col("ts_ns").min()
    )
    until = pl.col("ts_ns").shift(-1).fill_null(end)
    return runs.select("phase", from_ms=ms("ts_ns", origin), to_ms=(until - origin) / 1e6)


def _lines(drawn: pl.DataFrame, origin: int) -> pl.DataFrame:
    """What the allocator reserved beside what was allocated; without rows where that is not known."""
    known = drawn.drop_nulls("reserved_bytes")
    return known.select(t_ms=ms("ts_ns", origin), mib=mib("reserved_bytes").cast(pl.Float64), line=pl.lit("reserved"))


def _peak(run: Run, rank: int, device: str, origin: int) -> pl.DataFrame:
    """The peak in words: when, how much, and the layer and operator that asked last."""
    at = run.table("peak").filter(rank=rank, device=device)["ts_ns"][0]
    curve = run.table("memory").filter(rank=rank, device=device, ts_ns=at)
    last = run.blocks.filter(rank=rank, device=device, start_ns=at)
    where = []
    if last.height:
        layer, operator = last.select("layer", "operator").row(-1)
        where = [text for text in (ROOT if layer == "" else layer, operator) if text]
    size = curve["allocated_bytes"].max()
    held = size / BYTES_PER_MIB if isinstance(size, int) else 0.0
    label = " · ".join([f"peak {held:,.4g} MiB", *where])
    return pl.DataFrame({"t_ms": [(at - origin) / 1e6], "mib": [held], "label": [label]})
