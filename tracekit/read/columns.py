"""Decoded events -> polars frames: two narrow frames of all events, and the arguments of the few that have them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import compress
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit.read import clock
from tracekit.read.arguments import columns_of, decoded, integers, texts
from tracekit.read.events import CommArgs, Event, Links, MemoryArgs

_FRAME_COLUMNS = ("index", "name", "pid", "tid", "ts_ns", "dur_ns")
# One row an event that is no frame of Python, in file order. Times are absolute nanoseconds; `index` is the position
# among the file's entries.
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
# Of [memory] instants.
MEMORY_SCHEMA: dict[str, pl.DataType] = {
    "index": pl.Int64(),
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

_LINKED_FLOW = "fwdbwd"
_LAUNCH_FLOWS = ("ac2g", "async", "async_cpu_to_gpu")
_COMM_PREFIXES = ("nccl:", "c10d", "gloo:", "record_param_comms", "_c10d", "mpi:", "ucc:", "xccl:")
_MEMORY = "[memory]"
_PYTHON_FRAME = "python_function"

_Index = npt.NDArray[np.int64]
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


def pieces(events: Sequence[Event], first_index: int) -> Pieces:
    """Return the columns of these events, `base_ns` not yet added to times; metadata rows and most flows are left out.

    A query costs polars a fixed time whatever its size, so rows are chosen here in plain lists.

    Raises:
        msgspec.DecodeError: the arguments of an event are not what arguments should be.
        RoundedError: times are floats too large to be exact.
    """
    places = np.arange(first_index, first_index + len(events))
    found: Pieces = {}

    def split(rows: Sequence[Event], index: _Index, chosen: list[bool]) -> tuple[Sequence[Event], _Index]:
        return list(compress(rows, chosen)), index[np.array(chosen, np.bool_)]

    is_frame = [e.cat == _PYTHON_FRAME and e.ph == "X" for e in events]
    frames, index = split(events, places, is_frame)
    if frames:
        found["frames"] = _placed(frames, index)
    rest, places = split(events, places, [not frame for frame in is_frame])
    flows, index = split(rest, places, [e.ph == "s" and e.cat in _LAUNCH_FLOWS for e in rest])
    if flows:
        found["flows"] = {**_placed(flows, index), "correlation": integers([e.id for e in flows])}
    kept, index = split(
        rest, places, [(ph := e.ph) == "X" or ph == "i" or (ph == "s" and e.cat == _LINKED_FLOW) for e in rest]
    )
    if kept:
        found.update(_with_arguments(kept, index))
    return found


def _placed(events: Sequence[Event], index: _Index) -> dict[str, pl.Series]:
    """What every event has."""
    return {
        "index": pl.Series(index),
        "name": texts([e.name for e in events]),
        "pid": integers([e.pid for e in events]),
        "tid": integers([e.tid for e in events]),
        "ts_ns": clock.starts([e.ts for e in events]),
        "dur_ns": clock.lengths([e.dur for e in events]),
    }


def _with_arguments(events: Sequence[Event], index: _Index) -> Pieces:
    """Events with what links them to others, and the tables of those with more to tell."""
    names = [e.name for e in events]
    memory = [n for n, name in enumerate(names) if name == _MEMORY]
    # Memory instants have arguments of their own and no links.
    links = decoded([b"" if e.name == _MEMORY else e.args for e in events], Links)
    device = [n for n, a in enumerate(links) if a.stream is not None or a.device is not None]
    spoken = {name for name in _distinct(names) if name.startswith(_COMM_PREFIXES)}
    called = {n for n, name in enumerate(names) if isinstance(name, str) and name in spoken} if spoken else set[int]()
    comm = [n for n, a in enumerate(links) if a.collective is not None or n in called]

    def table(name: str, rows: list[int], found: Sequence[Links | CommArgs | MemoryArgs]) -> dict[str, pl.Series]:
        return {"index": pl.Series(index[rows]), **columns_of(found, SCHEMAS[name])} if rows else {}

    return {
        "events": {
            **_placed(events, index),
            "ph": texts([e.ph for e in events]),
            "cat": texts([e.cat for e in events]),
            **columns_of(links, EVENT_SCHEMA),
        },
        "device": table("device", device, [links[n] for n in device]),
        "comm": table("comm", comm, decoded([events[n].args for n in comm], CommArgs)),
        "memory": table("memory", memory, decoded([events[n].args for n in memory], MemoryArgs)),
    }


def _distinct(names: Sequence[object]) -> set[str]:
    """The texts among these: few names, many events, so each is looked at once."""
    try:
        found = set(names)
    except TypeError:
        found = {str(name) for name in names}
    return {name for name in found if isinstance(name, str)}


def joined(parts: Sequence[Pieces], base_ns: int) -> Columns:
    """Return the frames of a file, with absolute times; a time that no clock shows is null."""
    frames = {
        name: _stacked([part[name] for part in parts if part.get(name)], schema) for name, schema in SCHEMAS.items()
    }
    start, length = pl.col("ts_ns"), pl.col("dur_ns")
    absolute = pl.when(start.abs() < clock.LATEST_NS).then(start + base_ns).alias("ts_ns")
    possible = pl.when(length < clock.LONGEST_NS).then(length).alias("dur_ns")
    for name in ("events", "frames"):
        frames[name] = frames[name].with_columns(absolute, possible)
    frames["flows"] = frames["flows"].with_columns(absolute)
    return Columns(**frames)


def _stacked(parts: Sequence[dict[str, pl.Series]], schema: Mapping[str, pl.DataType]) -> pl.DataFrame:
    if not parts:
        return pl.DataFrame(schema=schema)
    return pl.DataFrame({name: pl.concat([part[name] for part in parts]) for name in schema})
