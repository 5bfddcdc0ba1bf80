"""`tracekit show`: any table of a run."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from tracekit import table_registry
from tracekit.cli.expected import (
    ParamsOption,
    PartialOption,
    PlanOption,
    StrategyOption,
    SumOption,
    ledger_arguments,
)
from tracekit.cli.options import (
    CycleOption,
    ForceOption,
    Format,
    FormatOption,
    NoCacheOption,
    OutputOption,
    RunArgument,
    integers,
    names,
    pick_format,
)
from tracekit.text import plain_line

_ROWS_FOR_PEOPLE = 100
_LISTING = "\n".join(f"[bold]{table.name:<14}[/] {table.answers}" for table in table_registry.TABLES)


def add_to(app: typer.Typer) -> None:
    """Adds the command to the app."""
    app.command(
        "show",
        help=f"Print a table of a run, or write it as JSON, CSV or Parquet.\n\n\b\n{_LISTING}",
        epilog="Examples: [bold]tracekit show volume out/demo/fsdp2 --by layer[/]  ·  "
        "[bold]tracekit show collectives RUN --rank 0 --sort exposed_ns:desc --limit 10[/]  ·  "
        "[bold]tracekit show overlap RUN --format json -o overlap.json[/]",
    )(command)


def command(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="One of the tables above.", show_default=False)],
    runs: RunArgument,
    step: Annotated[str, typer.Option(help="Only these steps: 3, 2-4 or 2,4.", show_default=False)] = "",
    rank: Annotated[str, typer.Option(help="Only these ranks.", show_default=False)] = "",
    by: Annotated[
        str, typer.Option(metavar="COLUMNS", help="Group by these columns, where a table can be.", show_default=False)
    ] = "",
    sort: Annotated[str, typer.Option(metavar="COLUMN[:desc]", help="Sort by this column.", show_default=False)] = "",
    limit: Annotated[
        int | None, typer.Option(min=0, help="At most this many rows; of a table 100 unless given.", show_default=False)
    ] = None,
    columns: Annotated[str, typer.Option(help="Only these columns, in this order.", show_default=False)] = "",
    form: FormatOption = None,
    output: OutputOption = None,
    force: ForceOption = False,
    cycle: CycleOption = None,
    no_cache: NoCacheOption = False,
    strategy: StrategyOption = "",
    params: ParamsOption = "",
    planned: PlanOption = None,
    partial: PartialOption = False,
    summed: SumOption = False,
) -> None:
    """Print a table of a run."""
    entry = table_registry.find(table)
    steps = integers(step, "--step") if step else []
    ranks = integers(rank, "--rank") if rank else []
    import tracekit
    from tracekit.cli import output as out
    from tracekit.cli.console import reading
    from tracekit.cli.rows import chosen, only, ordered

    with reading() as tell:
        run = tracekit.open(runs, cache=not no_cache, cycle=cycle, progress=tell)
    more, unknown = ledger_arguments(entry.name, run, strategy, params, planned, partial=partial, summed=summed)
    for sentence in unknown:
        print(f"{entry.name}: {plain_line(sentence)}", file=sys.stderr)
    frame = entry.function(run, by=names(by), **more) if more else run.table(table, by=names(by))
    frame = ordered(only(only(frame, "step", steps), "rank", ranks), sort)
    if limit is None and pick_format(form, output) is Format.TABLE:
        limit = _ROWS_FOR_PEOPLE
    wanted = names(columns)
    frame = chosen(frame, wanted)
    shown = frame if limit is None else frame.head(limit)
    cut = f"; {shown.height:,} of {frame.height:,} rows (--limit shows more)" if shown.height < frame.height else ""
    out.write(
        shown,
        table=entry.name,
        about={"run": run.name},
        chosen=form,
        output=output,
        force=force,
        keep=tuple(wanted),
        title=f"{entry.name} of {plain_line(run.name)}: {entry.answers}{cut}",
    )
