"""Options that several commands share, and the reading of their values."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from tracekit.errors import UsageError

_SUFFIXES = {"k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}
_LARGEST = 10**18
_LONGEST_RANGE = 10_000


class Format(StrEnum):
    """Format that a table is written in."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    PARQUET = "parquet"


FormatOption = Annotated[
    Format | None,
    typer.Option("--format", "-f", help="Default: what the output's suffix says, else a table.", show_default=False),
]
OutputOption = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FILE", help="Write to a file; - is stdout.", show_default=False),
]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace outputs that exist.")]
SafeCsvOption = Annotated[
    bool,
    typer.Option("--safe-csv", help="In CSV, put ' before text that a spreadsheet would run (= + - @, tab, CR)."),
]
NoCacheOption = Annotated[bool, typer.Option("--no-cache", help="Neither use nor keep what was decoded of the traces.")]
CycleOption = Annotated[
    int | None,
    typer.Option(min=0, help="Of several recorded cycles, this one; default: newest complete.", show_default=False),
]
StepOption = Annotated[str, typer.Option("--step", help="Only these steps: 3, 2-4 or 2,4.", show_default=False)]
RankOption = Annotated[str, typer.Option("--rank", help="Only these ranks.", show_default=False)]
ByOption = Annotated[
    str,
    typer.Option("--by", metavar="COLUMNS", help="Group by these columns, where a table can be.", show_default=False),
]
SortOption = Annotated[
    str, typer.Option("--sort", metavar="COLUMN[:desc]", help="Sort by this column.", show_default=False)
]
LimitOption = Annotated[
    int | None,
    typer.Option("--limit", min=0, help="At most this many rows; of a table 100 unless given.", show_default=False),
]
ColumnsOption = Annotated[str, typer.Option("--columns", help="Only these columns, in this order.", show_default=False)]

PatternsOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Names of your own communication kernels (TOML); default: tracekit-patterns.toml in the run's folder.",
        show_default=False,
    ),
]


def run_path(text: str) -> Path:
    """The path that a user names a run by.

    Raises:
        UsageError: it is empty, as that of an unset variable is, which would mean the current folder.
    """
    if not text:
        raise UsageError("the path of the run is empty: give a run's folder or trace files, or . for this folder")
    return Path(text)


RunArgument = Annotated[
    list[Path],
    typer.Argument(metavar="RUN", help="A run's folder, or trace files.", show_default=False, parser=run_path),
]


def integers(text: str, option: str) -> list[int]:
    """Whole numbers from `1,8,64` and ranges such as `2-4`, in the order given.

    Raises:
        UsageError: a part is neither.
    """
    numbers: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        try:
            start = int(first)
            stop = int(last) if dash else start
        except ValueError:
            raise UsageError(f"{option} {text} is not a list of whole numbers such as 1,8,64 or 2-4") from None
        if not 0 <= stop - start < _LONGEST_RANGE:
            raise UsageError(f"{option} {text} holds a range that is backwards or longer than {_LONGEST_RANGE:,}")
        numbers += range(start, stop + 1)
    return numbers


def names(text: str) -> list[str]:
    """The names of a comma-separated list."""
    return [part.strip() for part in text.split(",") if part.strip()]


def count(text: str, option: str) -> int:
    """A positive whole number from `7000000000`, `7e9`, `7_000_000_000` or `7B`.

    Raises:
        UsageError: it is not one, or it is larger than 10¹⁸.
    """
    multiple = _SUFFIXES.get(text[-1:].lower(), 1)
    try:
        value = Decimal(text if multiple == 1 else text[:-1]) * multiple
    except InvalidOperation:
        raise UsageError(f"{option} {text} is not a number such as 7e9 or 7B") from None
    if not value.is_finite() or not 0 < value <= _LARGEST or value != value.to_integral_value():
        raise UsageError(f"{option} {text} must be a whole number from 1 to 1e18")
    return int(value)


def pick_format(chosen: Format | None, output: Path | None) -> Format:
    """The chosen format, else the one that the output's suffix names, else a table.

    Raises:
        UsageError: the suffix names a format that is not written here.
    """
    if chosen is not None:
        return chosen
    suffix = output.suffix.removeprefix(".").lower() if output else ""
    if suffix in {Format.JSON, Format.CSV, Format.PARQUET}:
        return Format(suffix)
    if suffix not in {"", "txt", "md", "table", "log", "out"}:
        raise UsageError(f"{output}: tables are written as json, csv, parquet or text (.txt); pick one with --format")
    return Format.TABLE
