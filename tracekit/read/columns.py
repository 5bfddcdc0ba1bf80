"""Decoded events -> polars frames: one narrow frame of all events, and the arguments of the few that have them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import polars as pl

from tracekit.read import clock
from tracekit.read.events import Args, Event

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

# Same thing, other spelling: the first one present counts.
_SPELLINGS = {
    "external_id": ("external_id", "external_id_2021"),
    "in_numel": ("in_numel", "in_numel_2023"),
    "out_numel": ("out_numel", "out_numel_2023"),
    "group": ("group", "group_id"),
}
_NO_ARGS = Args()
_LINKED_FLOW = "fwdbwd"
_COMM_NAME = "^(nccl:|c10d|gloo:|record_param_comms|_c10d|mpi:|ucc:|xccl:)"
_MEMORY = "[memory]"


class Columns(NamedTuple):
    """Frames of SCHEMAS for some events of one file; `base_ns` is not yet added to times."""

    events: pl.DataFrame
    device: pl.DataFrame
    comm: pl.DataFrame
    memory: pl.DataFrame


def columns(decoded: Sequence[Event], first_index: int) -> Columns:
    """Return the frames of these events; metadata rows and flows that link nothing are left out."""
    index = [i for i, e in enumerate(decoded, first_index) if _is_kept(e)]
    events = decoded if len(index) == len(decoded) else [decoded[i - first_index] for i in index]
    args = [e.args or _NO_ARGS for e in events]
    names = [e.name for e in events]
    narrow: dict[str, pl.Series] = {
        "index": pl.Series(index, dtype=pl.Int64),
        "ph": _texts([e.ph for e in events]),
        "cat": _texts([e.cat for e in events]),
        "name": _texts(names),
        "pid": _integers([e.pid for e in events]),
        "tid": _integers([e.tid for e in events]),
        "ts_ns": clock.to_ns([e.ts for e in events]),
        "dur_ns": clock.to_ns([e.dur for e in events]),
        **{name: _argument(args, name, EVENT_SCHEMA[name]) for name in ("external_id", "correlation", "sequence")},
    }
    on_device = [n for n, a in enumerate(args) if a.stream is not None or a.device is not None]
    calls = narrow["name"].str.contains(_COMM_NAME).fill_null(value=False).to_list()
    collectives = [
        n for n, (called, a) in enumerate(zip(calls, args, strict=True)) if called or a.collective is not None
    ]
    allocations = (narrow["name"] == _MEMORY).arg_true().to_list()
    return Columns(
        pl.DataFrame(narrow, schema=EVENT_SCHEMA),
        _sparse(index, args, DEVICE_SCHEMA, on_device),
        _sparse(index, args, COMM_SCHEMA, collectives),
        _sparse(index, args, MEMORY_SCHEMA, allocations),
    )


def empty() -> Columns:
    """Return frames without rows."""
    return columns([], 0)


def _is_kept(event: Event) -> bool:
    ph = event.ph
    return ph == "X" or ph == "i" or (ph == "s" and event.cat == _LINKED_FLOW)  # noqa: PLR1714 - ph may not hash


def _sparse(index: list[int], args: list[Args], schema: dict[str, pl.DataType], rows: list[int]) -> pl.DataFrame:
    chosen = [args[n] for n in rows]
    data = {"index": pl.Series([index[n] for n in rows], dtype=pl.Int64)}
    data |= {name: _argument(chosen, name, dtype) for name, dtype in schema.items() if name != "index"}
    return pl.DataFrame(data, schema=schema)


def _argument(args: list[Args], name: str, dtype: pl.DataType) -> pl.Series:
    if name in ("input_dims", "input_type"):
        return pl.Series([bytes(getattr(a, name)).decode("utf-8", "replace") or None for a in args], dtype=pl.String)
    first, *others = _SPELLINGS.get(name, (name,))
    values = [getattr(a, first) for a in args]
    for other in others:
        values = [getattr(a, other) if v is None else v for v, a in zip(values, args, strict=True)]
    return _integers(values) if dtype == pl.Int64() else _texts(values)


def _texts(values: list[Any]) -> pl.Series:
    try:
        return pl.Series(values, dtype=pl.String, strict=True)
    except (TypeError, pl.exceptions.PolarsError):
        return pl.Series([v if v is None or isinstance(v, str) else str(v) for v in values], dtype=pl.String)


def _integers(values: list[Any]) -> pl.Series:
    """Integers as they are, text by the number it ends in ("stream 7" is 7), anything else null."""
    try:
        return pl.Series(values, dtype=pl.Int64, strict=True)
    except (TypeError, OverflowError, pl.exceptions.PolarsError):
        return pl.Series([_integer(v) for v in values], dtype=pl.Int64)


def _integer(value: object) -> int | None:
    if isinstance(value, str):
        digits = value.rsplit(maxsplit=1)[-1] if value.strip() else ""
        value = int(digits) if digits.lstrip("-").isdecimal() and len(digits) < 20 else None
    if isinstance(value, float):
        value = int(value) if value.is_integer() else None
    # Addresses and 64-bit communicator ids can use the top bit: keep their bits, as a signed number.
    if isinstance(value, int) and 2**63 <= value < 2**64:
        value -= 2**64
    return value if isinstance(value, int) and -(2**63) <= value < 2**63 else None
