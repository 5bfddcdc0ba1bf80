"""The events of damaged text: every whole one is kept, what can be mended is mended, and both are counted.

Most of a damaged file is intact. Text that does not decode is halved between events until the faulty stretch is alone;
only that is searched event by event.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import msgspec

from tracekit.read.decoding.batches import BOUNDARY
from tracekit.read.decoding.events import WIDEST, Document, Event
from tracekit.read.decoding.lenient_json import event_of, object_at
from tracekit.read.decoding.metadata import mended_facts
from tracekit.read.findings import CORRUPT, ENDS_EARLY, INVALID_UTF8, Finding

_START = re.compile(r'\{\s*"')
_EVENT_START = re.compile(r'\{\s*"(?:ph|name|cat|pid|tid|ts|dur)"\s*:')
# An event ends before the next boundary, or before the next object that starts as Kineto starts an event.
_NEXT = re.compile(BOUNDARY.pattern.decode() + r'|(?<!:)(?<!: )\{\s*"ph"\s*:')
_CLOSING = re.compile(rb"(\})?\s*\]")
_ESCAPED_BYTE = re.compile("[\udc80-\udcff]+")
# What is written behind the events is small.
_MAX_TAIL_BYTES = 2**16
# Searching costs time that grows with the damage. After so many looks at each character, on average, the search goes
# on from one boundary between events to the next.
_PATIENCE = 60


class Salvaged(NamedTuple):
    """Events in file order; `after`: the text behind the last of them, where that is damaged or ends the file."""

    events: list[Event]
    findings: list[Finding]
    after: bytes


def salvage(text: bytes, offset: int, *, at_end: bool, in_object: bool = True) -> Salvaged:
    """Return what can be kept of the text of some events.

    `at_end` tells that the file ends with it, `in_object` that their list is a value of an object that must close too.
    """
    events: list[Event] = []
    findings: list[Finding] = []
    lost: list[Finding] = []
    after = b""
    for decoded, (start, end) in _runs(_pieces(text)):
        after = b""
        if decoded is not None:
            events.extend(decoded)
            continue
        found = _recover(text[start:end], offset + start, at_end=at_end and end == len(text))
        after = found.after
        events.extend(found.events)
        findings.extend(found.findings)
        lost.extend(found.lost)
    if at_end:
        ending = _ending(after, offset + len(text), in_object=in_object, lost=bool(lost))
        findings.extend(ending)
        # Whatever could not be read last is the event that the writer was at.
        lost = lost[:-1] if ending and ending[0].what.startswith(ENDS_EARLY) else lost
    return Salvaged(events, [*findings, *lost], after)


def _ending(after: bytes, end: int, *, in_object: bool, lost: bool) -> list[Finding]:
    """What is wrong with the text behind the last event."""
    place = end - len(after)
    close = _close(after, in_object=in_object)
    if close is None:
        done = "incomplete event dropped" if lost else "complete events kept"
        return [Finding(f"{ENDS_EARLY}: the list of events is not closed", end, 1, done)]
    before, bare = after[:close].strip(), after[close:].strip()
    findings: list[Finding] = []
    if before == b",":
        findings.append(Finding("comma behind the last event", place, 1, "ignored"))
    elif before and not lost:
        findings.append(Finding(f"{CORRUPT}: text between events", place, 1, "skipped"))
    if in_object and b"}" not in bare:
        return [
            *findings,
            Finding(f"{ENDS_EARLY}: the text after the events is not closed", end, 1, "complete events kept"),
        ]
    return findings + _around(_as_object(bare, in_object=in_object), place)


def _around(text: bytes, place: int) -> list[Finding]:
    """What is wrong with the text from the closing bracket on, as the end of an object."""
    if _decodes(text):
        return []
    mended = mended_facts(text, place)
    if mended is None:
        return [Finding(f"{CORRUPT}: text after the events", place, 1, "skipped")]
    # Invalid bytes were found before, with the events.
    return [replace(finding, offset=place) for finding in mended if finding.what != INVALID_UTF8]


def _close(after: bytes, *, in_object: bool) -> int | None:
    """Where the list of events is closed, also behind an event that cannot be read; null where it is not.

    Brackets in a cut event look like it: behind text, the one counts that all the rest of the file fits to.
    """
    if after.lstrip().startswith(b"]"):
        return after.index(b"]")
    whole = b"{" not in after
    for found in _CLOSING.finditer(after, max(0, len(after) - _MAX_TAIL_BYTES)):
        close = found.end() - 1
        fits = after.rstrip().endswith(b"}" if in_object else b"]")
        if fits and (whole or found[1]) and _decodes(_as_object(after[close:], in_object=in_object)):
            return close
    return None


def _as_object(tail: bytes, *, in_object: bool) -> bytes:
    return b'{"traceEvents":[' + tail + (b"" if in_object else b"}")


def _decodes(text: bytes) -> bool:
    try:
        msgspec.json.decode(text, type=Document[Event])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


class _Found(NamedTuple):
    events: list[Event]
    findings: list[Finding]
    lost: list[Finding]
    after: bytes


class _Piece(NamedTuple):
    start: int
    end: int
    text: bytes


def _pieces(text: bytes) -> list[_Piece]:
    pieces: list[_Piece] = []
    start = 0
    for found in BOUNDARY.finditer(text):
        pieces.append(_Piece(start, found.start(), text[start : found.start()]))
        start = found.end()
    pieces.append(_Piece(start, len(text), text[start:]))
    return pieces


def _decode(pieces: Sequence[_Piece]) -> list[Event] | None:
    text = b"[" + b",".join(p.text for p in pieces) + b"]"
    try:
        text.decode()
        # As text every start time would do; decoded, one that is no number shows.
        msgspec.json.decode(text, type=WIDEST._replace(exact=False).events)
        events = msgspec.json.decode(text, type=WIDEST.events)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    # An object without a phase can be a whole trace around its events.
    return None if any(e.ph is None for e in events) else events


def _runs(pieces: list[_Piece]) -> list[tuple[list[Event] | None, tuple[int, int]]]:
    """Halve until each piece is known to decode or not (null); neighbours that do not are one stretch."""
    runs: list[tuple[list[Event] | None, tuple[int, int]]] = []
    waiting = [(0, len(pieces))]
    while waiting:
        low, high = waiting.pop()
        decoded = _decode(pieces[low:high])
        if decoded is None and high - low > 1:
            middle = (low + high) // 2
            waiting += [(middle, high), (low, middle)]
            continue
        span = (pieces[low].start, pieces[high - 1].end)
        if decoded is None and runs and runs[-1][0] is None:
            runs[-1] = (None, (runs[-1][1][0], span[1]))
        else:
            runs.append((decoded, span))
    return runs


def _recover(region: bytes, offset: int, *, at_end: bool) -> _Found:
    """Search a faulty stretch object by object. Places are characters until all are found."""
    # Bytes that are no UTF-8 keep a character each, so that places in the text can be told in bytes.
    escaped = region.decode("utf-8", "surrogateescape")
    text = _ESCAPED_BYTE.sub(lambda run: "\ufffd" * len(run[0]), escaped)
    events: list[Event] = []
    findings: list[Finding] = []
    lost: list[Finding] = []
    if (bad := _ESCAPED_BYTE.search(escaped)) is not None:
        count = len(_ESCAPED_BYTE.findall(escaped))
        findings.append(Finding(INVALID_UTF8, bad.start(), count, "bytes replaced"))
    position = reached = 0
    patience = _PATIENCE * (len(text) + 1000)
    stop = -1
    while (start := _START.search(text, position)) is not None:
        place = start.start()
        if place >= stop:
            boundary = _NEXT.search(text, place + 1)
            stop = boundary.start() if boundary else len(text)
        attempt = object_at(text, place, stop)
        patience -= attempt.cost
        got = event_of(attempt.value) if attempt.value is not None else None
        if got is not None:
            events.append(got[0])
            findings.extend(Finding(what, place, 1, "event kept") for what in [*attempt.mended, *got[1]])
            findings.extend(_gap(text, reached, place, lost, "" if reached == 0 else ","))
            position = reached = attempt.end
            continue
        if attempt.value is None and _EVENT_START.match(text, place):
            lost.append(Finding(f"{CORRUPT}: event cannot be read", place, 1, "event dropped"))
        # An object of another kind can be a whole trace around its events. Looking into it takes as long as it is.
        patience -= attempt.end - place
        inside = attempt.value is None or '"ph"' in text[place : attempt.end]
        position = place + 1 if inside else attempt.end
        position = max(position, stop) if patience < 0 and inside else position
    if not at_end:
        findings.extend(_gap(text, reached, len(text), lost, ""))
    findings, lost = (_in_bytes(some, escaped, offset) for some in (findings, lost))
    return _Found(events, findings, lost, escaped[reached:].encode("utf-8", "surrogateescape"))


def _gap(text: str, start: int, end: int, lost: list[Finding], proper: str) -> list[Finding]:
    """What lies between two events and belongs to none of those that are known to be lost."""
    if text[start:end].strip(" \t\r\n") == proper or (lost and (lost[-1].offset or 0) >= start):
        return []
    return [Finding(f"{CORRUPT}: text between events", start, 1, "skipped")]


def _in_bytes(findings: list[Finding], text: str, offset: int) -> list[Finding]:
    """Return the findings with their places in characters of `text` turned into bytes of the file."""
    placed: list[Finding] = []
    chars = size = 0
    for finding in sorted(findings, key=lambda f: f.offset or 0):
        place = finding.offset or 0
        size += len(text[chars:place].encode("utf-8", "surrogateescape"))
        chars = place
        placed.append(replace(finding, offset=offset + size))
    return placed
