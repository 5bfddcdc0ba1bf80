"""Shared by these scripts: runs as arguments, a table or a picture as the result, one sentence for an error."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
from polars import selectors as cs

from tracekit.errors import InputError, TracekitError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    import altair as alt

PICTURES = (".html", ".png", ".svg")


def parser(description: str | None, *, runs: str | None = "one", picture: bool = True) -> ArgumentParser:
    """A parser for one RUN, `runs="several"` or none, for `--format`, and for `-o` where there is a picture."""
    made = ArgumentParser(description=description)
    if runs:
        name, nargs = ("run", None) if runs == "one" else ("runs", "+")
        made.add_argument(name, metavar="RUN", nargs=nargs, help="a run's folder, or a trace file")
    made.add_argument("--format", choices=["table", "json", "csv"], default="table", help="how the table is printed")
    if picture:
        made.add_argument("-o", "--output", metavar="FILE", type=Path, help="draw it: FILE.html, FILE.png or FILE.svg")
    return made


def positive(text: str) -> int:
    """A positive whole number, as the type of an option."""
    if not text.isdecimal() or int(text) == 0:
        raise ArgumentTypeError(f"{text} is not a positive whole number")
    return int(text)


def read_table(path: Path, columns: Sequence[str]) -> pl.DataFrame:
    """A CSV file with these columns. Raises InputError where it is none."""
    try:
        table = pl.read_csv(path)
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such file") from None
    except (pl.exceptions.PolarsError, OSError) as error:
        raise InputError(f"{path}: this is no table of columns with names: {str(error).splitlines()[0]}") from None
    missing = [name for name in columns if name not in table.columns]
    if missing:
        raise InputError(f"{path}: there is no column {', '.join(missing)}; needed are {', '.join(columns)}")
    return table


@contextmanager
def one_sentence() -> Generator[None]:
    """Turns what is wrong with the user's input into one sentence on stderr and exit code 2."""
    try:
        yield
    except (TracekitError, OSError) as error:
        print(f"{Path(sys.argv[0]).name}: {error}", file=sys.stderr)
        sys.exit(2)


def write(
    table: pl.DataFrame, given: Namespace, chart: Callable[[pl.DataFrame], alt.TopLevelMixin] | None = None
) -> None:
    """Draws the table where a picture was asked for, else prints it, with means of ns and bytes as whole numbers."""
    output: Path | None = getattr(given, "output", None)
    if output is not None and chart is not None:
        if output.suffix not in PICTURES:
            raise UsageError(f"{output}: pictures are written as {', '.join(PICTURES)}; give -o such a name")
        chart(table).save(output, inline=output.suffix == ".html", scale_factor=2)
        return
    table = table.with_columns(cs.ends_with("_ns", "_bytes").round(0).cast(pl.Int64))
    if given.format == "json":
        print(table.write_json())
    elif given.format == "csv":
        print(table.write_csv(), end="")
    else:
        with pl.Config(
            tbl_rows=-1, tbl_cols=-1, tbl_width_chars=-1, tbl_formatting="MARKDOWN", tbl_hide_column_data_types=True,
            tbl_hide_dataframe_shape=True, thousands_separator=True, float_precision=3, fmt_str_lengths=100,
            tbl_cell_numeric_alignment="RIGHT",
        ):  # fmt: skip
            print(table)
