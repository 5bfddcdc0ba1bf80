"""What each device held when it held most."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit import common_columns as c
from tracekit.analyzers.memory.curve import categories, column_of
from tracekit.model.as_of import around
from tracekit.model.memory.categories import BEFORE_WINDOW
from tracekit.table_schema import Column, Groupings, Schema

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.model.run import Run

_CATEGORY = c.CATEGORY.but(
    meaning="What the memory was for, by the columns of `memory`; `reserved beyond allocated` is what the caching "
    "allocator kept on top."
)
PEAK_BY = Groupings(
    (
        c.RANK,
        c.DEVICE,
        _CATEGORY,
        c.LAYER.but(null="of what was there before, or unknown"),
        c.PHASE.but(null="of what was there before"),
        Column("operator", pl.String, "Operator that made it.", "of what was there before, or made by none"),
    ),
    ("rank", "device", "category"),
    always=("rank", "device"),
)
PEAK_SCHEMA = Schema(
    c.RANK,
    c.DEVICE,
    _CATEGORY,
    c.TS_NS.but(meaning="When the device held most, since the epoch, on the clock of its host."),
    c.STEP.but(meaning="Optimizer step in which that was.", null="it was outside of every step"),
    Column("since_step_ns", pl.Int64, "Time from the beginning of that step.", "as `step`"),
    Column("bytes", pl.Int64, "Bytes of that kind at that moment; they add up to the allocated bytes."),
)
RESERVED = "reserved beyond allocated"
_CURVE = ("rank", "device")
_OF_BLOCKS = ("category", "layer", "phase", "operator")
_AT = (*_CURVE, "ts_ns", "step", "since_step_ns")


def peak(run: Run, by: Sequence[str] | None = None) -> pl.DataFrame:
    """Bytes by category, or what else is asked for, at the highest point of each curve, largest first: PEAK_SCHEMA.

    They add up to the device's allocated bytes, but for the category `reserved beyond allocated`: what the caching
    allocator holds on top. What is 0 bytes is left out. What was there before the window has neither layer nor
    operator.
    """
    keys = PEAK_BY.keys(by, "peak")
    columns = [*keys, *_AT[2:], "bytes"]
    schema = {name: PEAK_SCHEMA.get(name, pl.String()) for name in columns}
    curve = run.table("memory")
    if curve.is_empty():
        return pl.DataFrame(schema=schema)
    first = pl.int_range(pl.len()).over(_CURVE) == pl.col("allocated_bytes").arg_max().over(_CURVE)
    tops = _in_steps(curve.filter(first), run)
    alive = _alive(run, tops)
    parts = pl.concat(
        [_rest(run, tops, alive).with_columns(pl.lit(None, pl.String).alias(name) for name in _OF_BLOCKS[1:]), alive]
    )
    return (
        parts.group_by(*keys, *_AT[2:], maintain_order=True)
        .agg(pl.col("bytes").sum())
        .filter(pl.col("bytes") != 0)
        .sort(*_CURVE, "bytes", descending=[False, False, True], maintain_order=True)
        .select(pl.col(name).cast(dtype) for name, dtype in schema.items())
    )


def _in_steps(tops: pl.DataFrame, run: Run) -> pl.DataFrame:
    """The peaks with the step that each was in, and the time since that began."""
    step = around(tops, "ts_ns", run.steps.sort("start_ns", "end_ns"), ("start_ns", "end_ns"), ["rank"])
    return tops.with_columns(step["step"], (tops["ts_ns"] - step["start_ns"]).alias("since_step_ns"))


def _alive(run: Run, tops: pl.DataFrame) -> pl.DataFrame:
    """The blocks that were there at the peaks, one row each."""
    blocks = run.blocks.join(tops.select(_AT).rename({"step": "__step"}), on=_CURVE, maintain_order="left")
    there = (pl.col("start_ns") <= pl.col("ts_ns")) & (
        pl.col("end_ns").is_null() | (pl.col("end_ns") > pl.col("ts_ns"))
    )
    return blocks.filter(there).drop("step").rename({"__step": "step"}).select(*_AT, "bytes", *_OF_BLOCKS)


def _rest(run: Run, tops: pl.DataFrame, alive: pl.DataFrame) -> pl.DataFrame:
    """By category: what the curve holds beside these blocks, all from before the window, and what is kept reserved."""
    names = [*categories(run), BEFORE_WINDOW, RESERVED]
    reserved = (pl.col("reserved_bytes") - pl.col("allocated_bytes")).alias(column_of(RESERVED))
    whole = tops.with_columns(reserved).unpivot(
        [column_of(name) for name in names], index=list(_AT), variable_name="category", value_name="bytes"
    )
    whole = whole.with_columns(pl.col("category").replace_strict({column_of(name): name for name in names}))
    named = alive.group_by(*_CURVE, "category").agg(pl.col("bytes").sum().alias("__named"))
    left = pl.col("bytes") - pl.col("__named").fill_null(0)
    return (
        whole.join(named, on=[*_CURVE, "category"], how="left", maintain_order="left")
        .with_columns(left.alias("bytes"))
        .select(*_AT, "bytes", "category")
    )
