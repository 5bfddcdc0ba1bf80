"""Decoded events -> polars frames: two narrow frames of all events, and the arguments of the few that have them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import compress
from operator import not_
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl
import polars.selectors as cs

from tracekit.read.decoding import clock
from tracekit.read.decoding.arguments import columns_of, integers, texts
from tracekit.read.decoding.events import Args, CommArgs, Event, Shape
from tracekit.read.decoding.spellings import COMM_PREFIXES, LAUNCH_FLOWS, LINK, MEMORY, PYTHON_FRAME

_FRAME_COLUMNS = ("index", "name", "pid", "tid", "ts_ns", "dur_ns")
# One row an event that is neither a frame of Python nor a memory instant, in file order. Times are absolute ns; `index`
# is the position among the file's entries.
EVENT_SCHEMA: dict[str, pl.DataType] = {
    "index": pl.Int64(),
    "ph": pl.String(),
    "cat": pl.String(),
    "name": pl.String(),
    "pid": pl.Int64(),
    "tid": pl.Int64(),
    "ts_ns": pl.Int64(),
    "dur_ns": pl.Int64(),
    "external_id": pl.Int64(),
    "correlation": pl.Int64(),
    "sequence": pl.Int64(),
}
# One row a frame of Python. They are half of many files and serve few questions, so they lie apart.
FRAME_SCHEMA: dict[str, pl.DataType] = {name: EVENT_SCHEMA[name] for name in _FRAME_COLUMNS}
# Of rows on a device.
DEVICE_SCHEMA: dict[str, pl.DataType] = {
    "index": pl.Int64(),
    "stream": pl.Int64(),
    "device": pl.Int64(),
    "copied_bytes": pl.Int64(),
}
# Of rows that name a collective; `input_dims` and `input_type` are JSON text.
COMM_SCHEMA: dict[str, pl.DataType] = {
    "index": pl.Int64(),
    "collective": pl.String(),
    "in_numel": pl.Int64(),
    "out_numel": pl.Int64(),
    "group_size": pl.Int64(),
    "dtype": pl.String(),
    "group": pl.String(),
    "group_desc": pl.String(),
    "seq": pl.Int64(),
    "input_dims": pl.String(),
    "input_type": pl.String(),
}
# One row an allocation or a free (a [memory] instant).
MEMORY_SCHEMA: dict[str, pl.DataType] = {
    **{name: EVENT_SCHEMA[name] for name in ("index", "cat", "pid", "tid", "ts_ns")},
    "delta_bytes": pl.Int64(),
    "address": pl.Int64(),
    "allocated_bytes": pl.Int64(),
    "reserved_bytes": pl.Int64(),
    "device_type": pl.Int64(),
    "device_id": pl.Int64(),
}
# Ends of flows from a launch to its device row, for rows whose launch has no event of its own; `correlation` is the id.
FLOW_SCHEMA: dict[str, pl.DataType] = {
    "index": pl.Int64(),
    "correlation": pl.Int64(),
    "tid": pl.Int64(),
    "ts_ns": pl.Int64(),
}
SCHEMAS = {
    "events": EVENT_SCHEMA,
    "frames": FRAME_SCHEMA,
    "device": DEVICE_SCHEMA,
    "comm": COMM_SCHEMA,
    "memory": MEMORY_SCHEMA,
    "flows": FLOW_SCHEMA,
}

# Of events among the entries of their file.
_Places = npt.NDArray[np.int64]
# Columns of SCHEMAS by table, for some events of one file; a table without rows can lack them.
Pieces = dict[str, dict[str, pl.Series]]


class Columns(NamedTuple):
    """Frames of SCHEMAS for the events of one file."""

    events: pl.DataFrame
    frames: pl.DataFrame
    device: pl.DataFrame
    comm: pl.DataFrame
    memory: pl.DataFrame
    flows: pl.DataFrame

    def together(self) -> pl.DataFrame:
        """Return all events as EVENT_SCHEMA, in file order, with what the frames have beside it (rank and cycle)."""
        apart = [
            self.frames.with_columns(ph=pl.lit("X"), cat=pl.lit(PYTHON_FRAME)),
            self.memory.select(cs.by_name(self.events.columns, require_all=False)).with_columns(
                ph=pl.lit("i"), name=pl.lit(MEMORY)
            ),
        ]
        places = [name for name in ("rank", "cycle", "index") if name in self.events.columns]
        return pl.concat([self.events, *apart], how="diagonal").sort(places)

    @property
    def num_events(self) -> int:
        """Metadata and most flows are no events."""
        return self.events.height + self.frames.height + self.memory.height


class NarrowError(ValueError):
    """Events with collectives, decoded without the arguments that these have."""


def pieces(events: Sequence[Event], first_index: int, shape: Shape) -> Pieces:
    """Return the columns of these events, `base_ns` not yet added to times; metadata rows and most flows are left out.

    A query costs polars a fixed time whatever its size, so rows are chosen here in plain lists.

    Raises:
        NarrowError: the shape lacks the arguments of collectives.
        RoundedError: the shape has times as floats too large to be exact.
    """
    places = np.arange(first_index, first_index + len(events))
    is_frame = [e.cat == PYTHON_FRAME and e.ph == "X" for e in events]
    frames, frame_places, rest, places = _split(events, places, is_frame)
    is_instant = [e.name == MEMORY and e.ph == "i" for e in rest]
    instants, instant_places, rest, places = _split(rest, places, is_instant)
    is_kept = [(ph := e.ph) == "X" or ph == "i" or (ph == "s" and e.cat == LINK) for e in rest]
    kept, kept_places, rest, places = _split(rest, places, is_kept)
    flows, flow_places, _, _ = _split(rest, places, [e.ph == "s" and e.cat in LAUNCH_FLOWS for e in rest])
    found: Pieces = {}
    if frames:
        found["frames"] = _spans(frames, frame_places)
    if instants:
        args = columns_of([e.args or Args() for e in instants], MEMORY_SCHEMA)
        found["memory"] = {
            **_moments(instants, instant_places),
            "pid": integers([e.pid for e in instants]),
            "cat": texts([e.cat for e in instants]),
            **args,
        }
    if kept:
        found.update(_linked(kept, kept_places, shape))
    if flows:
        found["flows"] = {**_moments(flows, flow_places), "correlation": integers([e.id for e in flows])}
    return found


def _split(
    events: Sequence[Event], places: _Places, chosen: list[bool]
) -> tuple[Sequence[Event], _Places, Sequence[Event], _Places]:
    """The chosen events with their places, and the others with theirs."""
    mask = np.frombuffer(bytes(chosen), np.bool_)
    if not mask.any():
        return [], places[:0], events, places
    others = [] if mask.all() else list(compress(events, map(not_, chosen)))
    return list(compress(events, chosen)), places[mask], others, places[~mask]


def _moments(events: Sequence[Event], places: _Places) -> dict[str, pl.Series]:
    """When each event began, and on which thread of its process."""
    return {
        "index": pl.Series(places),
        "tid": integers([e.tid for e in events]),
        "ts_ns": clock.starts([e.ts for e in events]),
    }


def _spans(events: Sequence[Event], places: _Places) -> dict[str, pl.Series]:
    return {
        **_moments(events, places),
        "pid": integers([e.pid for e in events]),
        "name": texts([e.name for e in events]),
        "dur_ns": clock.lengths([e.dur for e in events]),
    }


def _linked(events: Sequence[Event], places: _Places, shape: Shape) -> Pieces:
    """Events with what links them to others, and the tables of those on a device and of those with a collective."""
    none = CommArgs() if shape.comm else Args()
    args = [e.args or none for e in events]
    device = [n for n, a in enumerate(args) if a.stream is not None or a.device is not None]
    comm = _collectives([e.name for e in events], [a.collective for a in args])
    if comm and not shape.comm:
        raise NarrowError
    return {
        "events": {
            **_spans(events, places),
            "ph": texts([e.ph for e in events]),
            "cat": texts([e.cat for e in events]),
            **columns_of(args, EVENT_SCHEMA),
        },
        "device": _table(places, device, args, DEVICE_SCHEMA),
        "comm": _table(places, comm, args, COMM_SCHEMA),
    }


def _table(
    places: _Places, rows: list[int], args: Sequence[Args], schema: Mapping[str, pl.DataType]
) -> dict[str, pl.Series]:
    if not rows:
        return {}
    return {"index": pl.Series(places[rows]), **columns_of([args[n] for n in rows], schema)}


def _collectives(names: Sequence[object], told: Sequence[object]) -> list[int]:
    """The rows that name a collective, by their own name or in their arguments."""
    spoken = {name for name in _distinct(names) if name.startswith(COMM_PREFIXES)}
    if not spoken:
        return [n for n, collective in enumerate(told) if collective is not None]
    pairs = enumerate(zip(names, told, strict=True))
    return [n for n, (name, kind) in pairs if kind is not None or (isinstance(name, str) and name in spoken)]


def _distinct(names: Sequence[object]) -> set[str]:
    """The texts among these: few names, many events, so each is looked at once."""
    try:
        found = set(names)
    except TypeError:
        found = {str(name) for name in names}
    return {name for name in found if isinstance(name, str)}


def stacked(parts: Sequence[Pieces], base_ns: int) -> Columns:
    """Return the frames of a file, with absolute times; a time that no clock shows is null."""
    frames = {
        name: _stack([part[name] for part in parts if part.get(name)], schema) for name, schema in SCHEMAS.items()
    }
    start, length = pl.col("ts_ns"), pl.col("dur_ns")
    shown = start.is_between(-clock.LATEST_NS, clock.LATEST_NS, closed="none")
    shown &= (start + base_ns).is_between(-clock.LATEST_NS, clock.LATEST_NS, closed="none")
    absolute = pl.when(shown).then(start + base_ns).alias("ts_ns")
    possible = pl.when(length < clock.LONGEST_NS).then(length).alias("dur_ns")
    for name in ("events", "frames"):
        frames[name] = frames[name].with_columns(absolute, possible)
    for name in ("memory", "flows"):
        frames[name] = frames[name].with_columns(absolute)
    return Columns(**frames)


def _stack(parts: Sequence[dict[str, pl.Series]], schema: Mapping[str, pl.DataType]) -> pl.DataFrame:
    if not parts:
        return pl.DataFrame(schema=schema)
    return pl.DataFrame({name: pl.concat([part[name] for part in parts]) for name in schema})
