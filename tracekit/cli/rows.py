"""Which rows of a table to show, and in what order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.errors import UsageError
from tracekit.text import suggestion

if TYPE_CHECKING:
    from collections.abc import Sequence


def only(frame: pl.DataFrame, column: str, wanted: Sequence[int]) -> pl.DataFrame:
    """The rows whose `column` holds one of the wanted numbers; all rows where nothing is wanted.

    Raises:
        UsageError: the table has no such column, or none of its rows holds one of the numbers.
    """
    if not wanted:
        return frame
    if column not in frame.columns:
        raise UsageError(f"--{column} does not fit: this table has no column {column}")
    held = frame[column].drop_nulls().unique().sort().to_list()
    missing = [number for number in wanted if number not in held]
    if missing:
        have = ", ".join(str(number) for number in held[:20]) or "none"
        more = ", …" if len(held) > 20 else ""
        raise UsageError(f"--{column} {missing[0]} is not in this table, which has {column} {have}{more}")
    return frame.filter(pl.col(column).is_in(wanted))


def chosen(frame: pl.DataFrame, columns: Sequence[str]) -> pl.DataFrame:
    """The wanted columns in their order; all columns where none is wanted.

    Raises:
        UsageError: there is no such column.
    """
    unknown = next((column for column in columns if column not in frame.columns), None)
    if unknown is not None:
        raise UsageError(f"--columns {unknown} is not a column: {suggestion(unknown, frame.columns)}")
    return frame.select(list(dict.fromkeys(columns))) if columns else frame


def ordered(frame: pl.DataFrame, sort: str) -> pl.DataFrame:
    """The rows sorted by `COLUMN` or `COLUMN:desc`, unknown last; equal rows keep their order.

    Raises:
        UsageError: there is no such column, or the direction is neither asc nor desc.
    """
    if not sort:
        return frame
    column, _, direction = sort.partition(":")
    if column not in frame.columns:
        raise UsageError(f"--sort {column} is not a column: {suggestion(column, frame.columns)}")
    if direction not in ("", "asc", "desc"):
        raise UsageError(f"--sort {sort} ends in {direction!r}: use {column}:asc or {column}:desc")
    return frame.sort(column, descending=direction == "desc", nulls_last=True, maintain_order=True)
