"""Volume of each step, beside its strategy's plan and the ZeRO paper's closed form (theory)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit import common_columns as c
from tracekit.analyzers.complete_steps import complete_steps
from tracekit.analyzers.overlap import ratio
from tracekit.collective_kinds import PASSES
from tracekit.plan import plan
from tracekit.table_schema import Column, Groupings, Schema
from tracekit.theory import strategy_stage, zero_communication_volume

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.model.run import Run

_NO_PLAN = "there is no plan for the step: no manifest, or the step is incomplete; a plan names no process groups"
_PLANNED = (
    Column("plan_passes_numel", pl.Int64, "Elements × passes by the strategy's plan.", _NO_PLAN),
    Column("plan_payload_bytes", pl.Int64, "Payload bytes by the strategy's plan.", _NO_PLAN),
)
_COVERAGE = c.COVERAGE.but(
    meaning="Share of the collectives whose size is known; below 1 the measured columns are the known part.",
    null="the plan expects it and the trace has none",
)
_PAYLOAD_BYTES = c.PAYLOAD_BYTES.but(meaning="Bytes of the payloads, summed over what is known of them.")
_WIRE_BYTES = c.WIRE_BYTES.but(meaning="Bytes that one rank of a ring sends for them, summed over what is known.")
VOLUME_BY = Groupings(
    (c.RANK, c.STEP, c.KIND, c.AXIS, c.LAYER, c.PHASE, c.DTYPE, c.GROUP, c.GROUP_SIZE),
    default=("rank", "step", "kind", "axis"),
    always=("rank", "step", "kind", "axis"),
)
VOLUME_SCHEMA = Schema(
    c.RANK,
    c.STEP,
    c.KIND,
    c.AXIS,
    c.NUM_COLLECTIVES,
    c.NUMEL,
    c.PASSES_NUMEL,
    c.PSI,
    _PAYLOAD_BYTES,
    _WIRE_BYTES,
    *_PLANNED,
    _COVERAGE,
)
_NO_THEORY = "without a manifest of a strategy that the closed form knows"
TOTALS_SCHEMA = Schema(
    c.RANK,
    c.STEP,
    Column("theory_numel", pl.Int64, "Closed form of the ZeRO paper: 2Ψ, at stage 3 3Ψ.", _NO_THEORY),
    _PLANNED[0].but(name="plan_numel"),
    c.PASSES_NUMEL.but(name="measured_numel", meaning="Elements × passes of what was asked for."),
    c.PASSES_NUMEL.but(name="backend_numel", meaning="Elements × passes of what the backend ran instead."),
    Column("theory_psi", pl.Float64, "`theory_numel` over Ψ.", _NO_THEORY),
    Column("plan_psi", pl.Float64, "`plan_numel` over Ψ.", _NO_PLAN),
    c.PSI.but(name="measured_psi", meaning="`measured_numel` over Ψ."),
    c.PSI.but(name="backend_psi", meaning="`backend_numel` over Ψ."),
    _PLANNED[1],
    _PAYLOAD_BYTES,
    _WIRE_BYTES,
    c.NUM_COLLECTIVES,
    _COVERAGE.but(null="no collective was found"),
)
BACKEND_SCHEMA = Schema(
    c.RANK,
    c.STEP,
    c.KIND,
    c.BACKEND_KIND,
    c.NUM_COLLECTIVES,
    c.NUMEL,
    c.PASSES_NUMEL.but(meaning="Elements × passes of what the backend ran."),
    c.PSI,
)

_STEP = ("rank", "step")


def volume(run: Run, *, by: Sequence[str] | None = None) -> pl.DataFrame:
    """Elements and bytes by rank, step, kind and axis (and columns of VOLUME_BY), measured and planned: VOLUME_SCHEMA.

    The plan stands beside complete steps only. What it expects and the trace lacks is a row with no
    collectives.

    Raises:
        UsageError: `by` names another column.
    """
    keys = VOLUME_BY.keys(by, "volume")
    expected = _planned(run, keys)
    joined = _measured(run, keys).join(expected, on=keys, how="full", coalesce=True, nulls_equal=True)
    return (
        joined.with_columns(_nothing_is_zero("numel", "passes_numel", "payload_bytes", "wire_bytes"))
        .with_columns(_over_psi(run, "passes_numel").alias("psi"))
        .select(
            *keys, *(pl.col(name).cast(dtype) for name, dtype in list(VOLUME_SCHEMA.items())[len(VOLUME_BY.always) :])
        )
        .sort(keys, maintain_order=True)
    )


def totals(run: Run) -> pl.DataFrame:
    """Each step's theory, plan, measurement and what the backend did, in elements × passes and in Ψ: TOTALS_SCHEMA.

    The backend differs where it emulates one collective by another, as gloo does with reduce-scatter.
    """
    measured = _measured(run, list(_STEP))
    ran = run.table("backend").group_by(_STEP).agg(known_sum("passes_numel").alias("backend_numel"))
    renamed = {"passes_numel": "measured_numel", "plan_passes_numel": "plan_numel"}
    joined = (
        measured.join(_planned(run, list(_STEP)), on=_STEP, how="full", coalesce=True, nulls_equal=True)
        .join(ran, on=_STEP, how="left", nulls_equal=True)
        .rename(renamed)
        .with_columns(_nothing_is_zero("measured_numel", "backend_numel", "payload_bytes", "wire_bytes"))
        .with_columns(pl.lit(_theory(run), pl.Int64).alias("theory_numel"))
    )
    sides = ("theory", "plan", "measured", "backend")
    over_psi = (_over_psi(run, f"{side}_numel").alias(f"{side}_psi") for side in sides)
    return joined.with_columns(over_psi).select(TOTALS_SCHEMA.names()).sort(_STEP, maintain_order=True)


def _nothing_is_zero(*columns: str) -> list[pl.Expr]:
    """A step in which no collective was found moved 0; one whose sizes are unknown keeps null."""
    absent = pl.col("num_collectives").is_null()
    return [pl.when(absent).then(0).otherwise(pl.col(name)).alias(name) for name in (*columns, "num_collectives")]


def backend(run: Run) -> pl.DataFrame:
    """Collectives that the backend ran for each kind of collective that was asked of it: BACKEND_SCHEMA."""
    keys = [*_STEP, "kind", "backend_kind"]
    return (
        sized(run)
        .group_by(keys)
        .agg(
            pl.len().cast(pl.Int64).alias("num_collectives"),
            known_sum("payload_numel").alias("numel"),
            known_sum("backend_numel").alias("passes_numel"),
        )
        .with_columns(_over_psi(run, "passes_numel").alias("psi"))
        .sort(keys, maintain_order=True)
    )


def _measured(run: Run, keys: list[str]) -> pl.DataFrame:
    known = pl.col("payload_bytes").is_not_null()
    return (
        sized(run)
        .group_by(keys)
        .agg(
            pl.len().cast(pl.Int64).alias("num_collectives"),
            known.sum().cast(pl.Int64).alias("num_known"),
            known_sum("payload_numel").alias("numel"),
            *(known_sum(name) for name in ("passes_numel", "payload_bytes", "wire_bytes")),
        )
        .with_columns(ratio("num_known", "num_collectives").alias("coverage"))
        .drop("num_known")
    )


def sized(run: Run) -> pl.DataFrame:
    """The collectives with `passes_numel` and, by what the backend ran, `backend_numel`.

    A backend without a span of its own ran what was asked for.
    """
    ran = pl.coalesce("backend_kind", "kind")
    return run.collectives.with_columns(
        pl.col("passes").cast(pl.Int64),
        ran.alias("backend_kind"),
        pl.when(ran == pl.col("kind"))
        .then(pl.col("passes").cast(pl.Int64))
        .otherwise(ran.replace_strict(PASSES, default=None, return_dtype=pl.Int64))
        .alias("backend_passes"),
    ).with_columns(
        (pl.col("payload_numel") * pl.col("passes")).alias("passes_numel"),
        (pl.col("payload_numel") * pl.col("backend_passes")).alias("backend_numel"),
    )


def _planned(run: Run, keys: list[str]) -> pl.DataFrame:
    """The plan summed by `keys`, once for every complete step of every rank."""
    within = [key for key in keys if key not in _STEP]
    expected = plan(run.manifest).with_columns(
        (pl.col("payload_numel") * pl.col("passes")).alias("plan_passes_numel"),
        pl.col("payload_bytes").alias("plan_payload_bytes"),
        pl.lit(0).alias("all"),
    )
    # A plan knows axes, not the process groups that a trace names.
    untold = [column for column in (c.GROUP, c.GROUP_SIZE) if column.name in within]
    if untold:
        expected = expected.clear().with_columns(pl.lit(None, column.dtype).alias(column.name) for column in untold)
    sums = expected.group_by(within or ["all"]).agg(pl.col("plan_passes_numel", "plan_payload_bytes").sum())
    return complete_steps(run).join(sums, how="cross").select(*keys, "plan_passes_numel", "plan_payload_bytes")


def _theory(run: Run) -> int | None:
    """The closed form's volume of a step: 2Ψ or 3Ψ elements; None for a run of no known strategy."""
    if run.manifest is None or run.psi is None:
        return None
    stage = strategy_stage(run.manifest.strategy)
    return None if stage is None else zero_communication_volume(run.psi, stage)


def known_sum(column: str) -> pl.Expr:
    """Sum of the known values; null, not 0, when none is known."""
    return pl.when(pl.col(column).count() > 0).then(pl.col(column).sum()).alias(column)


def _over_psi(run: Run, column: str) -> pl.Expr:
    return pl.col(column) / pl.lit(run.psi, pl.Float64)
