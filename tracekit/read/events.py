"""The shape of a Kineto file as it is decoded: its events, their arguments, and the facts around them."""

from __future__ import annotations

from typing import Any

import msgspec

ABSENT = msgspec.Raw()
# Anything else where a time belongs makes an event damaged: see mend.py.
Time = int | float | str | None


class Links(msgspec.Struct, gc=False):
    """The arguments that tie any event to others, and those of rows on a device.

    Every argument has the spellings of every torch since 1.8; what is not listed is skipped.
    """

    external_id: Any = msgspec.field(default=None, name="External id")
    correlation: Any = None
    sequence: Any = msgspec.field(default=None, name="Sequence number")
    stream: Any = None
    device: Any = None
    copied_bytes: Any = msgspec.field(default=None, name="bytes")
    collective: Any = msgspec.field(default=None, name="Collective name")
    external_id_2021: Any = msgspec.field(default=None, name="external id")


class CommArgs(msgspec.Struct, gc=False):
    """The arguments of a collective; shapes and types stay JSON text."""

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
    input_dims: msgspec.Raw = msgspec.field(default=ABSENT, name="Input Dims")
    input_type: msgspec.Raw = msgspec.field(default=ABSENT, name="Input type")


class MemoryArgs(msgspec.Struct, gc=False):
    """The arguments of a ``[memory]`` instant."""

    delta_bytes: Any = msgspec.field(default=None, name="Bytes")
    address: Any = msgspec.field(default=None, name="Addr")
    allocated_bytes: Any = msgspec.field(default=None, name="Total Allocated")
    reserved_bytes: Any = msgspec.field(default=None, name="Total Reserved")
    device_type: Any = msgspec.field(default=None, name="Device Type")
    device_id: Any = msgspec.field(default=None, name="Device Id")


class Event(msgspec.Struct, gc=False):
    """One entry of ``traceEvents``; times in microseconds as written, arguments as their text."""

    ph: Any = None
    cat: Any = None
    name: Any = None
    pid: Any = None
    tid: Any = None
    ts: Time = None
    dur: Time = None
    id: Any = None
    args: msgspec.Raw = ABSENT


class ExactEvent(Event, gc=False):
    """The same for files whose absolute fractional times do not fit a float: the digits are kept."""

    ts: msgspec.Raw = ABSENT  # pyright: ignore[reportIncompatibleVariableOverride]


class CheckedEvent(Event, gc=False):
    """The same with its arguments decoded, to tell whether they can be."""

    args: Links | None = None  # pyright: ignore[reportIncompatibleVariableOverride]


class Distributed(msgspec.Struct):
    """What ``distributedInfo`` tells; every field can be missing."""

    backend: Any = None
    rank: Any = None
    world_size: Any = None


_NAMES = {"events": "traceEvents", "base_ns": "baseTimeNanoseconds", "distributed": "distributedInfo"}


class Document(msgspec.Struct, rename=_NAMES):
    """A Kineto file: its events and the few facts around them."""

    events: list[Event] = []
    base_ns: Any = None
    distributed: Distributed | None = None
    host_name: Any = None


class ExactDocument(Document, rename=_NAMES):
    """A :class:`Document` of :class:`ExactEvent`."""

    events: list[ExactEvent] = []  # pyright: ignore[reportIncompatibleVariableOverride]
