"""`tracekit show`: any table of a run."""

from __future__ import annotations

from typing import Annotated

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
    PatternsOption,
    RankOption,
    RunArgument,
    SafeCsvOption,
    SortOption,
    StepOption,
    names,
)


def add_to(app: typer.Typer) -> None:
    """Adds the command to the app."""
    listing = "\n".join(f"[bold]{table.name:<14}[/] {table.answers}" for table in table_registry.tables())
    app.command(
        "show",
        help=f"Print a table of a run, or write it as JSON, CSV or Parquet.\n\n\b\n{listing}",
        epilog="Examples: [bold]tracekit show volume out/demo/fsdp2 --by layer[/]  ·  "
        "[bold]tracekit show collectives RUN --rank 0 --sort exposed_ns:desc --limit 10[/]  ·  "
        "[bold]tracekit show overlap RUN --format json -o overlap.json[/]",
    )(command)


def complete(incomplete: str) -> list[tuple[str, str]]:
    """The tables whose names begin so, and what they answer: for the shell."""
    return [(table.name, table.answers) for table in table_registry.tables() if table.name.startswith(incomplete)]


def command(
    table: Annotated[
        str,
        typer.Argument(metavar="TABLE", help="One of the tables above.", show_default=False, autocompletion=complete),
    ],
    runs: RunArgument,
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
    patterns: PatternsOption = None,
) -> None:
    """Print a table of a run."""
    entry = table_registry.find(table)
    import tracekit
    from tracekit.cli import output as out
    from tracekit.cli.console import reading
    from tracekit.cli.rows import wanted

    asked = wanted(step=step, rank=rank, sort=sort, columns=columns, limit=limit)
    with reading() as tell:
        run = tracekit.open(runs, cache=not no_cache, cycle=cycle, progress=tell, patterns=patterns)
    frame = run.table(entry.name, by=names(by))
    out.write_table(
        frame, table=entry, run=run, asked=asked, chosen=form, output=output, force=force, safe_csv=safe_csv
    )
