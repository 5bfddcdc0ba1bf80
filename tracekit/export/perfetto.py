"""Runs as one Perfetto trace: a process a rank, exact nanoseconds, every slice kept by the viewer.

Packets are built by the `perfetto` package's messages. A slice differs from its neighbours by its time
alone, so the rest of its packet is serialised once and the time is put before it: fields of a protobuf
message may come in any order. Packets travel deflated (`compressed_packets`, which every Perfetto reads),
names are interned.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl

from tracekit.export.counters import counters, peaks
from tracekit.export.slices import TRACKS, slices
from tracekit.layer_names import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tracekit.model.run import Run

SUFFIX = ".pftrace"

_SEQUENCE = 1  # any number but 0; packets of one sequence share the interned names
_CHUNK_BYTES = 1 << 20
_TEXTS = ("event", "layer", "phase", "kind", "group")
_ARGUMENTS = ("step", *_TEXTS, "payload_bytes")
_MAX_RANKS = 1_000_000  # ranks a run may have before the made-up process ids of two runs meet


class TrackKey(NamedTuple):
    """Key of a track: a row of a lane, or a counter."""

    run: int
    rank: int
    track: str
    device: str | None
    lane: str | None
    row: int


def write_trace(runs: Sequence[Run], path: Path) -> None:
    """Write the runs as one Perfetto trace at `path`; OSError where it cannot be written.

    One run keeps its absolute nanoseconds. With several, each is moved so that all begin together, because
    runs made minutes apart would be slivers in a wide gap; the shift is in the process's label.
    """
    with path.open("wb") as file:
        for chunk in _chunks(packets(runs)):
            file.write(chunk)


def packets(runs: Sequence[Run]) -> Iterator[bytes]:
    """The serialised packets, in the order of the file."""
    frames = [(slices(run), counters(run)) for run in runs]
    tops = [peaks(run) for run in runs]
    shifts = _shifts(frames)
    names = _names([frame for frame, _ in frames])
    yield _first_packet(names)
    for number, (run, (frame, counts), top, shift) in enumerate(zip(runs, frames, tops, shifts, strict=True)):
        writer = _RunWriter(number, run.name if len(runs) > 1 else "", shift, names)
        yield from writer.packets(frame, counts, top)


class _RunWriter:
    """Packets of one run; keeps the tracks it has described and the serialised bodies of its slices."""

    def __init__(self, number: int, title: str, shift: int, names: dict[str, dict[Any, int]]) -> None:
        self.number, self.title, self.shift, self.names = number, title, shift, names
        self.tracks: dict[TrackKey, int] = {}
        self.bodies: dict[tuple[Any, ...], bytes] = {}

    def packets(self, frame: pl.DataFrame, counts: pl.DataFrame, tops: pl.DataFrame) -> Iterator[bytes]:
        ranks = sorted({*frame["rank"].drop_nulls(), *counts["rank"].drop_nulls()})
        for rank in ranks:
            yield self._process(rank)
            yield self._folder(rank)
        titles = _titles(frame.select("rank", "track", "device", "lane"))
        columns = ["rank", "track", "device", "lane", "row", "name", *_ARGUMENTS, "start_ns", "end_ns"]
        for row in frame.select(columns).iter_rows():
            key, start, end = TrackKey(self.number, *row[:5]), row[-2], row[-1]
            if key not in self.tracks:
                yield self._track(key, titles[key[1:5]])
            uuid = self.tracks[key]
            yield _stamped(start + self.shift, self._begin(uuid, row[5:-2]))
            yield _stamped(end + self.shift, self._end(uuid))
        yield from self._counter_packets(counts)
        yield from self._peak_packets(tops)

    def _process(self, rank: int) -> bytes:
        packet = _packet()
        track = packet.track_descriptor
        track.uuid = self._uuid(self._process_key(rank))
        # Real process ids may repeat over hosts, so each rank gets one made up that shows its number.
        track.process.pid = (self.number + 1) * _MAX_RANKS + rank
        track.process.process_name = f"{self.title} · rank {rank}" if self.title else f"rank {rank}"
        if self.shift:
            track.process.process_labels.append(f"moved by {self.shift} ns")
        return packet.SerializeToString()

    def _folder(self, rank: int) -> bytes:
        """The track that holds a rank's tracks: right below a process, viewers would sort them by name."""
        packet = _packet()
        track = packet.track_descriptor
        track.uuid = self._uuid(self._folder_key(rank))
        track.parent_uuid = self.tracks[self._process_key(rank)]
        track.name = "training"
        track.child_ordering = track.EXPLICIT
        return packet.SerializeToString()

    def _process_key(self, rank: int) -> TrackKey:
        return TrackKey(self.number, rank, "", None, None, 0)

    def _folder_key(self, rank: int) -> TrackKey:
        return TrackKey(self.number, rank, "", None, None, 1)

    def _track(self, key: TrackKey, title: str) -> bytes:
        # Rows of one lane share a name: the viewer draws them as one track.
        return self._named_track(key, title, TRACKS.index(key.track))

    def _counter_packets(self, counts: pl.DataFrame) -> Iterator[bytes]:
        titles = _titles(counts.select("rank", "name", "device", lane=pl.lit(None, pl.String)))
        for rank, name, device, ts, value in counts.iter_rows():
            key = TrackKey(self.number, rank, name, device, None, 0)
            if key not in self.tracks:
                packet = _packet()
                track = packet.track_descriptor
                track.uuid = self._uuid(key)
                track.parent_uuid = self.tracks[self._folder_key(rank)]
                track.name = titles[key[1:5]]
                track.sibling_order_rank = len(TRACKS)
                track.counter.unit = track.counter.UNIT_SIZE_BYTES
                yield packet.SerializeToString()
            packet = _packet()
            packet.timestamp = ts + self.shift
            packet.track_event.type = packet.track_event.TYPE_COUNTER
            packet.track_event.track_uuid = self.tracks[key]
            packet.track_event.counter_value = value
            yield packet.SerializeToString()

    def _peak_packets(self, tops: pl.DataFrame) -> Iterator[bytes]:
        """An instant where each device held most, on a track of its rank, with the bytes by category."""
        for rank, device, ts, *what in tops.iter_rows():
            key = TrackKey(self.number, rank, "memory peak", device, None, 0)
            several = tops.filter(rank=rank).height > 1
            yield self._named_track(key, f"memory peak · {device}" if several else "memory peak", len(TRACKS) + 1)
            packet = _packet()
            packet.timestamp = ts + self.shift
            event = packet.track_event
            event.type, event.track_uuid, event.name = event.TYPE_INSTANT, self.tracks[key], what[0]
            for category, nbytes in zip(*what[1:], strict=True):
                note = event.debug_annotations.add()
                note.name, note.int_value = f"{category}, bytes", nbytes
            yield packet.SerializeToString()

    def _named_track(self, key: TrackKey, title: str, place: int) -> bytes:
        packet = _packet()
        track = packet.track_descriptor
        track.uuid = self._uuid(key)
        track.parent_uuid = self.tracks[self._folder_key(key.rank)]
        track.name = title
        track.sibling_order_rank = place
        return packet.SerializeToString()

    def _uuid(self, key: TrackKey) -> int:
        """A number of its own for the track, the same in every writing of the same runs."""
        uuid = (self.number << 32) + len(self.tracks) + 1
        return self.tracks.setdefault(key, uuid)

    def _begin(self, uuid: int, what: tuple[Any, ...]) -> bytes:
        cached = self.bodies.get((uuid, what))
        if cached is not None:
            return cached
        name, *arguments = what
        packet = _packet()
        event = packet.track_event
        event.type = event.TYPE_SLICE_BEGIN
        event.track_uuid = uuid
        event.name_iid = self.names["name"][name or "(no name)"]
        for column, value in zip(_ARGUMENTS, arguments, strict=True):
            if value is None:
                continue
            note = event.debug_annotations.add()
            note.name_iid = self.names["argument"][column]
            if isinstance(value, int):
                note.int_value = value
            else:
                note.string_value_iid = self.names["value"][_shown(column, value)]
        return self.bodies.setdefault((uuid, what), packet.SerializeToString())

    def _end(self, uuid: int) -> bytes:
        cached = self.bodies.get((uuid,))
        if cached is not None:
            return cached
        packet = _packet()
        packet.track_event.type = packet.track_event.TYPE_SLICE_END
        packet.track_event.track_uuid = uuid
        return self.bodies.setdefault((uuid,), packet.SerializeToString())


