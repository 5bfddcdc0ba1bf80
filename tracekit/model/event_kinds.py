"""The events of a run split by category, once, so that no table searches the events of another.

Categories are compared in lower case; each torch and each backend has its own spellings (see names.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable
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
    """Return the events split by category."""
    family = by_value(events["cat"], names.family_of)
    return Kinds(*(events.filter(family == name) for name in Kinds._fields))


def by_value(values: pl.Series, classify: Callable[[str | None], str | None]) -> pl.Series:
    """Return `classify` of each text, called once for each distinct one."""
    if values.is_empty():
        return values
    distinct = values.unique().to_list()
    return values.replace_strict(distinct, [classify(value) for value in distinct], return_dtype=pl.String)


def timed(events: pl.DataFrame) -> pl.DataFrame:
    """Return the complete events that have a usable start and duration."""
    return events.filter(pl.col("ph") == "X", pl.col("dur_ns") >= 0, pl.col("ts_ns").is_not_null())


def device_calls(kinds: Kinds) -> pl.DataFrame:
    """Return the events that only a rank with a device leaves, beside those of the device, with `what` they are.

    Calls of a backend of devices (`nccl:`, `xccl:`, `hccl:`), on the CPU or drawn around kernels; rows of a process
    that is labelled as a device and are not understood.
    """
    named = pl.col("name").str.contains(names.OF_DEVICES)
    calls = pl.concat([part.filter(named) for part in (kinds.operators, kinds.annotations, kinds.drawn)])
    drawn = kinds.drawn.filter(pl.col("cat").str.ends_with(names.LABELLED_DRAWN[1]))
    return pl.concat(
        [
            calls.with_columns(by_value(calls["name"], _backend).alias("what")),
            drawn.with_columns(pl.lit("rows of a labelled device that are not understood").alias("what")),
        ]
    )


def _backend(name: str | None) -> str | None:
    found = re.match(names.OF_DEVICES, name or "")
    return f"calls of {found[1].upper()}" if found else None
