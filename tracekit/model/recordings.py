"""Joins by the recording that rows belong to: one rank's file of one cycle.

Most traces that people open are of one rank. A join on three columns takes several times as long as one on a single
column, so where all rows are of one recording its key is left out.
"""

from __future__ import annotations

import polars as pl

RUN = ["rank", "cycle"]


def is_one(*frames: pl.DataFrame) -> bool:
    """Return whether all rows of these frames are of one recording."""
    return all(_is_constant([frame[name] for frame in frames if frame.height]) for name in RUN)


def _is_constant(columns: list[pl.Series]) -> bool:
    ends = [end for column in columns for end in (column.min(), column.max())]
    return all(end == ends[0] for end in ends) and not any(column.null_count() for column in columns)


def without(frame: pl.DataFrame, *parts: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of the frame whose recording is in none of `parts`."""
    known = [part.select(RUN) for part in parts if part.height]
    if not known or frame.is_empty():
        return frame
    if is_one(frame, *known):
        return frame.clear()
    return frame.join(pl.concat(known).unique(), on=RUN, how="anti", maintain_order="left")


def with_first(table: pl.DataFrame, rows: pl.DataFrame, key: str) -> pl.DataFrame:
    """Return `table` with the columns of the first of `rows` that has its recording and `key`; null where none has."""
    on = [key] if is_one(table, rows) else [*RUN, key]
    return joined(table, rows.unique(on, keep="first", maintain_order=True), key)


def joined(table: pl.DataFrame, rows: pl.DataFrame, key: str) -> pl.DataFrame:
    """Return `table` with the columns of the only one of `rows` that has its recording and `key`; null for none."""
    if is_one(table, rows):
        return table.join(rows.drop(RUN), on=key, how="left", maintain_order="left")
    return table.join(rows, on=[*RUN, key], how="left", maintain_order="left")
