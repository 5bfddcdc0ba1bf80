"""What a user says about a foreign trace, so that the ledger can hold it against a theory or a plan."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tracekit.cli.options import count
from tracekit.errors import UsageError

if TYPE_CHECKING:
    from tracekit.manifest import Manifest
    from tracekit.model.run import Run

_LEDGER = "ledger"

StrategyOption = Annotated[
    str, typer.Option(help="ledger: how the run was trained, if it has no manifest.", show_default=False)
]
ParamsOption = Annotated[
    str,
    typer.Option(
        metavar="N|FILE", help="ledger: Ψ, or a manifest or safetensors file with parameter shapes.", show_default=False
    ),
]
PlanOption = Annotated[
    Path | None,
    typer.Option("--plan", metavar="FILE", help="ledger: what tracekit plan --format json wrote.", show_default=False),
]
PartialOption = Annotated[bool, typer.Option("--partial", help="ledger: compare even where sizes are not all known.")]
SumOption = Annotated[bool, typer.Option("--sum", help="ledger: add up all ranks and steps.")]


def ledger_arguments(
    table: str, run: Run, strategy: str, params: str, planned: Path | None, *, partial: bool, summed: bool
) -> tuple[dict[str, Any], list[str]]:
    """Arguments of the ledger, and sentences about what it cannot know; nothing for any other table.

    Raises:
        UsageError: an option is given for another table, or cannot be used.
    """
    if table != _LEDGER:
        given = {"--strategy": strategy, "--params": params, "--plan": planned, "--partial": partial, "--sum": summed}
        wrong = next((name for name, value in given.items() if value), None)
        if wrong:
            raise UsageError(f"{wrong} is for the ledger: {table} has no use for it")
        return {}, []
    from tracekit.analyzers.expectation import expectation

    shapes = _parameters(run, strategy, params) if params else None
    known = expectation(run, strategy=strategy or None, params=shapes, planned=planned)
    sentences = [f"unknown is {missing}" for missing in known.missing]
    unsized = run.collectives["payload_bytes"].null_count()
    if unsized:
        total = run.collectives.height
        rest = "" if partial else ", so nothing is compared where one is missing (--partial compares all the same)"
        sentences.append(f"sizes are known for {total - unsized:,} of {total:,} collectives{rest}")
    return {"expected": known, "partial": partial, "summed": summed}, sentences


def _parameters(run: Run, strategy: str, params: str) -> int | Manifest:
    """Ψ, or a manifest made of the file's shapes and of what the trace tells: ranks and types."""
    if not Path(params).is_file():
        return count(params, "--params")
    from tracekit.manifest import Precision
    from tracekit.plan import build

    if not strategy:
        raise UsageError("--params FILE needs --strategy, which says what is sent of those parameters")
    sent = run.collectives
    sizes = sent["group_size"].drop_nulls()
    ranks = int(sizes.max() or run.world_size or 1)  # pyright: ignore[reportArgumentType]
    types: dict[str, str] = dict(sent.drop_nulls("dtype").group_by("kind").agg(_most_bytes()).iter_rows())
    gathered = types.get("all_gather") or types.get("broadcast")
    reduced = types.get("reduce_scatter") or types.get("all_reduce") or types.get("reduce")
    return build.manifest(
        strategy,
        build.parameters_from(Path(params)),
        mesh={"dp_shard": ranks},
        precision=Precision(gathered, reduced),
    )


def _most_bytes() -> Any:
    """The type that carries the most bytes."""
    import polars as pl

    return pl.col("dtype").sort_by(pl.col("payload_bytes").fill_null(0)).last()
