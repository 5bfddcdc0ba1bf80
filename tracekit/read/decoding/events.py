"""The types that a Kineto file is decoded as: its events, their arguments, and the metadata around them."""

from __future__ import annotations

from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

ABSENT = msgspec.Raw()
# Anything else where a time belongs makes an event damaged: see lenient_json.py.
Time = int | float | str | None


class Args(msgspec.Struct, gc=False):
    """The arguments of most events: links to others, rows on a device, ``[memory]`` instants.

    Every argument has the spellings of every torch since 1.8; what is not listed is skipped.
    """

    external_id: Any = msgspec.field(default=None, name="External id")
    correlation: Any = None
    sequence: Any = msgspec.field(default=None, name="Sequence number")
    stream: Any = None
    stream_ascend: Any = msgspec.field(default=None, name="Stream Id")
    original_stream: Any = None
    graph_node: Any = msgspec.field(default=None, name="graph node id")
    device: Any = None
    copied_bytes: Any = msgspec.field(default=None, name="bytes")
    collective: Any = msgspec.field(default=None, name="Collective name")
    delta_bytes: Any = msgspec.field(default=None, name="Bytes")
    address: Any = msgspec.field(default=None, name="Addr")
    allocated_bytes: Any = msgspec.field(default=None, name="Total Allocated")
    reserved_bytes: Any = msgspec.field(default=None, name="Total Reserved")
    device_type: Any = msgspec.field(default=None, name="Device Type")
    device_id: Any = msgspec.field(default=None, name="Device Id")
    external_id_2021: Any = msgspec.field(default=None, name="external id")
    # Of rows about processes.
    called: Any = msgspec.field(default=None, name="name")
    labels: Any = None


class CommArgs(Args, gc=False):
    """Arguments of most events and of collectives; shapes and types stay JSON text."""

    in_numel: Any = msgspec.field(default=None, name="In msg nelems")
    out_numel: Any = msgspec.field(default=None, name="Out msg nelems")
    in_numel_2023: Any = msgspec.field(default=None, name="In msg size")
    out_numel_2023: Any = msgspec.field(default=None, name="Out msg size")
    group_size: Any = msgspec.field(default=None, name="Group size")
    dtype: Any = None
    group: Any = msgspec.field(default=None, name="Process Group Name")
    group_id: Any = msgspec.field(default=None, name="Process Group ID")
    group_desc: Any = msgspec.field(default=None, name="Process Group Description")
    group_ranks: Any = msgspec.field(default=None, name="Process Group Ranks")
    comms_id: Any = msgspec.field(default=None, name="Comms Id")
    src_rank: Any = msgspec.field(default=None, name="Src Rank")
    dst_rank: Any = msgspec.field(default=None, name="Dst Rank")
    seq: Any = msgspec.field(default=None, name="Seq")
    input_dims: msgspec.Raw = msgspec.field(default=ABSENT, name="Input Dims")
    input_type: msgspec.Raw = msgspec.field(default=ABSENT, name="Input type")
    concrete_inputs: msgspec.Raw = msgspec.field(default=ABSENT, name="Concrete Inputs")


class Event(msgspec.Struct, gc=False):
    """One entry of ``traceEvents``; times in microseconds as written."""

    ph: Any = None
    cat: Any = None
    name: Any = None
    pid: Any = None
    tid: Any = None
    ts: Time = None
    dur: Time = None
    id: Any = None
    args: Args | None = None


class CommEvent(Event, gc=False):
    """An event with the arguments of collectives."""

    args: CommArgs | None = None  # pyright: ignore[reportIncompatibleVariableOverride]


class ExactEvent(Event, gc=False):
    """An event of a file whose absolute fractional times do not fit a float; `ts` is the digits as written."""

    ts: msgspec.Raw = ABSENT  # pyright: ignore[reportIncompatibleVariableOverride]


class ExactCommEvent(CommEvent, gc=False):
    """An event with the arguments of collectives and exact times."""

    ts: msgspec.Raw = ABSENT  # pyright: ignore[reportIncompatibleVariableOverride]


class Distributed(msgspec.Struct):
    """The fields of ``distributedInfo``, each of which can be missing."""

    backend: Any = None
    rank: Any = None
    world_size: Any = None
    pg_config: Any = None


_Kind = TypeVar("_Kind", bound=Event)
_NAMES = {"events": "traceEvents", "base_ns": "baseTimeNanoseconds", "distributed": "distributedInfo"}


class Document(msgspec.Struct, Generic[_Kind], rename=_NAMES):
    """A Kineto file: its events and the metadata around them."""

    events: list[_Kind] = []
    base_ns: Any = None
    distributed: Distributed | None = None
    host_name: Any = None
    profile_memory: Any = None


class Shape(NamedTuple):
    """The fields of an event that are decoded. Each costs time, so a file is read in the narrowest shape that works."""

    exact: bool = False
    comm: bool = False

    @property
    def event(self) -> type[Event]:
        """The type to decode an event as."""
        return _TYPES[self][0]

    @property
    def events(self) -> type[list[Event]]:
        """The type to decode a list of events as."""
        return _TYPES[self][1]

    @property
    def document(self) -> type[Document[Event]]:
        """The type to decode a file as."""
        return _TYPES[self][2]


_TYPES: dict[Shape, tuple[Any, Any, Any]] = {
    Shape(): (Event, list[Event], Document[Event]),
    Shape(comm=True): (CommEvent, list[CommEvent], Document[CommEvent]),
    Shape(exact=True): (ExactEvent, list[ExactEvent], Document[ExactEvent]),
    Shape(exact=True, comm=True): (ExactCommEvent, list[ExactCommEvent], Document[ExactCommEvent]),
}
WIDEST = Shape(exact=True, comm=True)
