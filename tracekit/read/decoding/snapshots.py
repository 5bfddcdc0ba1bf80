"""torch's snapshots of CUDA memory (`torch.cuda.memory._dump_snapshot`), told as the memory events of a trace.

A snapshot is a pickle of plain containers, and a pickle can name any code to be run: nothing but containers, numbers
and text is admitted here. Its fields are those of torch 2.13, `torch/csrc/cuda/memory_snapshot.cpp`.
"""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tracekit.errors import InputError
from tracekit.read.decoding.spellings import MEMORY

MAGIC = b"\x80"
# Snapshots are a few hundred MB; what is larger than this is none.
_MOST_BYTES = 4 * 2**30
_CUDA = 1
_PROCESS = {"pid": 0, "tid": 0}


class _PlainContainers(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it names {module}.{name}")


def as_trace(path: Path, blocks: Iterator[bytes]) -> bytes:
    """Return the JSON text of a trace with an event for each allocation and free of the snapshot.

    Raises:
        InputError: the pickle holds more than containers, is damaged, or is no snapshot.
    """
    text = bytearray()
    for block in blocks:
        text += block
        if len(text) > _MOST_BYTES:
            raise InputError(f"{path}: a pickle of more than {_MOST_BYTES:,} bytes is no snapshot of memory")
    try:
        snapshot = _PlainContainers(io.BytesIO(text)).load()
    except Exception as error:  # noqa: BLE001 - damage of a pickle may raise anything
        told = str(error) or type(error).__name__
        raise InputError(
            f"{path}: this pickle is not read ({told}): only snapshots of torch.cuda.memory, of plain containers, are"
        ) from None
    traces = snapshot.get("device_traces") if isinstance(snapshot, dict) else None
    if not isinstance(traces, list) or not all(isinstance(trace, list) for trace in traces):
        raise InputError(
            f"{path}: a pickle, such as a dump of the flight recorder, is read only where it is a snapshot of "
            "torch.cuda.memory, and this one has no device_traces"
        )
    events = [event for device, trace in enumerate(traces) for event in _events(device, trace, snapshot)]
    if not events:
        raise InputError(
            f"{path}: this snapshot holds no allocation: record its history by "
            "torch.cuda.memory._record_memory_history before the steps"
        )
    whole = {"ph": "X", "cat": "user_annotation", "name": "memory snapshot", **_PROCESS}
    first, last = min(e["ts"] for e in events), max(e["ts"] for e in events)
    return json.dumps({"traceEvents": [{**whole, "ts": first, "dur": last - first}, *events]}).encode()


def _events(device: int, trace: list[Any], snapshot: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Memory events of one device, with the totals that they lead to."""
    entries = [entry for entry in trace if isinstance(entry, dict) and _size(entry) is not None]
    # What a stream still works on is given back later, but counts as free from when that was asked for.
    requested = any(entry.get("action") == "free_requested" for entry in entries)
    signs = {"alloc": 1, "free_requested" if requested else "free_completed": -1}
    held = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
    changes = [(signs.get(entry["action"], 0), held.get(entry["action"], 0), entry) for entry in entries]
    allocated, reserved = _at_the_end(device, snapshot)
    allocated -= sum(sign * _bytes(entry) for sign, _, entry in changes)
    reserved -= sum(sign * _bytes(entry) for _, sign, entry in changes)
    for place, (sign, segment, entry) in enumerate(changes):
        allocated, reserved = allocated + sign * _bytes(entry), reserved + segment * _bytes(entry)
        if sign:
            args = {"Device Type": _CUDA, "Device Id": device, "Addr": entry.get("addr"), "Bytes": sign * _bytes(entry)}
            args |= {"Total Allocated": allocated, "Total Reserved": reserved}
            time = entry.get("time_us")
            ts = time if isinstance(time, int | float) and not isinstance(time, bool) else place
            yield {
                "ph": "i",
                "s": "t",
                "cat": "cpu_instant_event",
                "name": MEMORY,
                "pid": 0,
                "tid": 0,
                "ts": ts,
                "args": args,
            }


def _at_the_end(device: int, snapshot: dict[str, Any]) -> tuple[int, int]:
    """Bytes allocated and reserved when the snapshot was taken."""
    segments = snapshot.get("segments")
    own = (
        [s for s in segments if isinstance(s, dict) and s.get("device") == device] if isinstance(segments, list) else []
    )
    totals = [sum(s[key] for s in own if isinstance(s.get(key), int)) for key in ("allocated_size", "total_size")]
    return totals[0], totals[1]


def _size(entry: dict[str, Any]) -> int | None:
    size = entry.get("size")
    return size if isinstance(size, int) and isinstance(entry.get("action"), str) and 0 <= size < 2**53 else None


def _bytes(entry: dict[str, Any]) -> int:
    return int(entry["size"])
