"""Rows and columns of a table that a user asks for, in order."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from tracekit.cli.options import integers, names
from tracekit.errors import UsageError
from tracekit.text import suggestion

if TYPE_CHECKING:
    from collections.abc import Sequence


class Wanted(NamedTuple):
    """Rows and columns of a table that a user asks for; of an empty list or text, all or as they come."""

    steps: list[int]
    ranks: list[int]
    sort: str
    columns: list[str]
    limit: int | None


def wanted(*, step: str, rank: str, sort: str, columns: str, limit: int | None) -> Wanted:
    """Choice of rows and columns that the options make.

    Raises:
        UsageError: steps or ranks are no numbers.
    """
    steps = integers(step, "--step") if step else []
    ranks = integers(rank, "--rank") if rank else []
    return Wanted(steps, ranks, sort, names(columns), limit)


def picked(frame: pl.DataFrame, asked: Wanted) -> pl.DataFrame:
    """All rows that are asked for, in order, and of them the columns.

    Raises:
        UsageError: there are none of them.
    """
    rows = only(only(frame, "step", asked.steps), "rank", asked.ranks)
    return chosen(ordered(rows, asked.sort), asked.columns)


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
