"""Hands a frame to the writer that the user asked for."""

from __future__ import annotations

import sys
from typing import IO, TYPE_CHECKING, Any

from tracekit.cli.console import console
from tracekit.cli.options import Format, pick_format
from tracekit.cli.rows import Wanted, picked
from tracekit.errors import UsageError
from tracekit.export import files, tabular, terminal
from tracekit.text import plain_line

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import polars as pl

    from tracekit.model.run import Run
    from tracekit.table_registry import Table


_ROWS_FOR_PEOPLE = 100


def write_table(
    frame: pl.DataFrame,
    *,
    table: Table,
    run: Run,
    asked: Wanted,
    chosen: Format | None,
    output: Path | None,
    force: bool,
    safe_csv: bool = False,
    inputs: Sequence[Path] = (),
) -> None:
    """Writes the rows and columns of the run's table that are asked for; people get the first 100 unless they say.

    `inputs` are files that the command read beside the run.

    Raises:
        UsageError: there are none of them, or as for :func:`write`.
    """
    rows = picked(frame, asked)
    if safe_csv:
        if pick_format(chosen, output) is not Format.CSV:
            raise UsageError("--safe-csv is for CSV alone: add --format csv, or name an output that ends in .csv")
        rows = tabular.defused(rows)
    limit = asked.limit
    if limit is None and pick_format(chosen, output) is Format.TABLE:
        limit = _ROWS_FOR_PEOPLE
    shown = rows if limit is None else rows.head(limit)
    cut = f"; {shown.height:,} of {rows.height:,} rows (--limit shows more)" if shown.height < rows.height else ""
    write(
        shown,
        table=table.name,
        about={"run": run.name},
        chosen=chosen,
        output=output,
        force=force,
        runs=[*run.paths, *inputs],
        keep=tuple(asked.columns),
        title=f"{table.name} of {plain_line(run.name)}: {table.answers}{cut}",
        notes=_on_steps(run, shown) if table.name != "steps" and pick_format(chosen, output) is Format.TABLE else (),
    )


def _on_steps(run: Run, shown: pl.DataFrame) -> list[str]:
    """A note on the rows of steps that are not whole: their times are no times of a step."""
    if not {"rank", "step"} <= set(shown.columns) or "complete" in shown.columns:
        return []
    keys = ["rank", "step"]
    cut = run.steps.filter(~run.steps["complete"]).join(
        shown.select(keys).unique(), on=keys, how="semi", nulls_equal=True
    )
    if cut.is_empty():
        return []
    rank, number, reason = cut.select("rank", "step", "reason").row(0)
    which = f"step {number} of rank {rank}" if number is not None else f"the window of rank {rank}"
    more = f", and {cut.height - 1} more (show steps)" if cut.height > 1 else ""
    return [f"not whole: {which} ({plain_line(reason or 'no reason is known')}){more}"]


def write(
    frame: pl.DataFrame,
    *,
    table: str,
    about: Mapping[str, Any],
    chosen: Format | None,
    output: Path | None,
    force: bool,
    runs: Sequence[Path] = (),
    title: str = "",
    units: Mapping[str, tuple[int, str]] | None = None,
    keep: tuple[str, ...] = (),
    notes: Sequence[str] = (),
) -> None:
    """Writes the frame to the output, or to stdout, in the chosen format.

    Raises:
        UsageError: the output may not be replaced, or Parquet would go to a terminal.
    """
    path = None if output is None or str(output) == "-" else output
    form = pick_format(chosen, path)
    if path is None and form is Format.TABLE:
        terminal.draw(frame, console(), title=title, units=units, keep=keep, notes=notes)
    elif path is None:
        if form is Format.PARQUET and sys.stdout.isatty():
            raise UsageError("Parquet is not for a terminal: name a file with -o, or pipe it on")
        if form is Format.CSV and sys.stdout.isatty():
            frame = tabular.printable(frame)
        _write_binary(frame, sys.stdout.buffer, form, table, about)
        sys.stdout.buffer.flush()
    elif form is Format.TABLE:
        with files.open_output(path, force=force, runs=runs) as stream:
            terminal.draw(frame, console(stream), title=title, units=units, keep=keep, notes=notes)
        files.announce(path)
    else:
        with files.open_output(path, force=force, runs=runs, binary=True) as stream:
            _write_binary(frame, stream, form, table, about)
        files.announce(path)


def _write_binary(frame: pl.DataFrame, stream: IO[bytes], form: Format, table: str, about: Mapping[str, Any]) -> None:
    if form is Format.JSON:
        tabular.write_json(frame, stream, table=table, about=about)
    elif form is Format.CSV:
        tabular.write_csv(frame, stream)
    else:
        tabular.write_parquet(frame, stream, table=table)
