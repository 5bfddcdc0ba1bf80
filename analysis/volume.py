"""How much a step moved, beside what the strategy should send (plan) and what the lesson says (theory)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from analysis.overlap import ratio
from tracekit.errors import UsageError
from tracekit.plan import PASSES, plan, terms
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
    absent = pl.col("num_collectives").is_null()
    sums = ["num_collectives", "numel", "passes_numel", "payload_bytes", "wire_bytes"]
    return (
        joined.with_columns(pl.when(absent).then(0).otherwise(pl.col(name)).alias(name) for name in sums)
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


def ledger(run: Run) -> pl.DataFrame:
    """Steps from theory to the trace in named terms: rank, step, term, numel, psi, payload_bytes.

    Rows of each complete step: `theory`, the plan's terms with their sign, `measured`, and `unexplained`,
    which is measured less all the terms before it. numel counts elements times passes. Without a plan the
    terms are missing; without a strategy theory is too; `unexplained` is null where sizes are not all known.
    """
    steps = _complete_steps(run)
    named = terms(run.manifest).with_columns(pl.int_range(pl.len()).alias("place"))
    theory = _theory(run)
    if named.is_empty() and theory is not None:
        named = pl.DataFrame({"term": ["theory"], "numel": [theory], "place": [0]}).with_columns(
            pl.lit(None, pl.Int64).alias("payload_bytes")
        )
    sums = named.select(pl.col("numel").sum(), pl.col("payload_bytes").sum()).row(0)
    known = {"numel": bool(named.height), "payload_bytes": named["payload_bytes"].null_count() < named.height}
    measured = steps.join(_measured(run, list(_STEP)), on=_STEP, how="left").with_columns(
        pl.when(pl.col("num_collectives").is_null()).then(0).otherwise("passes_numel").alias("numel"),
        pl.when(pl.col("num_collectives").is_null()).then(0).otherwise("payload_bytes").alias("payload_bytes"),
        pl.col("coverage").fill_null(1.0),
    )
    rest = measured.with_columns(
        pl.when(pl.col("coverage") == 1.0, pl.lit(known[name])).then(pl.col(name) - expected).alias(name)
        for name, expected in zip(known, sums, strict=True)
    )
    parts = [
        (steps.join(named, how="cross"), None),
        (measured.with_columns(pl.lit(1000).alias("place")), "measured"),
        (rest.with_columns(pl.lit(1001).alias("place")), "unexplained"),
    ]
    frames = [frame if term is None else frame.with_columns(pl.lit(term).alias("term")) for frame, term in parts]
    columns = [*_STEP, "place", "term", "numel", "payload_bytes"]
    rows = pl.concat([frame.select(columns) for frame in frames], how="vertical_relaxed")
    return (
        rows.sort(*_STEP, "place")
        .with_columns(_over_psi(run, "numel").alias("psi"))
        .select(*_STEP, "term", "numel", "psi", "payload_bytes")
    )


def backend(run: Run) -> pl.DataFrame:
    """What the backend did for each kind of collective that was asked of it.

    Columns: rank, step, kind, backend_kind, num_collectives, numel, passes_numel (by the passes of what it
    did), psi.
    """
    keys = [*_STEP, "kind", "backend_kind"]
    # No backend span of its own: it ran what was asked for.
    did = _sized(run).with_columns(pl.coalesce("backend_kind", "kind").alias("backend_kind"))
    passes = pl.col("backend_kind").replace_strict(PASSES, default=None, return_dtype=pl.Int64)
    return (
        did.with_columns((pl.col("payload_numel") * passes).alias("passes_numel"))
        .group_by(keys)
        .agg(
            pl.len().cast(pl.Int64).alias("num_collectives"),
            known_sum("payload_numel").alias("numel"),
            known_sum("passes_numel"),
        )
        .with_columns(_over_psi(run, "passes_numel").alias("psi"))
        .sort(keys, maintain_order=True)
    )


def _measured(run: Run, keys: list[str]) -> pl.DataFrame:
    known = pl.col("payload_bytes").is_not_null()
    return (
        _sized(run)
        .with_columns((pl.col("payload_numel") * pl.col("passes")).alias("passes_numel"))
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


def _sized(run: Run) -> pl.DataFrame:
    """The collectives with their payload's elements; an axis that only one mesh axis can be is filled in."""
    gathered = pl.col("kind") == "all_gather"
    mesh = run.manifest.mesh if run.manifest is not None else []
    axis = mesh[0].axis if len(mesh) == 1 else None
    return run.collectives.with_columns(
        pl.when(gathered).then("out_numel").otherwise("in_numel").cast(pl.Int64).alias("payload_numel"),
        pl.col("axis").fill_null(pl.lit(axis, pl.String)),
        pl.col("passes").cast(pl.Int64),
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
    return _complete_steps(run).join(sums, how="cross").select(*keys, "plan_passes_numel", "plan_payload_bytes")


def _complete_steps(run: Run) -> pl.DataFrame:
    return run.steps.filter("complete", pl.col("step").is_not_null()).select(_STEP).unique().sort(_STEP)


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
