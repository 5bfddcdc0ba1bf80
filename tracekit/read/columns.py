"""Decoded events -> polars frames: one narrow frame of all events, and the arguments of the few that have them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

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
SCHEMAS = {"events": EVENT_SCHEMA, "device": DEVICE_SCHEMA, "comm": COMM_SCHEMA, "memory": MEMORY_SCHEMA}

_LINKED_FLOW = "fwdbwd"
_COMM_NAME = "^(nccl:|c10d|gloo:|record_param_comms|_c10d|mpi:|ucc:|xccl:)"
_MEMORY = "[memory]"
# Frames of Python are half of many files, and their arguments are of no use to any table.
_WITHOUT_ARGUMENTS = "python_function"


class Columns(NamedTuple):
    """Frames of SCHEMAS for some events of one file; `base_ns` is not yet added to times."""

    events: pl.DataFrame
    device: pl.DataFrame
    comm: pl.DataFrame
    memory: pl.DataFrame


def columns(decoded: Sequence[Event], first_index: int) -> Columns:
    """Return the frames of these events; metadata rows and flows that link nothing are left out.

    Raises:
        msgspec.DecodeError: the arguments of an event are not what arguments should be.
    """
    narrow = pl.DataFrame(
        {
            "row": pl.int_range(len(decoded), eager=True),
            "ph": texts([e.ph for e in decoded]),
            "cat": texts([e.cat for e in decoded]),
            "name": texts([e.name for e in decoded]),
            "pid": integers([e.pid for e in decoded]),
            "tid": integers([e.tid for e in decoded]),
            "ts_ns": clock.to_ns([e.ts for e in decoded]),
            "dur_ns": clock.to_ns([e.dur for e in decoded]),
        }
    ).filter(pl.col("ph").is_in(["X", "i"]) | ((pl.col("ph") == "s") & (pl.col("cat") == _LINKED_FLOW)))
    told = links(decoded, narrow.filter(pl.col("cat").ne_missing(_WITHOUT_ARGUMENTS))["row"])
    called = narrow.filter(pl.col("name").str.contains(_COMM_NAME))["row"]
    rows = {
        "device": told.filter(pl.col("on_device"))["row"],
        "comm": pl.concat([called, told.filter(pl.col("collective"))["row"]]).unique().sort(),
        "memory": narrow.filter(pl.col("name") == _MEMORY)["row"],
    }
    index = (pl.col("row") + first_index).alias("index")
    events = narrow.join(told, on="row", how="left", maintain_order="left").with_columns(index)
    wide = [arguments(decoded, rows[name], SCHEMAS[name]).with_columns(index) for name in ("device", "comm", "memory")]
    return Columns(
        events.select(pl.col(c).cast(t) for c, t in EVENT_SCHEMA.items()),
        *(frame.select(list(SCHEMAS[name])) for name, frame in zip(rows, wide, strict=True)),
    )


def empty() -> Columns:
    """Return frames without rows."""
    return columns([], 0)
