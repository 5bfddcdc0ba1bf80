"""The steps of each rank: windows from one ``ProfilerStep`` mark to the next on the same thread."""

from __future__ import annotations

import polars as pl

from tracekit import common_columns as c
from tracekit.manifest import Manifest
from tracekit.model import step_marks as marks
from tracekit.model.as_of import around
from tracekit.model.event_kinds import Kinds
from tracekit.model.recordings import RUN, without
from tracekit.model.step_clock import mark_jumps
from tracekit.read.findings import CORRUPT, ENDS_EARLY
from tracekit.table_schema import Column, Schema

# Windows of a rank are half-open and do not overlap; between them may lie time of no step (see step_marks.py).
STEPS_SCHEMA = Schema(
    c.RANK,
    c.CYCLE,
    c.STEP.but(
        meaning="Optimizer step, by the number of its `ProfilerStep#` mark; without such marks, steps of the optimizer "
        "(`Optimizer.step#`) from 0 on.",
        null="the trace has no marks of either kind: one row for the whole of it",
    ),
    c.START_NS,
    c.END_NS.but(meaning="When the next one began on the same thread, since the epoch (exclusive)."),
    Column("complete", pl.Boolean, "Whether the whole step was recorded and its mark is beyond doubt."),
    Column("reason", pl.String, "Why it is not complete, or what its window rests on.", "there is nothing to say"),
)


def steps(kinds: Kinds, manifest: Manifest | None = None, repairs: pl.DataFrame | None = None) -> pl.DataFrame:
    """Return STEPS_SCHEMA, with no step that the trace does not mark.

    The last step of a recording is incomplete if the manifest says so, or a repair (REPAIRS_SCHEMA) reports damage.
    """
    marked = marks.windows(kinds)
    unmarked = pl.concat([without(part, marked) for part in kinds])
    whole = (
        unmarked.filter(pl.col("ph") == "X")
        .group_by("rank", "cycle")
        .agg(
            pl.lit(None, pl.Int64).alias("step"),
            pl.col("ts_ns").min().alias("start_ns"),
            (pl.col("ts_ns") + pl.col("dur_ns").fill_null(0)).max().alias("end_ns"),
            pl.lit(value=True).alias("complete"),
            pl.lit("whole trace: no ProfilerStep marks in it that can be used").alias("reason"),
        )
    )
    columns = list(STEPS_SCHEMA)
    table = pl.concat([marked.select(columns), whole.select(columns)]).cast(STEPS_SCHEMA)  # type: ignore[arg-type]
    cuts = _cuts(manifest, repairs)
    table = mark_jumps(table if cuts.is_empty() else _mark_cut(table, cuts), manifest)
    return table.sort("rank", "cycle", "start_ns")


def _cuts(manifest: Manifest | None, repairs: pl.DataFrame | None) -> pl.DataFrame:
    """Return one row for each recording of which a part is lost: rank, cycle, cut (the reason)."""
    schema = {"rank": pl.Int32, "cycle": pl.Int32, "cut": pl.String}
    in_manifest = [
        {"rank": r.rank, "cycle": t.cycle, "cut": t.reason or "the recording ended early"}
        for r in (manifest.ranks if manifest else [])
        for t in r.traces
        if t.complete is False
    ]
    cuts = [pl.DataFrame(in_manifest, schema=schema)]
    if repairs is not None and repairs.height:
        damaged = repairs.filter(is_damage(), pl.col("rank").is_not_null())
        cuts.append(damaged.select("rank", "cycle", pl.col("what").alias("cut")))
    return (
        pl.concat(cuts)
        .group_by("rank", "cycle", maintain_order=True)
        .agg(pl.col("cut").unique(maintain_order=True).str.join("; "))
    )


def is_damage() -> pl.Expr:
    """Return whether a repair (its `what`) means that a part of a file is lost."""
    return pl.col("what").str.contains(f"^({ENDS_EARLY}|{CORRUPT})")


def _mark_cut(table: pl.DataFrame, cuts: pl.DataFrame) -> pl.DataFrame:
    """Return the steps, the last of each cut recording incomplete, with the reason."""
    last = pl.col("start_ns") == pl.col("start_ns").max().over("rank", "cycle")
    is_cut = last & pl.col("cut").is_not_null()
    why = pl.concat_str("reason", "cut", separator="; ", ignore_nulls=True)
    return (
        table.join(cuts, on=RUN, how="left", maintain_order="left")
        .with_columns(
            (pl.col("complete") & ~is_cut).alias("complete"),
            pl.when(is_cut).then(why).otherwise("reason").alias("reason"),
        )
        .drop("cut")
    )


def unused_marks(kinds: Kinds, steps_table: pl.DataFrame) -> pl.DataFrame:
    """Return rank, cycle, count: the number of marks that are not steps, where there are any."""
    used = steps_table.drop_nulls("step").group_by(RUN).agg(pl.len().cast(pl.Int64).alias("used"))
    return (
        marks.marks(kinds)
        .group_by(RUN)
        .agg(pl.len().cast(pl.Int64).alias("count"))
        .join(used, on=RUN, how="left")
        .select(*RUN, pl.col("count") - pl.col("used").fill_null(0))
        .filter(pl.col("count") > 0)
        .sort(RUN)
    )


def numbers_differ(steps_table: pl.DataFrame) -> str | None:
    """Return a sentence on how step numbers differ between ranks; None where they agree as far as recorded."""
    numbers = {
        rank: set(steps) for rank, steps in steps_table.group_by("rank").agg(pl.col("step").drop_nulls()).iter_rows()
    }
    longest = max(numbers.values(), key=len, default=set[int]())
    if all(steps <= longest for steps in numbers.values()):
        return None
    kinds: dict[str, list[int]] = {}
    for rank in sorted(numbers):
        steps = numbers[rank]
        kinds.setdefault(f"{min(steps)} to {max(steps)}" if steps else "no number", []).append(rank)
    listed = "; ".join(
        f"{span} on {'rank' if len(ranks) == 1 else 'ranks'} {', '.join(map(str, ranks[:8]))}{', …' * (len(ranks) > 8)}"
        for span, ranks in kinds.items()
    )
    return f"step numbers differ between ranks: {listed}"


def turns(steps_table: pl.DataFrame) -> pl.DataFrame:
    """Return the steps with a column `turn`, equal for what ranks did together.

    It is the number of the step where the ranks agree on numbers, else its position among the steps of its rank.
    """
    position = pl.col("start_ns").rank("ordinal").over("rank", "cycle").cast(pl.Int64) - 1
    return steps_table.with_columns((position if numbers_differ(steps_table) else pl.col("step")).alias("turn"))


def step_at(table: pl.DataFrame, steps_table: pl.DataFrame, time: str) -> pl.DataFrame:
    """Return `table` with a `step` column: the step whose window, on its rank, holds the time in column `time`."""
    windows = steps_table.select("rank", "cycle", "step", "start_ns", "end_ns").sort("start_ns", "end_ns")
    return table.with_columns(around(table, time, windows, ("start_ns", "end_ns"), RUN)["step"])
