"""`tracekit ledger`: the ledger of a run, held against what a user says of a trace that has no manifest."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tracekit import table_registry
from tracekit.cli.options import (
    ByOption,
    ColumnsOption,
    CycleOption,
    ForceOption,
    FormatOption,
    LimitOption,
    NoCacheOption,
    OutputOption,
    RankOption,
    RunArgument,
    SafeCsvOption,
    SortOption,
    StepOption,
    count,
    names,
)
from tracekit.errors import UsageError
from tracekit.text import plain_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.analyzers.expectation import Expectation
    from tracekit.manifest import Manifest
    from tracekit.model.run import Run


_OF_SHAPES = (
    "of --params FILE only the parameters' shapes are taken: buffers, options, units and micro-batches of the file "
    "are not; give --plan with what tracekit plan --format json wrote to have them"
)


def add_to(app: typer.Typer) -> None:
    """Adds the command to the app."""
    app.command(
        "ledger",
        epilog="Examples: [bold]tracekit ledger traces/zero2 --sum[/]  ·  "
        "[bold]tracekit ledger trace.json.gz --strategy zero2 --params 7e9[/]",
    )(command)


def command(
    runs: RunArgument,
    strategy: Annotated[
        str, typer.Option(help="How the run was trained, if it has no manifest.", show_default=False)
    ] = "",
    params: Annotated[
        str,
        typer.Option(
            metavar="N|FILE", help="Ψ, or a manifest or safetensors file with parameter shapes.", show_default=False
        ),
    ] = "",
    planned: Annotated[
        Path | None,
        typer.Option("--plan", metavar="FILE", help="What tracekit plan --format json wrote.", show_default=False),
    ] = None,
    partial: Annotated[bool, typer.Option("--partial", help="Compare even where sizes are not all known.")] = False,
    summed: Annotated[bool, typer.Option("--sum", help="Add up all ranks and steps.")] = False,
    step: StepOption = "",
    rank: RankOption = "",
    by: ByOption = "",
    sort: SortOption = "",
    limit: LimitOption = None,
    columns: ColumnsOption = "",
    form: FormatOption = None,
    safe_csv: SafeCsvOption = False,
    output: OutputOption = None,
    force: ForceOption = False,
    cycle: CycleOption = None,
    no_cache: NoCacheOption = False,
) -> None:
    """From the ZeRO paper's closed form to the recorded volume, in named terms that add up.

    What a run should send is known by its manifest. Of a trace without one, [bold]--strategy[/] and
    [bold]--params[/], or [bold]--plan[/], say it.
    """
    import tracekit
    from tracekit.analyzers.expectation import expectation
    from tracekit.analyzers.ledger import ledger
    from tracekit.cli import output as out
    from tracekit.cli.console import reading
    from tracekit.cli.rows import wanted

    asked = wanted(step=step, rank=rank, sort=sort, columns=columns, limit=limit)
    with reading() as tell:
        run = tracekit.open(runs, cache=not no_cache, cycle=cycle, progress=tell)
    shapes = _parameters(run, strategy, params) if params else None
    expected = expectation(run, strategy=strategy or None, params=shapes, planned=planned)
    of_shapes = [] if shapes is None or isinstance(shapes, int) else [_OF_SHAPES]
    for sentence in (*of_shapes, *_unknown(run, expected, partial=partial)):
        print(f"ledger: {plain_line(sentence)}", file=sys.stderr)
    frame = ledger(run, by=names(by), expected=expected, partial=partial, summed=summed)
    table = table_registry.find("ledger")
    out.write_table(
        frame,
        table=table,
        run=run,
        asked=asked,
        chosen=form,
        output=output,
        force=force,
        safe_csv=safe_csv,
        inputs=[*([planned] if planned else []), *([Path(params)] if params else [])],
    )


def _unknown(run: Run, expected: Expectation, *, partial: bool) -> Iterator[str]:
    """Sentences about what the ledger cannot know."""
    yield from (f"unknown is {missing}" for missing in expected.missing)
    unsized, total = run.collectives["payload_bytes"].null_count(), run.collectives.height
    if unsized:
        rest = "" if partial else ", so nothing is compared where one is missing (--partial compares all the same)"
        yield f"sizes are known for {total - unsized:,} of {total:,} collectives{rest}"


def _parameters(run: Run, strategy: str, params: str) -> int | Manifest:
    """Ψ, or a manifest made of the file's shapes and of what the trace tells: ranks and types."""
    if not Path(params).is_file():
        return count(params, "--params")
    from tracekit.manifest import Precision
    from tracekit.plan import build
    from tracekit.strategies import find

    if not strategy:
        raise UsageError("--params FILE needs --strategy, which says what is sent of those parameters")
    axis, *more = find(strategy).axes
    if more:
        raise UsageError(
            f"--params FILE does not say how large the axes {axis}, {', '.join(more)} of {strategy} are: give --plan "
            f"with what tracekit plan --strategy {strategy} --params-from FILE --mesh {axis}=N,{more[0]}=M "
            "--format json wrote"
        )
    sent = run.collectives
    sizes = sent["group_size"].drop_nulls()
    ranks = int(sizes.max() or run.world_size or 1)  # pyright: ignore[reportArgumentType]
    types: dict[str, str] = dict(sent.drop_nulls("dtype").group_by("kind").agg(_most_bytes()).iter_rows())
    gathered = types.get("all_gather") or types.get("broadcast")
    reduced = types.get("reduce_scatter") or types.get("all_reduce") or types.get("reduce")
    return build.manifest(
        strategy,
        build.parameters_from(Path(params)),
        mesh={axis: ranks},
        precision=Precision(gathered, reduced),
    )


def _most_bytes() -> Any:
    """The type that carries the most bytes."""
    import polars as pl

    return pl.col("dtype").sort_by(pl.col("payload_bytes").fill_null(0)).last()
