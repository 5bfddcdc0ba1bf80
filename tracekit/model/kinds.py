"""The events of a run told apart once, by category, so that no table looks through those of another.

Categories are compared in lower case; each torch and each backend has its own spellings (see names.py).
"""

from __future__ import annotations

from typing import NamedTuple

import polars as pl

from tracekit.model import names


class Kinds(NamedTuple):
    """Frames of EVENT_SCHEMA with rank and cycle, each in file order; together they are all events but Python's frames
    and memory instants.

    `operators`, `annotations` (the user's and the backend's, on the CPU), `launches` (calls of the device's runtime),
    `links` (from a forward operator to its backward), `drawn` (waits, overhead, spans that repeat others), `others`:
    what runs on a device, and whatever has a category of its own.
    """

    operators: pl.DataFrame
    annotations: pl.DataFrame
    launches: pl.DataFrame
    links: pl.DataFrame
    drawn: pl.DataFrame
    others: pl.DataFrame


def kinds(events: pl.DataFrame) -> Kinds:
    """Tell the events apart."""
    fields = Kinds._fields
    categories = events["cat"].unique().to_list()
    codes = [fields.index(names.family_of(category)) for category in categories]
    code = events.select(pl.col("cat").replace_strict(categories, codes, return_dtype=pl.UInt8)).to_series()
    return Kinds(*(events.filter(code == n) for n in range(len(fields))))


def without(frame: pl.DataFrame, *parts: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of the frame whose rank and cycle none of `parts` has."""
    known = pl.concat([part.select("rank", "cycle") for part in parts]).unique()
    return frame if known.is_empty() or frame.is_empty() else frame.join(known, on=["rank", "cycle"], how="anti")


def timed(events: pl.DataFrame) -> pl.DataFrame:
    """Return the complete events that have a place in time."""
    return events.filter(pl.col("ph") == "X", pl.col("dur_ns") >= 0, pl.col("ts_ns").is_not_null())
