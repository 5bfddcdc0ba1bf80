"""Decoded events -> polars frames: one narrow frame of all events, and the arguments of the few that have them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import polars as pl

from tracekit.read import clock
from tracekit.read.arguments import arguments, integers, links, texts
from tracekit.read.events import Event

# One row an event, in file order. Times are absolute nanoseconds; `index` is the position among the file's entries.
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
    "device": DEVICE_SCHEMA,
    "comm": COMM_SCHEMA,
    "memory": MEMORY_SCHEMA,
    "flows": FLOW_SCHEMA,
}

_LINKED_FLOW = "fwdbwd"
_LAUNCH_FLOWS = ("ac2g", "async", "async_cpu_to_gpu")
_COMM_PREFIXES = ("nccl:", "c10d", "gloo:", "record_param_comms", "_c10d", "mpi:", "ucc:", "xccl:")
_MEMORY = "[memory]"
# Frames of Python are half of many files, and their arguments are of no use to any table.
_WITHOUT_ARGUMENTS = "python_function"


class Columns(NamedTuple):
    """Frames of SCHEMAS for some events of one file; `base_ns` is not yet added to times."""

    events: pl.DataFrame
    device: pl.DataFrame
    comm: pl.DataFrame
    memory: pl.DataFrame
    flows: pl.DataFrame


def columns(decoded: Sequence[Event], first_index: int) -> Columns:
    """Return the frames of these events; metadata rows and flows that link nothing are left out.

    A frame costs polars a fixed time whatever its size, so rows are chosen here in plain lists.

    Raises:
        msgspec.DecodeError: the arguments of an event are not what arguments should be.
    """
    phs, cats, names = [e.ph for e in decoded], [e.cat for e in decoded], [e.name for e in decoded]
    kept = [n for n, ph in enumerate(phs) if ph in ("X", "i") or (ph == "s" and cats[n] == _LINKED_FLOW)]
    told = links(decoded, [n for n in kept if cats[n] != _WITHOUT_ARGUMENTS])
    # Few names, many events: each name is looked at once.
    spoken = {name for name in {n for n in names if isinstance(n, str)} if name.startswith(_COMM_PREFIXES)}
    called = [n for n in kept if isinstance(names[n], str) and names[n] in spoken] if spoken else []
    index = pl.Series(np.arange(first_index, first_index + len(decoded)))
    every = pl.DataFrame(
        {
            "index": index,
            "ph": texts(phs),
            "cat": texts(cats),
            "name": texts(names),
            "pid": integers([e.pid for e in decoded]),
            "tid": integers([e.tid for e in decoded]),
            "ts_ns": clock.to_ns([e.ts for e in decoded]),
            "dur_ns": clock.to_ns([e.dur for e in decoded]),
            **told.values,
        },
        schema=EVENT_SCHEMA,
    )
    rows = {
        "device": told.on_device,
        "comm": sorted({*called, *told.collective}),
        "memory": [n for n in kept if names[n] == _MEMORY],
    }
    device, comm, memory = (arguments(decoded, chosen, first_index, SCHEMAS[name]) for name, chosen in rows.items())
    flows = [n for n, ph in enumerate(phs) if ph == "s" and cats[n] in _LAUNCH_FLOWS]
    ids = integers([decoded[n].id for n in flows]).alias("correlation")
    linked = every[flows].select("index", ids, "tid", "ts_ns")
    return Columns(every if len(kept) == len(decoded) else every[kept], device, comm, memory, linked)


def empty() -> Columns:
    """Return frames without rows."""
    return columns([], 0)
