"""How much a step moved, beside what the strategy should send (plan) and what the lesson says (theory)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.analyzers.complete_steps import complete_steps
from tracekit.analyzers.overlap import ratio
from tracekit.collective_kinds import PASSES
from tracekit.errors import UsageError
from tracekit.plan import plan
from tracekit.theory import strategy_stage, zero_communication_volume

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.model.run import Run

KEYS = ("rank", "step", "kind", "axis")
BY = ("layer", "phase", "dtype")

_STEP = ("rank", "step")
_MEASURES = {
    "num_collectives": pl.Int64,
    "numel": pl.Int64,
    "passes_numel": pl.Int64,
    "psi": pl.Float64,
    "payload_bytes": pl.Int64,
    "wire_bytes": pl.Int64,
    "plan_passes_numel": pl.Int64,
    "plan_payload_bytes": pl.Int64,
    "coverage": pl.Float64,
}


def volume(run: Run, *, by: Sequence[str] = ()) -> pl.DataFrame:
    """Elements and bytes of each rank, step, kind and axis, measured and planned.

    Columns: rank, step, kind, axis, those of `by` (any of layer, phase, dtype), then

    - `num_collectives`, `numel` (payload elements: an all-gather's output, else the input), `passes_numel`
      (elements times passes), `psi` (that over Ψ, null without a manifest), `payload_bytes`, `wire_bytes`
      (ring-equivalent bytes that one rank sends);
    - `plan_passes_numel`, `plan_payload_bytes`: the same two by the plan, null where there is no plan for the
      step;
    - `coverage`: share of the collectives whose size is known. Below 1 the measured columns are the known
      part of the total; at 0 they are null.

    The plan stands beside complete steps only. What it expects and the trace lacks is a row with no
    collectives.

    Raises:
        UsageError: `by` names another column.
    """
    keys = [*KEYS, *_checked(by)]
    expected = _planned(run, keys)
    joined = _measured(run, keys).join(expected, on=keys, how="full", coalesce=True, nulls_equal=True)
    return (
        joined.with_columns(_nothing_is_zero("numel", "passes_numel", "payload_bytes", "wire_bytes"))
        .with_columns(_over_psi(run, "passes_numel").alias("psi"))
        .select(*keys, *(pl.col(name).cast(dtype) for name, dtype in _MEASURES.items()))
        .sort(keys, maintain_order=True)
    )


def totals(run: Run) -> pl.DataFrame:
    """Each rank and step: theory, plan, measured and what the backend did, in elements × passes and in Ψ.

    Columns: rank, step, theory_numel, plan_numel, measured_numel, backend_numel, theory_psi, plan_psi,
    measured_psi, backend_psi, plan_payload_bytes, payload_bytes, wire_bytes, num_collectives, coverage. The
    backend differs where it emulates one collective by another, as gloo does with reduce-scatter. Unknown is
    null.
    """
    measured = _measured(run, list(_STEP))
    ran = backend(run).group_by(_STEP).agg(known_sum("passes_numel").alias("backend_numel"))
    renamed = {"passes_numel": "measured_numel", "plan_passes_numel": "plan_numel"}
    joined = (
        measured.join(_planned(run, list(_STEP)), on=_STEP, how="full", coalesce=True, nulls_equal=True)
        .join(ran, on=_STEP, how="left", nulls_equal=True)
        .rename(renamed)
        .with_columns(_nothing_is_zero("measured_numel", "backend_numel", "payload_bytes", "wire_bytes"))
        .with_columns(pl.lit(_theory(run), pl.Int64).alias("theory_numel"))
    )
    sides = ("theory", "plan", "measured", "backend")
    return joined.select(
        *_STEP,
        *(f"{side}_numel" for side in sides),
        *(_over_psi(run, f"{side}_numel").alias(f"{side}_psi") for side in sides),
        "plan_payload_bytes",
        "payload_bytes",
        "wire_bytes",
        "num_collectives",
        "coverage",
    ).sort(_STEP, maintain_order=True)


def _nothing_is_zero(*columns: str) -> list[pl.Expr]:
    """A step in which no collective was found moved 0; one whose sizes are unknown keeps null."""
    absent = pl.col("num_collectives").is_null()
    return [pl.when(absent).then(0).otherwise(pl.col(name)).alias(name) for name in (*columns, "num_collectives")]


def backend(run: Run) -> pl.DataFrame:
    """What the backend did for each kind of collective that was asked of it.

    Columns: rank, step, kind, backend_kind, num_collectives, numel, passes_numel (by the passes of what it
    did), psi.
    """
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
    sums = expected.group_by(within or ["all"]).agg(pl.col("plan_passes_numel", "plan_payload_bytes").sum())
    return complete_steps(run).join(sums, how="cross").select(*keys, "plan_passes_numel", "plan_payload_bytes")


def _theory(run: Run) -> int | None:
    """The lesson's volume of a step: 2Ψ or 3Ψ elements; null for a run of no known strategy."""
    if run.manifest is None or run.psi is None:
        return None
    stage = strategy_stage(run.manifest.strategy)
    return None if stage is None else zero_communication_volume(run.psi, stage)


def known_sum(column: str) -> pl.Expr:
    """Sum of the known values; null, not 0, when none is known."""
    return pl.when(pl.col(column).count() > 0).then(pl.col(column).sum()).alias(column)


def _over_psi(run: Run, column: str) -> pl.Expr:
    return pl.col(column) / pl.lit(run.psi, pl.Float64)


def _checked(by: Sequence[str]) -> list[str]:
    unknown = [column for column in by if column not in (*BY, *KEYS)]
    if unknown:
        raise UsageError(f"volume cannot be grouped by {', '.join(unknown)}; use any of {', '.join(BY)}")
    return [column for column in dict.fromkeys(by) if column not in KEYS]
