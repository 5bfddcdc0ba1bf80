"""The walk from the ZeRO paper's closed form to the recorded bytes, in named terms that add up exactly."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit import common_columns as c
from tracekit.analyzers import volume
from tracekit.analyzers.complete_steps import complete_steps
from tracekit.analyzers.expectation import Expectation, expectation
from tracekit.analyzers.loop_calls import loop_calls
from tracekit.plan.shares import THEORY
from tracekit.table_schema import Column, Groupings, Schema

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.model.run import Run

MEASURED, UNEXPLAINED = "measured", "unexplained"
LOOPS, EMULATED = "the loop's own collectives", "emulated by the backend"

_UNKNOWN = "the size of a collective, or what is expected, is not known"
LEDGER_BY = Groupings(
    (c.RANK, c.STEP, c.LAYER, c.PHASE, c.KIND, c.AXIS, c.DTYPE), default=("rank", "step"), always=("rank", "step")
)
LEDGER_SCHEMA = Schema(
    c.RANK.but(null="summed over all ranks and steps"),
    c.STEP.but(meaning="Optimizer step, by the number of its mark; complete ones only.", null="as `rank`"),
    Column(
        "term",
        pl.String,
        "`theory` (the ZeRO paper's closed form), the plan's terms by their names, `measured`, and last `unexplained`: "
        "measured less all terms before it.",
    ),
    Column("numel", pl.Int64, "Elements × passes of what was asked for; terms carry their sign.", _UNKNOWN),
    c.PSI.but(null=f"as `numel`, or {c.NO_PSI}"),
    Column("payload_bytes", pl.Int64, "Bytes of the payloads, each counted once.", _UNKNOWN),
    Column("backend_numel", pl.Int64, "Elements × passes of what the backend ran instead.", _UNKNOWN),
    c.COVERAGE.but(null="of a term of theory or plan"),
)

_STEP = ("rank", "step")
_SIZES = ("numel", "payload_bytes", "backend_numel")
_LAST = {LOOPS: 1000, EMULATED: 1001, MEASURED: 1002, UNEXPLAINED: 1003}


def ledger(
    run: Run,
    *,
    by: Sequence[str] | None = None,
    expected: Expectation | None = None,
    partial: bool = False,
    summed: bool = False,
) -> pl.DataFrame:
    """Terms from theory to the trace of each complete step (and group of LEDGER_BY), which add up: LEDGER_SCHEMA.

    Collectives that the loop issues by itself are a term (see loop_calls.py); what the backend emulates is a term of
    `backend_numel` alone. Where the size of a collective is unknown nothing is compared
    and `unexplained` is null, unless `partial`.

    `summed` adds up all complete steps of all ranks; rank and step are null then. Without an expectation (`expected`,
    else the manifest's) the terms are missing and `unexplained` is null.

    Raises:
        UsageError: `by` names another column.
    """
    keys = LEDGER_BY.keys(by, "ledger")
    groups = [key for key in keys if key not in _STEP]
    known = expected if expected is not None else expectation(run)
    steps = complete_steps(run)
    terms = _terms(known, groups)
    measured = _measured(run, steps, keys, terms)
    planned = steps.join(terms, how="cross").select(*keys, "place", "term", *_SIZES)
    planned = pl.concat([planned, _loops(run, steps, keys, known)], how="vertical_relaxed")
    if summed:
        planned, measured = _over_all(planned, groups), _over_all(measured, groups)
    rest = _rest(planned, measured, keys, known, partial=partial)
    columns = [*keys, "place", "term", *_SIZES, "coverage"]
    parts = [planned.with_columns(pl.lit(None, pl.Float64).alias("coverage")), measured, rest]
    rows = pl.concat([part.select(columns) for part in parts], how="vertical_relaxed")
    psi = pl.lit(known.psi if known.psi is not None else run.psi, pl.Float64)
    order = [pl.col(key) for key in keys]
    return (
        rows.sort(*order, "place", maintain_order=True)
        .with_columns((pl.col("numel") / psi).alias("psi"))
        .select(*keys, *LEDGER_SCHEMA.names()[len(_STEP) :])
    )


def _terms(known: Expectation, groups: list[str]) -> pl.DataFrame:
    """The expected terms by group, with their place in the walk; what the backend emulates is the last of them."""
    places = known.terms.select("term").unique(maintain_order=True).with_row_index("place")
    sums = (
        known.terms.group_by("term", *groups, maintain_order=True)
        .agg(volume.known_sum("numel"), volume.known_sum("payload_bytes"))
        .join(places, on="term", how="left")
        .with_columns(pl.col("place").cast(pl.Int64), pl.col("numel").alias("backend_numel"))
        .select("place", "term", *_SIZES, *groups)
    )
    emulated = (
        known.emulated.group_by(groups or [pl.lit(0).alias("all")])
        .agg(pl.col("numel").sum().alias("backend_numel"))
        .select(
            pl.lit(_LAST[EMULATED], pl.Int64).alias("place"),
            pl.lit(EMULATED).alias("term"),
            pl.lit(0, pl.Int64).alias("numel"),
            pl.lit(0, pl.Int64).alias("payload_bytes"),
            "backend_numel",
            *groups,
        )
    )
    counts = (
        (pl.col("numel") != 0)
        | (pl.col("payload_bytes") != 0)
        | (pl.col("backend_numel") != 0)
        | (pl.col("term") == THEORY)
    )
    return pl.concat([sums, emulated], how="vertical_relaxed").filter(counts)


def _loops(run: Run, steps: pl.DataFrame, keys: list[str], known: Expectation) -> pl.DataFrame:
    """The term of the loop's own collectives, see loop_calls.py."""
    groups = [key for key in keys if key not in _STEP]
    return loop_calls(run, known, steps, groups).select(
        *keys,
        pl.lit(_LAST[LOOPS], pl.Int64).alias("place"),
        pl.lit(LOOPS).alias("term"),
        pl.col("passes_numel").alias("numel"),
        "payload_bytes",
        "backend_numel",
    )


def _measured(run: Run, steps: pl.DataFrame, keys: list[str], terms: pl.DataFrame) -> pl.DataFrame:
    """Measured volume of each group that the trace or the plan has; 0 where the trace has none."""
    sized = volume.sized(run).join(steps, on=list(_STEP), how="semi")
    found = sized.group_by(keys).agg(
        volume.known_sum("passes_numel").alias("numel"),
        volume.known_sum("payload_bytes"),
        volume.known_sum("backend_numel"),
        pl.col("payload_bytes").is_not_null().mean().alias("coverage"),
    )
    groups = [key for key in keys if key not in _STEP]
    wanted = steps.join(terms.select(groups).unique(), how="cross") if groups else steps
    both = pl.concat([wanted.select(keys), found.select(keys)]).unique() if groups else wanted
    joined = both.join(found, on=keys, how="left", nulls_equal=True)
    absent = pl.col("coverage").is_null()
    return joined.with_columns(
        *(pl.when(absent).then(0).otherwise(pl.col(size)).cast(pl.Int64).alias(size) for size in _SIZES),
        pl.col("coverage").fill_null(1.0),
        pl.lit(_LAST[MEASURED], pl.Int64).alias("place"),
        pl.lit(MEASURED).alias("term"),
    )


def _rest(
    planned: pl.DataFrame, measured: pl.DataFrame, keys: list[str], known: Expectation, *, partial: bool
) -> pl.DataFrame:
    """Measured less the terms, null where one of the two is not known."""
    totals = planned.group_by(keys).agg(*(volume.known_sum(size).alias(f"{size}_expected") for size in _SIZES))
    joined = measured.join(totals, on=keys, how="left", nulls_equal=True)
    comparable = pl.lit(known.complete) & ((pl.col("coverage") == 1.0) | partial)
    bytes_known = known.terms["payload_bytes"].null_count() == 0
    return joined.with_columns(
        *(
            pl.when(comparable & (bytes_known or size != "payload_bytes"))
            .then(pl.col(size) - pl.col(f"{size}_expected").fill_null(0))
            .alias(size)
            for size in _SIZES
        ),
        pl.lit(_LAST[UNEXPLAINED], pl.Int64).alias("place"),
        pl.lit(UNEXPLAINED).alias("term"),
    )


def _over_all(rows: pl.DataFrame, groups: list[str]) -> pl.DataFrame:
    """The rows added up over ranks and steps; coverage is that of the least known step."""
    coverage = [pl.col("coverage").min()] if "coverage" in rows.columns else []
    summed = rows.group_by("place", "term", *groups, maintain_order=True).agg(
        *(volume.known_sum(size) for size in _SIZES), *coverage
    )
    rank, step = rows.schema["rank"], rows.schema["step"]
    return summed.with_columns(pl.lit(None, rank).alias("rank"), pl.lit(None, step).alias("step"))
