"""Rows of each chart of the page: a run in, few rows of plain numbers out (columns as `chart_specs` asks).

Results come from the analyses; here they are averaged over steps where the chart says so, turned into ms
and MiB, and thinned where there are more rows than a chart should hold. What was left out or merged is said
in `note`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl

from tracekit.analyzers.causes.advice import CAUSES
from tracekit.analyzers.complete_steps import of_complete_steps
from tracekit.layer_names import layer_label
from tracekit.report.drawing import style, thinning
from tracekit.report.drawing.thinning import ms
from tracekit.text import plain_line
from tracekit.theory import passes_by_kind, strategy_stage
from tracekit.units import NS_PER_MS

if TYPE_CHECKING:
    from tracekit.model.run import Run

MAX_BARS = 48

_PHASES = {"forward": 0, "backward": 1, "optimizer": 2, "other": 3}
_PARTS = {
    "compute_ns": style.COMPUTE,
    "exposed_comm_ns": style.EXPOSED,
    "exposed_copy_ns": style.COPY,
    "idle_ns": style.IDLE,
}


class Drawn(NamedTuple):
    """Rows for a chart, a sentence on what they leave out (or ""), and what the chart takes beside them, by name."""

    rows: pl.DataFrame
    note: str = ""
    more: Mapping[str, Any] | None = None


def volume_rows(run: Run) -> Drawn:
    """Theory, plan, measured and, where it differs, what the backend ran: the mean complete step of a rank."""
    measured = of_complete_steps(run, run.table("volume"))
    ran = of_complete_steps(run, run.table("backend")).rename({"kind": "asked", "backend_kind": "kind"})
    steps = measured.select("rank", "step").unique().height
    parts = [
        _theory(run),
        _by_kind(measured, "plan_passes_numel", steps).with_columns(num_collectives=None, source=pl.lit("plan")),
        _by_kind(measured, "passes_numel", steps).with_columns(source=pl.lit("measured")),
    ]
    if not ran.filter(pl.col("asked") != pl.col("kind")).is_empty():
        parts.append(_by_kind(ran, "passes_numel", steps).with_columns(source=pl.lit("backend ran")))
    columns = ["source", "kind", pl.col("numel").cast(pl.Float64), pl.col("num_collectives").cast(pl.Float64)]
    rows = pl.concat([part.select(columns) for part in parts]).filter(pl.col("numel") > 0)
    places = {"theory": 0, "plan": 1, "measured": 2, "backend ran": 3}
    return Drawn(
        rows.with_columns(
            order=thinning.place("source", places),
            place=thinning.place("kind", {kind: i for i, kind in enumerate(style.KINDS)}),
            psi=pl.col("numel") / pl.lit(run.psi, pl.Float64),
        )
        .with_columns(total_psi=pl.col("psi").sum().over("source"))
        .with_columns(label=_written("total_psi", "{:.2f}Ψ"))
        .filter(pl.col("psi").is_not_null())
        .sort("order", "kind")
    )


def overlap_rows(run: Run) -> Drawn:
    """Hidden and exposed ms a step of each rank, layer and phase that communicates."""
    table = run.table("overlap", by=("rank", "step", "layer", "phase"))
    table = of_complete_steps(run, table).filter(pl.col("comm_ns") > 0)
    steps = table.group_by("rank").agg(pl.col("step").n_unique().alias("steps"))
    layer = layer_label()
    means = (
        table.group_by("rank", "layer", "phase")
        .agg(pl.col("overlapped_ns", "exposed_ns", "comm_ns").sum())
        .join(steps, on="rank", how="left")
        .with_columns(share=pl.col("overlapped_ns") / pl.col("comm_ns"), layer=layer)
        .with_columns(pl.col("overlapped_ns", "exposed_ns") / pl.col("steps") / NS_PER_MS)
        .rename({"overlapped_ns": style.HIDDEN, "exposed_ns": style.EXPOSED})
    )
    order = thinning.layer_order(means["layer"])
    rows = means.unpivot(
        [style.HIDDEN, style.EXPOSED],
        index=["rank", "layer", "phase", "share"],
        variable_name="activity",
        value_name="ms",
    ).with_columns(
        row=pl.format("{} · {}", "layer", "phase"),
        order=thinning.place("phase", _PHASES) * len(order) + thinning.place("layer", order),
    )
    return few_ranks(rows.sort("order", "rank", "activity"))


def breakdown_rows(run: Run) -> Drawn:
    """The parts of every step of every rank."""
    table = run.table("breakdown").sort("rank", "device", "step")
    note = ""
    if table.height > MAX_BARS:
        note = f"The first {MAX_BARS} of {table.height} steps are drawn; report.json has all of them."
        table = table.head(MAX_BARS)
    number = pl.col("step").cast(pl.String).fill_null("?")
    step = pl.format("rank {} · step {}", "rank", number)
    if (table.group_by("rank").agg(pl.col("device").n_unique())["device"] > 1).any():
        step = pl.format("rank {} · {} · step {}", "rank", "device", number)
    rows = _parts(
        table.with_columns(step.alias("row")).with_row_index("order"), ["rank", "step", "row", "order", "step_ns"]
    )
    return Drawn(rows.with_columns(order=pl.col("order").cast(pl.Int64)).drop("step_ns"), note)


def exposure_rows(run: Run) -> Drawn:
    """Exposed ms of the mean complete step of a rank, by cause and kind."""
    table = of_complete_steps(run, run.table("exposure"))
    steps = of_complete_steps(run, run.table("breakdown")).height
    causes = list(CAUSES)
    rows = (
        table.with_columns(kind=pl.col("kind").fill_null("other"))
        .group_by("cause", "kind", "advice")
        .agg(pl.col("exposed_ns").sum())
        .with_columns(
            ms=pl.col("exposed_ns") / NS_PER_MS / max(steps, 1),
            order=thinning.place("cause", {cause: place for place, cause in enumerate(causes)}),
            place=thinning.place("kind", {kind: place for place, kind in enumerate(style.KINDS)}),
        )
        .drop("exposed_ns")
    )
    return Drawn(rows.sort("order", "place"))


def waiting_rows(run: Run) -> Drawn:
    """Transfer and waiting of each rank's matched collectives, in ms of the mean complete step."""
    table = of_complete_steps(run, run.table("skew").drop_nulls("transfer_ns"))
    steps = pl.col("step").n_unique()
    rows = (
        table.group_by("rank")
        .agg(pl.col("transfer_ns", "wait_ns").sum() / NS_PER_MS / steps)
        .rename({"transfer_ns": "transfer", "wait_ns": "waiting"})
        .unpivot(["transfer", "waiting"], index="rank", variable_name="part", value_name="ms")
        .with_columns(
            row=pl.format("rank {}", "rank"),
            order=pl.col("rank").cast(pl.Int64),
            place=thinning.place("part", {part: place for place, part in enumerate(style.WAITING)}),
        )
    )
    return few_ranks(rows.sort("order", "place"))