def _titles(places: pl.DataFrame) -> dict[tuple[Any, ...], str]:
    """Title of each (rank, track, device, lane): device and lane only where a rank has several."""
    every = set(places.iter_rows())
    devices: dict[Any, set[Any]] = {}
    lanes: dict[Any, set[Any]] = {}
    for rank, track, device, lane in every:
        devices.setdefault((rank, track), set()).add(device)
        lanes.setdefault((rank, track, device), set()).add(lane)
    titles: dict[tuple[Any, ...], str] = {}
    for rank, track, device, lane in every:
        parts = [track]
        parts += [device] if device and len(devices[rank, track]) > 1 else []
        parts += [lane] if lane and len(lanes[rank, track, device]) > 1 else []
        titles[rank, track, device, lane] = " · ".join(parts)
    return titles


def _shown(column: str, value: str) -> str:
    return ROOT if column == "layer" and not value else value


def _packet() -> Any:
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TracePacket

    return TracePacket(trusted_packet_sequence_id=_SEQUENCE, sequence_flags=TracePacket.SEQ_NEEDS_INCREMENTAL_STATE)


def _first_packet(names: dict[str, dict[Any, int]]) -> bytes:
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TracePacket

    packet: Any = TracePacket(
        trusted_packet_sequence_id=_SEQUENCE, sequence_flags=TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
    )
    for name, iid in names["name"].items():
        packet.interned_data.event_names.add(iid=iid, name=name)
    for name, iid in names["argument"].items():
        packet.interned_data.debug_annotation_names.add(iid=iid, name=name)
    for text, iid in names["value"].items():
        # The schema wants bytes here, viewers want UTF-8 in them.
        packet.interned_data.debug_annotation_string_values.add(iid=iid, str=text.encode("utf-8", "replace"))
    return packet.SerializeToString()


