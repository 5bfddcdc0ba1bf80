"""One trace file -> its events as frames, what it says about itself, and what had to be repaired."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import polars as pl

from tracekit.errors import InputError
from tracekit.read.decoding import clock
from tracekit.read.decoding.batches import Batch, Batches, batches
from tracekit.read.decoding.columns import Columns, NarrowError, Pieces, pieces, stacked
from tracekit.read.decoding.content import blocks, empty_sentence
from tracekit.read.decoding.events import WIDEST, Event, Shape
from tracekit.read.decoding.metadata import Facts, facts_before, facts_in, facts_of
from tracekit.read.findings import CORRUPT, Finding, merged
from tracekit.read.recovery import salvage

_BEYOND_ASCII = 0x80
_NOT_DECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


# What files that are no trace begin with, after gzip or zstd around them has been undone.
_LOOKS = {
    b"\x1f\x8b": "gzip inside a compressed file (gunzip undoes one layer)",
    b"\x28\xb5\x2f\xfd": "zstd inside a compressed file (zstd -d undoes one layer)",
    b"BZh": "bzip2 (bunzip2 undoes it)",
    b"\xfd7zXZ\0": "xz (unxz undoes it)",
    b"PK\x03\x04": "a zip archive (unzip takes the trace out)",
    b"version https://git-lfs": "a pointer of Git LFS (git lfs pull gets the file)",
    b"PAR1": "Parquet",
    b"<": "HTML or XML",
}


class Decoded(NamedTuple):
    """One file: frames in file order (absolute ns), its facts, and its findings, one row a kind of fault."""

    columns: Columns
    facts: Facts
    findings: list[Finding]


class _Part(NamedTuple):
    """What one batch gave.

    Not its events: they must be gone before the next ones are made, which would be scattered among them otherwise.
    """

    num_events: int
    phases: set[str]
    pieces: Pieces
    facts: Facts
    findings: list[Finding]


def decode(path: Path) -> Decoded:
    """Return the events of one file, read in bounded memory.

    Raises:
        InputError: the file cannot be read, is not a Kineto trace, or holds no usable event.
    """
    findings: list[Finding] = []
    facts = Facts()
    parts: list[Pieces] = []
    phases: set[str] = set()
    seen = 0
    for part in _parts(batches(blocks(path, findings)), path):
        facts = part.facts.or_else(facts)
        findings.extend(part.findings)
        seen += part.num_events
        parts.append(part.pieces)
        phases |= part.phases
    if "X" not in phases:
        raise _no_kineto(path, phases, seen, findings)
    base_ns = facts.base_ns or 0
    if abs(base_ns) >= clock.LATEST_NS:
        findings.append(Finding("baseTimeNanoseconds that no clock shows", None, 1, "times taken as they are"))
        base_ns = 0
    columns = stacked(parts, base_ns)
    return Decoded(columns, facts, merged([*findings, *_unusable_times(columns)]))


def _parts(found: Batches, path: Path) -> Iterator[_Part]:
    seen, in_object, shape = 0, True, Shape()
    batch = next(found, None)
    while batch is not None:
        is_inside = False
        if batch.part == "alien":
            raise _refusal(bytes(batch.text), path)
        if batch.part == "head":
            head = bytes(batch.text)
            in_object = head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{")
            yield _Part(0, set(), {}, *facts_before(head))
        elif batch.part == "headless":
            lost = Finding(f"{CORRUPT}: the start of the file is missing or damaged", 0, 1, "events kept")
            yield _Part(0, set(), {}, facts_in(bytes(batch.text)), [lost])
        else:
            try:
                part, shape = _events(batch, seen, shape, in_object=in_object)
            except _InsideError:
                is_inside = True
            else:
                seen += part.num_events
                yield part
        batch = _following(found, is_inside=is_inside)


def _following(found: Batches, *, is_inside: bool) -> Batch | None:
    try:
        return found.send(is_inside)
    except StopIteration:
        return None


class _InsideError(ValueError):
    """A batch that ends inside an event."""


def _events(batch: Batch, first_index: int, shape: Shape, *, in_object: bool) -> tuple[_Part, Shape]:
    """Decode one batch, in this shape or in the wider one that it turns out to need, which the rest will need too."""
    try:
        events, facts = _whole(batch, shape, in_object=in_object)
        return _Part(len(events), _phases(events), pieces(events, first_index, shape), facts, []), shape
    except clock.RoundedError:
        return _events(batch, first_index, shape._replace(exact=True), in_object=in_object)
    except NarrowError:
        return _events(batch, first_index, shape._replace(comm=True), in_object=in_object)
    except _NOT_DECODABLE as error:
        at_end = batch.part == "rest"
        if not at_end and not batch.is_exact and "truncated" in str(error):
            raise _InsideError from None
        text = bytes(batch.text) if at_end else bytes(batch.text[1:-1])
        saved = salvage(text, batch.offset, at_end=at_end, in_object=in_object)
        kept = pieces(saved.events, first_index, WIDEST)
        facts = facts_in(saved.after)
        return _Part(len(saved.events), _phases(saved.events), kept, facts, saved.findings), shape


def _phases(events: Sequence[Event]) -> set[str]:
    """The phases of these events, of which X alone matters where there is one."""
    return {"X"} if any(e.ph == "X" for e in events) else {str(e.ph)[:8] for e in events}


def _whole(batch: Batch, shape: Shape, *, in_object: bool) -> tuple[Sequence[Event], Facts]:
    """Undamaged events; the last ones come with the end of the file, which closes them as a document or as a list."""
    if np.frombuffer(batch.text, np.uint8).max(initial=0) >= _BEYOND_ASCII:
        # What is skipped is not looked at otherwise.
        bytes(batch.text).decode()
    if batch.part == "events":
        return msgspec.json.decode(batch.text, type=shape.events), Facts()
    text = bytes(batch.text)
    if in_object and b'"traceEvents"' in text:
        # JSON readers keep the last of two lists, which would lose the events of the first.
        raise msgspec.DecodeError("a second list of events")
    whole = b'{"traceEvents":[' + text + (b"" if in_object else b"}")
    document = msgspec.json.decode(whole, type=shape.document)
    return document.events, facts_of(document)


def _refusal(text: bytes, path: Path) -> InputError:
    """Say why text without events is none of ours."""
    if not text.strip():
        return InputError(empty_sentence(path))
    try:
        msgspec.json.decode(text)
    except _NOT_DECODABLE:
        if look := _look(text):
            return InputError(f"{path}: not JSON text but what looks like {look}; give what torch.profiler exports")
        return InputError(
            f"{path}: neither JSON nor a damaged trace (no event in it can be read); give what torch.profiler exports"
        )
    return InputError(
        f'{path}: not a Kineto trace (valid JSON without a "traceEvents" list); give what torch.profiler exports'
    )


def _look(text: bytes) -> str | None:
    """What the first bytes are the mark of; null where that is nothing known."""
    if b"\0" in text[:8] and text[:8].translate(None, b"\0").lstrip(b"\xff\xfe")[:1] in (b"{", b"["):
        return "JSON in UTF-16 or UTF-32 (iconv -t UTF-8 makes UTF-8 of it)"
    return next((name for magic, name in _LOOKS.items() if text.startswith(magic)), None)


def _no_kineto(path: Path, phases: set[str], seen: int, findings: list[Finding]) -> InputError:
    """Say why JSON without complete events is none of ours."""
    if not seen:
        damage = f" ({findings[0].what})" if findings else ""
        return InputError(f"{path}: the trace holds no events{damage}; was the profiler active during a step?")
    listed = ", ".join(repr(p) for p in sorted(phases)[:6])
    return InputError(
        f'{path}: not a Kineto trace (its {seen} events have the phases {listed}, none is a complete "X" event); '
        f"tracekit reads what torch.profiler exports"
    )


def _unusable_times(columns: Columns) -> list[Finding]:
    """Complete events that cannot be placed in time; the tables leave them out."""
    counts: Counter[str] = Counter()
    for spans in (columns.events.filter(pl.col("ph") == "X"), columns.frames):
        counts["no start time, or an impossible one"] += spans["ts_ns"].null_count()
        counts["no duration, or an impossible one"] += spans["dur_ns"].null_count()
        counts["negative duration"] += int((spans["dur_ns"] < 0).sum())
    return [Finding(what, None, count, "event set aside") for what, count in counts.items() if count]
