"""Tables of the page as text: units in the headers, unknown as –, long ones cut."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import polars as pl

MAX_TABLE_ROWS = 200


@dataclass(frozen=True)
class Table:
    """A table as text: columns (header, numeric) and rows of cells."""

    title: str
    columns: list[Any]
    rows: list[tuple[str, ...]]
    note: str = ""
    open: bool = False


def first_rows(frame: pl.DataFrame, title: str) -> Table:
    """The frame as text, its first rows where it is long."""
    note = ""
    if frame.height > MAX_TABLE_ROWS:
        note = f"The first {MAX_TABLE_ROWS} of {frame.height:,} rows; report.json has all of them."
    return as_table(frame.head(MAX_TABLE_ROWS), title, note)


def as_table(frame: pl.DataFrame, title: str, note: str = "") -> Table:
    """The frame as text; what is the same in every row is told in a note."""
    from tracekit.export.terminal import columns, constant_notes, split_constant

    shown, constant = split_constant(columns(frame), frame.height)
    rows = list(zip(*(column.cells for column in shown), strict=True))
    told = "; ".join(constant_notes(constant))
    notes = [note, told and f"{told[0].upper()}{told[1:]}."]
    return Table(title, shown, rows, " ".join(filter(None, notes)))