def _names(frames: list[pl.DataFrame]) -> dict[str, dict[Any, int]]:
    """Numbers from 1 for every slice name, argument name and text argument."""
    names: dict[str, None] = {"(no name)": None}
    values: dict[str, None] = {}
    for frame in frames:
        names.update(dict.fromkeys(frame["name"].drop_nulls().unique(maintain_order=True)))
        for column in _TEXTS:
            texts = frame[column].drop_nulls().unique(maintain_order=True)
            values.update(dict.fromkeys(_shown(column, text) for text in texts))
    return {
        kind: {text: i for i, text in enumerate(texts, 1)}
        for kind, texts in (("name", names), ("argument", _ARGUMENTS), ("value", values))
    }


def _shifts(frames: list[tuple[pl.DataFrame, pl.DataFrame]]) -> list[int]:
    """Offset to add to each run's times, in ns, so that all begin where the first begins; 0 for one run alone."""
    begins = [
        min((t for t in (frame["start_ns"].min(), counts["ts_ns"].min()) if isinstance(t, int)), default=None)
        for frame, counts in frames
    ]
    # A packet's time has no sign.
    first = max(next((begin for begin in begins if begin is not None), 0), 0)
    return [0 if begin is None else first - begin for begin in begins]


def _stamped(ts_ns: int, body: bytes) -> bytes:
    return b"\x40" + _varint(ts_ns) + body  # field 8 of TracePacket: timestamp


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _chunks(parts: Iterator[bytes]) -> Iterator[bytes]:
    """Packets framed for the file, deflated by the megabyte."""
    held = bytearray()
    for part in parts:
        held += b"\x0a" + _varint(len(part)) + part  # field 1 of Trace: a packet
        if len(held) >= _CHUNK_BYTES:
            yield _deflated(held)
            held = bytearray()
    if held:
        yield _deflated(held)


def _deflated(held: bytearray) -> bytes:
    packed = zlib.compress(bytes(held), 6)
    packet = b"\x92\x03" + _varint(len(packed)) + packed  # field 50 of TracePacket: compressed_packets
    return b"\x0a" + _varint(len(packet)) + packet
