"""JSON text -> the events of one trace file, as one polars frame, and what the file says about itself."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import polars as pl

from tracekit.errors import InputError
from tracekit.read import clock

_ABSENT = msgspec.Raw()


class Args(msgspec.Struct, gc=False):
    """The arguments that the model needs, by the spellings of every torch since 1.8; the rest is skipped."""

    external_id: Any = msgspec.field(default=None, name="External id")
    external_id_2021: Any = msgspec.field(default=None, name="external id")
    correlation: Any = None
    stream: Any = None
    device: Any = None
    sequence: Any = msgspec.field(default=None, name="Sequence number")
    input_dims: msgspec.Raw = msgspec.field(default=_ABSENT, name="Input Dims")
    input_type: msgspec.Raw = msgspec.field(default=_ABSENT, name="Input type")
    collective: Any = msgspec.field(default=None, name="Collective name")
    in_numel: Any = msgspec.field(default=None, name="In msg nelems")
    out_numel: Any = msgspec.field(default=None, name="Out msg nelems")
    in_numel_2023: Any = msgspec.field(default=None, name="In msg size")
    out_numel_2023: Any = msgspec.field(default=None, name="Out msg size")
    group_size: Any = msgspec.field(default=None, name="Group size")
    dtype: Any = None
    group: Any = msgspec.field(default=None, name="Process Group Name")
    group_id: Any = msgspec.field(default=None, name="Process Group ID")
    group_desc: Any = msgspec.field(default=None, name="Process Group Description")
    seq: Any = msgspec.field(default=None, name="Seq")
    copied_bytes: Any = msgspec.field(default=None, name="bytes")
    delta_bytes: Any = msgspec.field(default=None, name="Bytes")
    address: Any = msgspec.field(default=None, name="Addr")
    allocated_bytes: Any = msgspec.field(default=None, name="Total Allocated")
    reserved_bytes: Any = msgspec.field(default=None, name="Total Reserved")
    device_type: Any = msgspec.field(default=None, name="Device Type")
    device_id: Any = msgspec.field(default=None, name="Device Id")


class Event(msgspec.Struct, gc=False):
    """One entry of ``traceEvents``; times in microseconds as written."""

    ph: str = ""
    cat: str | None = None
    name: Any = None
    pid: Any = None
    tid: Any = None
    ts: Any = None
    dur: Any = None
    id: Any = None
    args: Args | None = None


class ExactEvent(Event, gc=False):
    """The same for files whose absolute fractional times do not fit a float: the digits are kept."""

    ts: Decimal | None = None


class Distributed(msgspec.Struct):
    """What ``distributedInfo`` tells; every field can be missing."""

    backend: Any = None
    rank: Any = None
    world_size: Any = None


_DOCUMENT_NAMES = {"events": "traceEvents", "base_ns": "baseTimeNanoseconds", "distributed": "distributedInfo"}


class Document(msgspec.Struct, rename=_DOCUMENT_NAMES):
    """A Kineto file: its events and the few facts around them."""

    events: list[Event]
    base_ns: int | None = None
    distributed: Distributed | None = None
    host_name: Any = None


class ExactDocument(Document, rename=_DOCUMENT_NAMES):
    """A :class:`Document` of :class:`ExactEvent`."""

    events: list[ExactEvent]  # pyright: ignore[reportIncompatibleVariableOverride]


class Decoded(NamedTuple):
    """One file: `events` as EVENT_SCHEMA says, without rank and cycle; rank, world size and host where told."""

    events: pl.DataFrame
    rank: int | None
    world_size: int | None
    host: str | None


# One row an event, in file order. Times are absolute nanoseconds. `flow` is the id of a flow event; `input_dims`
# and `input_type` are JSON text, kept for rows that name a collective.
EVENT_SCHEMA: dict[str, pl.DataType] = {
    "index": pl.Int64(),
    "ph": pl.String(),
    "cat": pl.String(),
    "name": pl.String(),
    "pid": pl.Int64(),
    "tid": pl.Int64(),
    "ts_ns": pl.Int64(),
    "dur_ns": pl.Int64(),
    "flow": pl.Int64(),
    "external_id": pl.Int64(),
    "correlation": pl.Int64(),
    "stream": pl.Int64(),
    "device": pl.Int64(),
    "sequence": pl.Int64(),
    "input_dims": pl.String(),
    "input_type": pl.String(),
    "collective": pl.String(),
    "in_numel": pl.Int64(),
    "out_numel": pl.Int64(),
    "group_size": pl.Int64(),
    "dtype": pl.String(),
    "group": pl.String(),
    "group_desc": pl.String(),
    "seq": pl.Int64(),
    "copied_bytes": pl.Int64(),
    "delta_bytes": pl.Int64(),
    "address": pl.Int64(),
    "allocated_bytes": pl.Int64(),
    "reserved_bytes": pl.Int64(),
    "device_type": pl.Int64(),
    "device_id": pl.Int64(),
}

# Same thing, other spelling: the first one present counts.
_SPELLINGS = {
    "external_id": ("external_id", "external_id_2021"),
    "in_numel": ("in_numel", "in_numel_2023"),
    "out_numel": ("out_numel", "out_numel_2023"),
    "group": ("group", "group_id"),
}
_NO_ARGS = Args()
_KEPT_PHASES = frozenset("Xisft")
_DIMS_PREFIXES = ("nccl:", "c10d", "gloo:", "record_param_comms", "_c10d")


def decode(data: bytes, path: Path) -> Decoded:
    """Return the events of one file.

    Raises:
        InputError: the text is not JSON, not a Kineto trace, or holds no events.
    """
    document = _parse(data, path)
    _require_kineto(document, path)
    kept = [(i, e) for i, e in enumerate(document.events) if e.ph in _KEPT_PHASES]
    info = document.distributed or Distributed()
    return Decoded(
        _frame([i for i, _ in kept], [e for _, e in kept], document.base_ns or 0),
        info.rank if isinstance(info.rank, int) else None,
        info.world_size if isinstance(info.world_size, int) else None,
        document.host_name if isinstance(document.host_name, str) else None,
    )


def _parse(data: bytes, path: Path) -> Document:
    at_top_a_list = data.lstrip()[:1] == b"["
    try:
        if at_top_a_list:
            document = Document(events=msgspec.json.decode(data, type=list[Event]))
        else:
            document = msgspec.json.decode(data, type=Document)
        if not clock.is_exact([e.ts for e in document.events]):
            if at_top_a_list:
                document.events = list(msgspec.json.decode(data, type=list[ExactEvent]))
            else:
                document = msgspec.json.decode(data, type=ExactDocument)
    except msgspec.ValidationError as error:
        raise InputError(f"{path}: not a Kineto trace ({error}); give the JSON that torch.profiler exports") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(
            f"{path}: not valid JSON ({error}); the file is cut short or damaged, copy or record it again"
        ) from None
    return document


def _require_kineto(document: Document, path: Path) -> None:
    phases = {e.ph for e in document.events}
    if not phases:
        raise InputError(f"{path}: the trace holds no events; was the profiler active during a step?")
    if "X" not in phases:
        raise InputError(
            f"{path}: not a Kineto trace (its {len(document.events)} events have the phases {_listed(phases)}, none is "
            f'a complete "X" event); tracekit reads what torch.profiler exports'
        )


def _listed(phases: set[str]) -> str:
    return ", ".join(repr(p) for p in sorted(phases)[:6])


def _frame(positions: list[int], events: list[Event], base_ns: int) -> pl.DataFrame:
    args = [e.args or _NO_ARGS for e in events]
    columns: dict[str, pl.Series] = {
        "index": pl.Series(positions, dtype=pl.Int64),
        "ph": pl.Series([e.ph for e in events], dtype=pl.String),
        "cat": pl.Series([e.cat for e in events], dtype=pl.String),
        "name": pl.Series([e.name if isinstance(e.name, str) else str(e.name) for e in events], dtype=pl.String),
        "pid": _integers([e.pid for e in events]),
        "tid": _integers([e.tid for e in events]),
        "ts_ns": clock.to_ns([e.ts for e in events]) + base_ns,
        "dur_ns": clock.to_ns([e.dur for e in events]),
        "flow": _integers([e.id for e in events]),
    }
    for name, dtype in EVENT_SCHEMA.items():
        if name in columns:
            continue
        if name in ("input_dims", "input_type"):
            columns[name] = pl.Series([_dims(e, name) for e in events], dtype=pl.String)
        elif dtype == pl.Int64():
            columns[name] = _integers(_argument(args, name))
        else:
            columns[name] = pl.Series([None if v is None else str(v) for v in _argument(args, name)], dtype=pl.String)
    return pl.DataFrame(columns, schema=EVENT_SCHEMA)


def _argument(args: list[Args], name: str) -> list[Any]:
    first, *others = _SPELLINGS.get(name, (name,))
    values = [getattr(a, first) for a in args]
    for other in others:
        values = [getattr(a, other) if v is None else v for v, a in zip(values, args, strict=True)]
    return values


def _dims(event: Event, name: str) -> str | None:
    """JSON text of the shapes or types of a row that may name a collective; null for all others."""
    if event.args is None or not str(event.name).startswith(_DIMS_PREFIXES):
        return None
    return bytes(getattr(event.args, name)).decode("utf-8", "replace") or None


def _integers(values: list[Any]) -> pl.Series:
    """Integers as they are, text by the number it ends in ("stream 7" is 7), anything else null."""
    try:
        return pl.Series(values, dtype=pl.Int64)
    except (TypeError, OverflowError, pl.exceptions.PolarsError):
        return pl.Series([_integer(v) for v in values], dtype=pl.Int64)


def _integer(value: object) -> int | None:
    if isinstance(value, str):
        digits = value.rsplit(maxsplit=1)[-1] if value.strip() else ""
        value = int(digits) if digits.lstrip("-").isdecimal() else None
    if isinstance(value, float):
        value = int(value) if value.is_integer() else None
    # Addresses and 64-bit communicator ids can use the top bit: keep their bits, as a signed number.
    if isinstance(value, int) and 2**63 <= value < 2**64:
        value -= 2**64
    return value if isinstance(value, int) and -(2**63) <= value < 2**63 else None
