"""One trace file decoded: its events as frames, its metadata, and what had to be repaired."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import polars as pl

from tracekit.errors import InputError
from tracekit.read import processes
from tracekit.read.decoding import clock, formats, snapshots
from tracekit.read.decoding.batches import Batch, Batches, batches
from tracekit.read.decoding.columns import (
    BatchColumns,
    Columns,
    NarrowError,
    batch_columns,
    process_labels,
    process_texts,
    stacked,
)
from tracekit.read.decoding.content import blocks, empty_sentence
from tracekit.read.decoding.documents import is_list_of_traces, is_several
from tracekit.read.decoding.events import WIDEST, Event, Shape
from tracekit.read.decoding.labelled import with_categories
from tracekit.read.decoding.metadata import Metadata, metadata_before, metadata_in, metadata_of
from tracekit.read.findings import CORRUPT, MEMORY_ASKED_FOR, Finding, merged
from tracekit.read.recovery import recover

_BEYOND_ASCII = 0x80
_SEVERAL = (
    "{}: another trace begins or ends inside of it: several ranks wrote this file; give each rank a path of its own "
    "and record again"
)
_NOT_DECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class Decoded(NamedTuple):
    """One file: frames in file order (absolute ns), its metadata, and its findings, one for each kind of fault.

    `names`: the texts that numbers of processes stand for, where the file holds several that mark steps.
    """

    columns: Columns
    metadata: Metadata
    findings: list[Finding]
    names: dict[int, str]


class _BatchResult(NamedTuple):
    """Columns and findings of one batch.

    The event objects are left out: they must be freed before the next ones are allocated, for speed.
    """

    num_events: int
    phases: set[str]
    columns: BatchColumns
    metadata: Metadata
    findings: list[Finding]


def decode(path: Path) -> Decoded:
    """Return the events of one file, read in bounded memory.

    Raises:
        InputError: the file cannot be read, is not a Kineto trace, or holds no usable event.
    """
    findings: list[Finding] = []
    metadata = Metadata()
    parts: list[BatchColumns] = []
    phases: set[str] = set()
    seen = 0
    for result in _batch_results(batches(_text(path, findings)), path):
        metadata = result.metadata.or_else(metadata)
        findings.extend(result.findings)
        seen += result.num_events
        parts.append(result.columns)
        phases |= result.phases
    if "X" not in phases:
        raise _no_complete_events(path, phases, seen, findings)
    base_ns = metadata.base_ns or 0
    if abs(base_ns) >= clock.LATEST_NS:
        findings.append(Finding("baseTimeNanoseconds that no clock shows", None, 1, "times taken as they are"))
        base_ns = 0
    columns, names = stacked(parts, base_ns), process_texts(parts)
    if metadata.asked_for_memory and columns.memory.is_empty():
        findings.append(Finding(MEMORY_ASKED_FOR, None, 1, "none is in the file: memory is unknown"))
    events, device, unknown = with_categories(columns.events, columns.device, process_labels(parts))
    columns, findings = columns._replace(events=events, device=device), [*findings, *unknown]
    if names and len(processes.marked(columns, names)) < 2:
        columns, names = processes.plain(columns, names), {}
    return Decoded(columns, metadata, merged([*findings, *_unusable_times(columns)]), names)


def _text(path: Path, findings: list[Finding]) -> Iterator[bytes]:
    """Yield the text of the file in blocks; of a snapshot of memory, that of the trace which it comes to."""
    source = blocks(path, findings)
    first = next(source)
    if formats.is_pickle(first):
        yield snapshots.as_trace(path, chain([first], source))
        return
    yield first
    yield from source


def _batch_results(found: Batches, path: Path) -> Iterator[_BatchResult]:
    seen, has_head, in_object, shape = 0, False, True, Shape()
    batch = next(found, None)
    while batch is not None:
        is_inside = False
        _refuse_other(batch, path, is_first=has_head and not seen and not in_object)
        if batch.kind == "head":
            head, has_head = bytes(batch.text), True
            in_object = head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{")
            yield _BatchResult(0, set(), {}, *metadata_before(head))
        elif batch.kind == "headless":
            lost = Finding(f"{CORRUPT}: the start of the file is missing or damaged", 0, 1, "events kept")
            yield _BatchResult(0, set(), {}, metadata_in(bytes(batch.text)), [lost])
        else:
            try:
                result, shape = _events(batch, seen, shape, in_object=in_object)
            except _CutInsideEventError:
                is_inside = True
            except _DamagedError:
                if is_several(bytes(batch.text), has_head=has_head, in_object=in_object):
                    raise InputError(_SEVERAL.format(path)) from None
                result = _recovered(batch, seen, in_object=in_object)
                seen += result.num_events
                yield result
            else:
                seen += result.num_events
                yield result
        batch = _next_batch(found, is_inside=is_inside)


def _refuse_other(batch: Batch, path: Path, *, is_first: bool) -> None:
    """Refuse what is no trace; `is_first`: the batch holds the first entries of a list without anything around it."""
    starts = batch.kind in {"head", "headless"}
    if batch.kind == "foreign" or (starts and formats.is_tar(bytes(batch.text[:512]))):
        raise _not_a_trace(bytes(batch.text), path)
    if is_first and is_list_of_traces(bytes(batch.text[:4096])):
        raise InputError(f"{path}: not a Kineto trace but a list of whole ones; give one file a rank")


def _next_batch(found: Batches, *, is_inside: bool) -> Batch | None:
    try:
        return found.send(is_inside)
    except StopIteration:
        return None


class _CutInsideEventError(ValueError):
    """A batch ends inside an event."""


class _DamagedError(ValueError):
    """A batch holds text that does not decode."""


def _events(batch: Batch, first_index: int, shape: Shape, *, in_object: bool) -> tuple[_BatchResult, Shape]:
    """Return the decoded batch and the shape it took: this one, or a wider one, which the next batches start with."""
    try:
        events, metadata = _undamaged(batch, shape, in_object=in_object)
        return _BatchResult(
            len(events), _phases(events), batch_columns(events, first_index, shape), metadata, []
        ), shape
    except clock.RoundedError:
        return _events(batch, first_index, shape._replace(exact=True), in_object=in_object)
    except NarrowError:
        return _events(batch, first_index, shape._replace(comm=True), in_object=in_object)
    except _NOT_DECODABLE as error:
        at_end = batch.kind == "rest"
        if not at_end and not batch.is_exact and "truncated" in str(error):
            raise _CutInsideEventError from None
        raise _DamagedError from None


def _recovered(batch: Batch, first_index: int, *, in_object: bool) -> _BatchResult:
    """Return what is found in a damaged batch."""
    at_end = batch.kind == "rest"
    text = bytes(batch.text) if at_end else bytes(batch.text[1:-1])
    found = recover(text, batch.offset, at_end=at_end, in_object=in_object)
    columns = batch_columns(found.events, first_index, WIDEST)
    return _BatchResult(len(found.events), _phases(found.events), columns, metadata_in(found.after), found.findings)


def _phases(events: Sequence[Event]) -> set[str]:
    """Return the phases of these events: "X" alone where there is one, since then no other matters."""
    return {"X"} if any(e.ph == "X" for e in events) else {str(e.ph)[:8] for e in events}


def _undamaged(batch: Batch, shape: Shape, *, in_object: bool) -> tuple[Sequence[Event], Metadata]:
    """Return undamaged events and metadata; the last batch ends the file, and so closes a document or a list."""
    if np.frombuffer(batch.text, np.uint8).max(initial=0) >= _BEYOND_ASCII:
        # msgspec does not check the text of fields that it skips.
        bytes(batch.text).decode()
    if batch.kind == "events":
        return msgspec.json.decode(batch.text, type=shape.events), Metadata()
    text = bytes(batch.text)
    if in_object and b'"traceEvents"' in text:
        # JSON readers keep the last of two lists, which would lose the events of the first.
        raise msgspec.DecodeError("a second list of events")
    whole = b'{"traceEvents":[' + text + (b"" if in_object else b"}")
    document = msgspec.json.decode(whole, type=shape.document)
    return document.events, metadata_of(document)


def _not_a_trace(text: bytes, path: Path) -> InputError:
    """Return the error for text without events."""
    if not text.strip():
        return InputError(empty_sentence(path))
    try:
        msgspec.json.decode(text)
    except _NOT_DECODABLE:
        if known := formats.by_content(text) or formats.by_name(path.name):
            return InputError(f"{path}: not JSON text but what looks like {known}; give what torch.profiler exports")
        return InputError(
            f"{path}: neither JSON nor a damaged trace (no event in it can be read); give what torch.profiler exports"
        )
    if known := formats.by_keys(text):
        return InputError(f"{path}: not a Kineto trace but {known}; give what torch.profiler exports")
    return InputError(
        f'{path}: not a Kineto trace (valid JSON without a "traceEvents" list); give what torch.profiler exports'
    )


def _no_complete_events(path: Path, phases: set[str], seen: int, findings: list[Finding]) -> InputError:
    """Return the error for JSON without complete events."""
    if not seen:
        damage = f" ({findings[0].what})" if findings else ""
        return InputError(f"{path}: the trace holds no events{damage}; was the profiler active during a step?")
    listed = ", ".join(repr(p) for p in sorted(phases)[:6])
    return InputError(
        f'{path}: not a Kineto trace (its {seen} events have the phases {listed}, none is a complete "X" event); '
        f"tracekit reads what torch.profiler exports"
    )


def _unusable_times(columns: Columns) -> list[Finding]:
    """Return findings for complete events without a usable time, which the tables leave out."""
    counts: Counter[str] = Counter()
    for spans in (columns.events.filter(pl.col("ph") == "X"), columns.frames):
        counts["no start time, or an impossible one"] += spans["ts_ns"].null_count()
        counts["no duration, or an impossible one"] += spans["dur_ns"].null_count()
        counts["negative duration"] += int((spans["dur_ns"] < 0).sum())
    return [Finding(what, None, count, "event set aside") for what, count in counts.items() if count]