def comparison_rows(runs: list[Run]) -> Drawn:
    """The parts of each run's mean complete step."""
    parts: list[pl.DataFrame] = []
    for order, (run, name) in enumerate(zip(runs, run_names(runs), strict=True)):
        table = of_complete_steps(run, run.table("breakdown"))
        mean = table.select(pl.col("step_ns", *_PARTS).mean())
        labelled = mean.with_columns(run=pl.lit(name), order=pl.lit(order, pl.Int64))
        parts.append(_parts(labelled, ["run", "order", "step_ns"]).drop("step_ns"))
    return Drawn(pl.concat(parts))


def run_names(runs: list[Run]) -> list[str]:
    """A name for each run, told apart by a number where two are called the same."""
    names = [plain_line(run.name) for run in runs]
    return [
        name if names.count(name) == 1 else f"{name} ({names[: i + 1].count(name)})" for i, name in enumerate(names)
    ]


def _written(column: str, form: str) -> pl.Expr:
    """The numbers of a column as text."""
    return pl.col(column).map_elements(form.format, return_dtype=pl.String)


def _theory(run: Run) -> pl.DataFrame:
    stage = strategy_stage(run.manifest.strategy) if run.manifest is not None else None
    passes = passes_by_kind(stage) if stage is not None and run.psi else {}
    return pl.DataFrame(
        {"kind": list(passes), "numel": [(run.psi or 0) * times for times in passes.values()]},
        schema={"kind": pl.String, "numel": pl.Int64},
    ).with_columns(source=pl.lit("theory"), num_collectives=pl.lit(None, pl.Float64))


def _by_kind(table: pl.DataFrame, column: str, steps: int) -> pl.DataFrame:
    """Mean over ranks and steps of a column, by kind."""
    return table.group_by("kind", maintain_order=True).agg(
        numel=pl.col(column).sum() / max(steps, 1), num_collectives=pl.col("num_collectives").sum() / max(steps, 1)
    )


def _parts(table: pl.DataFrame, index: list[str]) -> pl.DataFrame:
    """A breakdown's parts as rows: activity, place, ms, share."""
    places = {activity: place for place, activity in enumerate(style.ACTIVITY)}
    parts = table.select(*index, *(pl.col(column).alias(name) for column, name in _PARTS.items()))
    rows = parts.unpivot(list(_PARTS.values()), index=index, variable_name="activity", value_name="_ns")
    return (
        rows.with_columns(
            place=thinning.place("activity", places),
            ms=ms("_ns"),
            share=pl.when(pl.col("step_ns") > 0).then(pl.col("_ns") / pl.col("step_ns")),
        )
        .filter(pl.col("ms") > 0)
        .drop("_ns")
        .sort(*[name for name in ("order", "place") if name in (*index, "place")])
    )


def few_ranks(rows: pl.DataFrame) -> Drawn:
    """As many whole ranks as a chart holds."""
    ranks = rows["rank"].unique().sort().to_list()
    most = max(thinning.MAX_ROWS * max(len(ranks), 1) // max(rows.height, 1), 1)
    if most >= len(ranks):
        return Drawn(rows)
    kept = rows.filter(pl.col("rank").is_in(ranks[:most]))
    return Drawn(kept, f"The first {most} of {len(ranks)} ranks are drawn; report.json has all of them.")


def accelerators(table: pl.DataFrame) -> pl.DataFrame:
    """The rows of accelerators where there are any, else those of the CPU."""
    accelerators = table.filter(pl.col("device") != "cpu")
    return accelerators if not accelerators.is_empty() else table
