"""Decoded events as polars frames: two narrow frames of all events, and the arguments of the few that have them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import compress
from operator import not_
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl
import polars.selectors as cs

from tracekit import common_columns as c
from tracekit.read.decoding import clock
from tracekit.read.decoding.arguments import columns_of, integers, process_numbers, texts
from tracekit.read.decoding.events import Args, CommArgs, Event, Shape
from tracekit.read.decoding.labelled import Label, labels_of
from tracekit.read.decoding.pairs import paired
from tracekit.read.decoding.spellings import COMM_PREFIXES, LAUNCH_FLOWS, LINK, MEMORY, PYTHON_FRAME
from tracekit.table_schema import Column, Schema

_FRAME_COLUMNS = ("index", "name", "pid", "tid", "ts_ns", "dur_ns")
# In file order, memory instants and Python's frames apart.
EVENT_SCHEMA = Schema(
    c.INDEX,
    Column(
        "ph",
        pl.String,
        "Kind of event: X (with a duration), i (an instant), s (the start of a flow); B or E (a begin or an end "
        "without the other).",
    ),
    Column("cat", pl.String, "Category, as Kineto calls it: kernel, cpu_op, user_annotation and so on.", "it has none"),
    c.NAME.but(meaning="Name of the event.", null="it has none"),
    Column("pid", pl.Int64, "Process or, of a device row, device.", "it has none, or it is not a number"),
    Column("tid", pl.Int64, "Thread or, of a device row, stream.", "it has none, or it is not a number"),
    c.TS_NS,
    c.DUR_NS.but(null="an instant or a flow"),
    Column("external_id", pl.Int64, "Number that ties a device row to the operator that launched it.", "it has none"),
    Column("correlation", pl.Int64, "Number that ties a launch to its device row.", "it has none"),
    Column("sequence", pl.Int64, "Number that ties a backward operator to its forward.", "it has none"),
)
# The same of all files of a run.
RUN_EVENTS_SCHEMA = Schema(c.RANK, c.CYCLE, *EVENT_SCHEMA.columns.values())
# One row for each Python frame. They are half of many files and few tables need them, so they are kept apart.
FRAME_SCHEMA: dict[str, pl.DataType] = {name: EVENT_SCHEMA[name] for name in _FRAME_COLUMNS}
# Arguments of events on a device; `original_stream` is the one that a graph's node was captured on.
DEVICE_SCHEMA: dict[str, pl.DataType] = {
    "index": pl.Int64(),
    "stream": pl.Int64(),
    "device": pl.Int64(),
    "copied_bytes": pl.Int64(),
    "original_stream": pl.Int64(),
    "graph_node": pl.Int64(),
}
# Arguments of events that name a collective; dims, types and concrete inputs are JSON text, `group_ranks` a list as
# text, which Kineto cuts after 30 ranks, and `comms_id` an unsigned number that 63 bits need not hold.
COMM_SCHEMA: dict[str, pl.DataType] = {
    "index": pl.Int64(),
    "collective": pl.String(),
    "in_numel": pl.Int64(),
    "out_numel": pl.Int64(),
    "group_size": pl.Int64(),
    "dtype": pl.String(),
    "group": pl.String(),
    "group_desc": pl.String(),
    "group_ranks": pl.String(),
    "comms_id": pl.String(),
    "src_rank": pl.Int64(),
    "dst_rank": pl.Int64(),
    "seq": pl.Int64(),
    "input_dims": pl.String(),
    "input_type": pl.String(),
    "concrete_inputs": pl.String(),
}
# One row for each allocation or free (a [memory] instant).
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

# Beside complete events: instants, and begins and ends, which are paired once all are read.
_ROWS = ("i", "B", "E")
# Positions of events among the entries of their file.
_Indices = npt.NDArray[np.int64]
# Columns by table (a name of SCHEMAS), for one batch of events; a table without rows can be missing. PROCESSES is a
# table of a batch alone: numbers that stand for the texts of processes; so is LABELS: what processes are labelled as.
PROCESSES, LABELS = "processes", "labels"
BatchColumns = dict[str, dict[str, pl.Series]]


class Columns(NamedTuple):
    """Frames of SCHEMAS for the events of one file."""

    events: pl.DataFrame
    frames: pl.DataFrame
    device: pl.DataFrame
    comm: pl.DataFrame
    memory: pl.DataFrame
    flows: pl.DataFrame

    def merged(self) -> pl.DataFrame:
        """Return all events as EVENT_SCHEMA, in file order, with what the frames have beside it (rank and cycle)."""
        apart = [
            self.frames.with_columns(ph=pl.lit("X"), cat=pl.lit(PYTHON_FRAME)),
            self.memory.select(cs.by_name(self.events.columns, require_all=False)).with_columns(
                ph=pl.lit("i"), name=pl.lit(MEMORY)
            ),
        ]
        key = [name for name in ("rank", "cycle", "index") if name in self.events.columns]
        return pl.concat([self.events, *apart], how="diagonal").sort(key)

    @property
    def num_events(self) -> int:
        """The number of events; metadata and most flows are not counted."""
        return self.events.height + self.frames.height + self.memory.height


class NarrowError(ValueError):
    """Events with collectives were decoded without the arguments of collectives."""


def batch_columns(events: Sequence[Event], first_index: int, shape: Shape) -> BatchColumns:
    """Return the columns of these events, `base_ns` not yet added to times; metadata rows and most flows are left out.

    A query costs polars a fixed time whatever its size, so rows are chosen here in plain lists.

    Raises:
        NarrowError: the shape lacks the arguments of collectives.
        RoundedError: the shape has times as floats too large to be exact.
    """
    indices = np.arange(first_index, first_index + len(events))
    is_frame = [e.cat == PYTHON_FRAME and e.ph == "X" for e in events]
    frames, frame_indices, rest, indices = _split(events, indices, is_frame)
    is_instant = [e.name == MEMORY and e.ph == "i" for e in rest]
    instants, instant_indices, rest, indices = _split(rest, indices, is_instant)
    is_row = [(ph := e.ph) == "X" or ph in _ROWS or (ph == "s" and e.cat == LINK) for e in rest]
    rows, row_indices, rest, indices = _split(rest, indices, is_row)
    flows, flow_indices, rest, _ = _split(rest, indices, [e.ph == "s" and e.cat in LAUNCH_FLOWS for e in rest])
    found: BatchColumns = {}
    names: dict[int, str] = {}
    if frames:
        found["frames"] = _timed(frames, frame_indices, names)
    if instants:
        args = columns_of([e.args or Args() for e in instants], MEMORY_SCHEMA)
        found["memory"] = {
            **_starts(instants, instant_indices),
            "pid": process_numbers([e.pid for e in instants], names),
            "cat": texts([e.cat for e in instants]),
            **args,
        }
    if rows:
        found.update(_with_links(rows, row_indices, shape, names))
    if flows:
        found["flows"] = {**_starts(flows, flow_indices), "correlation": integers([e.id for e in flows])}
    labels = labels_of(rest)
    if labels:
        found[LABELS] = {name: pl.Series([getattr(one, name) for one in labels]) for name in Label._fields}
    if names:
        found[PROCESSES] = {"number": pl.Series([*names]), "text": pl.Series([*names.values()])}
    return found


def _split(
    events: Sequence[Event], indices: _Indices, chosen: list[bool]
) -> tuple[Sequence[Event], _Indices, Sequence[Event], _Indices]:
    """Return the chosen events with their indices, then the others with theirs."""
    mask = np.frombuffer(bytes(chosen), np.bool_)
    if not mask.any():
        return [], indices[:0], events, indices
    others = [] if mask.all() else list(compress(events, map(not_, chosen)))
    return list(compress(events, chosen)), indices[mask], others, indices[~mask]


def _starts(events: Sequence[Event], indices: _Indices) -> dict[str, pl.Series]:
    """Return the start and thread of each event."""
    return {
        "index": pl.Series(indices),
        "tid": integers([e.tid for e in events]),
        "ts_ns": clock.starts([e.ts for e in events]),
    }


def _timed(events: Sequence[Event], indices: _Indices, names: dict[int, str]) -> dict[str, pl.Series]:
    return {
        **_starts(events, indices),
        "pid": process_numbers([e.pid for e in events], names),
        "name": texts([e.name for e in events]),
        "dur_ns": clock.lengths([e.dur for e in events]),
    }


def _with_links(events: Sequence[Event], indices: _Indices, shape: Shape, names: dict[int, str]) -> BatchColumns:
    """Return events with their links to others, arguments of those on a device and of those with a collective."""
    none = CommArgs() if shape.comm else Args()
    args = [e.args or none for e in events]
    device = [
        n for n, a in enumerate(args) if a.stream is not None or a.device is not None or a.stream_ascend is not None
    ]
    comm = _rows_of_collectives([e.name for e in events], [a.collective for a in args])
    if comm and not shape.comm:
        raise NarrowError
    return {
        "events": {
            **_timed(events, indices, names),
            "ph": texts([e.ph for e in events]),
            "cat": texts([e.cat for e in events]),
            **columns_of(args, EVENT_SCHEMA),
        },
        "device": _table(indices, device, args, DEVICE_SCHEMA),
        "comm": _table(indices, comm, args, COMM_SCHEMA),
    }


def _table(
    indices: _Indices, rows: list[int], args: Sequence[Args], schema: Mapping[str, pl.DataType]
) -> dict[str, pl.Series]:
    if not rows:
        return {}
    return {"index": pl.Series(indices[rows]), **columns_of([args[n] for n in rows], schema)}


def _rows_of_collectives(names: Sequence[object], reported: Sequence[object]) -> list[int]:
    """Return the positions of events that name a collective, by their own name or in their arguments."""
    named = {name for name in _distinct(names) if name.startswith(COMM_PREFIXES)}
    if not named:
        return [n for n, collective in enumerate(reported) if collective is not None]
    pairs = enumerate(zip(names, reported, strict=True))
    return [n for n, (name, kind) in pairs if kind is not None or (isinstance(name, str) and name in named)]


def _distinct(names: Sequence[object]) -> set[str]:
    """Return the distinct texts: many events have few names, so each is examined once."""
    try:
        found = set(names)
    except TypeError:
        found = {str(name) for name in names}
    return {name for name in found if isinstance(name, str)}


def stacked(parts: Sequence[BatchColumns], base_ns: int) -> Columns:
    """Return the frames of a file, with absolute times; impossible times are null."""
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
    frames["events"] = paired(frames["events"])
    return Columns(**frames)


def process_texts(parts: Sequence[BatchColumns]) -> dict[int, str]:
    """Return the texts that numbers of processes stand for."""
    tables = [part[PROCESSES] for part in parts if PROCESSES in part]
    return {number: text for table in tables for number, text in zip(table["number"], table["text"], strict=True)}


def process_labels(parts: Sequence[BatchColumns]) -> list[Label]:
    """Return what is said about processes, in file order."""
    tables = [pl.DataFrame(part[LABELS]) for part in parts if LABELS in part]
    return [Label(*row) for table in tables for row in table.iter_rows()]


def _stack(parts: Sequence[dict[str, pl.Series]], schema: Mapping[str, pl.DataType]) -> pl.DataFrame:
    if not parts:
        return pl.DataFrame(schema=schema)
    return pl.DataFrame({name: pl.concat([part[name] for part in parts]) for name in schema})
