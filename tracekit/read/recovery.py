"""Recovery of events from damaged text: whole events are kept, others repaired where possible, and faults counted.

Most of a damaged file is intact. Text that does not decode is bisected between events until the faulty stretch is
isolated; only that is searched event by event.
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
from tracekit.read.decoding.metadata import metadata_findings
from tracekit.read.findings import CORRUPT, ENDS_EARLY, INVALID_UTF8, Finding

_START = re.compile(r'\{\s*"')
_EVENT_START = re.compile(r'\{\s*"(?:ph|name|cat|pid|tid|ts|dur)"\s*:')
# An event ends before the next boundary, or before the next object that starts as Kineto starts an event.
_NEXT = re.compile(BOUNDARY.pattern.decode() + r'|(?<!:)(?<!: )\{\s*"ph"\s*:')
_CLOSING = re.compile(rb"(\})?\s*\]")
_ESCAPED_BYTE = re.compile("[\udc80-\udcff]+")
# The text behind the events is small.
_MAX_TAIL_BYTES = 2**16
# The search takes time that grows with the damage. After so many looks at each character, on average, it continues
# from one boundary between events to the next.
_MAX_LOOKS = 60


class Recovered(NamedTuple):
    """Events in file order, findings, and the text after the last event where that is damaged or ends the file."""

    events: list[Event]
    findings: list[Finding]
    after: bytes


def recover(text: bytes, offset: int, *, at_end: bool, in_object: bool = True) -> Recovered:
    """Return the events that can be recovered from the text of some events, which is at `offset` of the file.

    `at_end`: the file ends with it; `in_object`: the list of events is a value of an object, which must close too.
    """
    events: list[Event] = []
    findings: list[Finding] = []
    lost: list[Finding] = []
    after = b""
    for decoded, (start, end) in _runs(_event_texts(text)):
        after = b""
        if decoded is not None:
            events.extend(decoded)
            continue
        found = _search(text[start:end], offset + start, at_end=at_end and end == len(text))
        after = found.after
        events.extend(found.events)
        findings.extend(found.findings)
        lost.extend(found.lost)
    if at_end:
        ending = _ending(after, offset + len(text), in_object=in_object, lost=bool(lost))
        findings.extend(ending)
        # The last event that could not be read is the one that was being written.
        lost = lost[:-1] if ending and ending[0].what.startswith(ENDS_EARLY) else lost
    return Recovered(events, [*findings, *lost], after)


def _ending(after: bytes, end: int, *, in_object: bool, lost: bool) -> list[Finding]:
    """Return findings for the text after the last event."""
    offset = end - len(after)
    close = _close(after, in_object=in_object)
    if close is None:
        done = "incomplete event dropped" if lost else "complete events kept"
        return [Finding(f"{ENDS_EARLY}: the list of events is not closed", end, 1, done)]
    before, bare = after[:close].strip(), after[close:].strip()
    findings: list[Finding] = []
    if before == b",":
        findings.append(Finding("comma behind the last event", offset, 1, "ignored"))
    elif before and not lost:
        findings.append(Finding(f"{CORRUPT}: text between events", offset, 1, "skipped"))
    if in_object and b"}" not in bare:
        return [
            *findings,
            Finding(f"{ENDS_EARLY}: the text after the events is not closed", end, 1, "complete events kept"),
        ]
    return findings + _around(_as_object(bare, in_object=in_object), offset)


def _around(text: bytes, offset: int) -> list[Finding]:
    """Return findings for the text from the closing bracket on, as the end of an object."""
    if _decodes(text):
        return []
    repaired = metadata_findings(text, offset)
    if repaired is None:
        return [Finding(f"{CORRUPT}: text after the events", offset, 1, "skipped")]
    # Invalid bytes were found before, with the events.
    return [replace(finding, offset=offset) for finding in repaired if finding.what != INVALID_UTF8]


def _close(after: bytes, *, in_object: bool) -> int | None:
    """Return where the list of events is closed, also after an event that cannot be read; None where it is not.

    Brackets in a cut event look like it: after text, only a bracket counts that the whole rest of the file fits.
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


class _Searched(NamedTuple):
    events: list[Event]
    findings: list[Finding]
    lost: list[Finding]
    after: bytes


class _EventText(NamedTuple):
    start: int
    end: int
    text: bytes


def _event_texts(text: bytes) -> list[_EventText]:
    texts: list[_EventText] = []
    start = 0
    for found in BOUNDARY.finditer(text):
        texts.append(_EventText(start, found.start(), text[start : found.start()]))
        start = found.end()
    texts.append(_EventText(start, len(text), text[start:]))
    return texts


def _decode(texts: Sequence[_EventText]) -> list[Event] | None:
    text = b"[" + b",".join(p.text for p in texts) + b"]"
    try:
        text.decode()
        # The exact shape takes any JSON as a start time; the other one refuses what is not a number.
        msgspec.json.decode(text, type=WIDEST._replace(exact=False).events)
        events = msgspec.json.decode(text, type=WIDEST.events)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    # An object without a phase can be a whole trace around its events.
    return None if any(e.ph is None for e in events) else events


def _runs(texts: list[_EventText]) -> list[tuple[list[Event] | None, tuple[int, int]]]:
    """Return stretches with their events, found by bisection; a stretch that does not decode has None."""
    runs: list[tuple[list[Event] | None, tuple[int, int]]] = []
    waiting = [(0, len(texts))]
    while waiting:
        low, high = waiting.pop()
        decoded = _decode(texts[low:high])
        if decoded is None and high - low > 1:
            middle = (low + high) // 2
            waiting += [(middle, high), (low, middle)]
            continue
        span = (texts[low].start, texts[high - 1].end)
        if decoded is None and runs and runs[-1][0] is None:
            runs[-1] = (None, (runs[-1][1][0], span[1]))
        else:
            runs.append((decoded, span))
    return runs


def _search(region: bytes, offset: int, *, at_end: bool) -> _Searched:
    """Return what is found object by object in a faulty stretch, which is at `offset` of the file."""
    # Each byte that is not UTF-8 stays one character, so that positions in the text can be converted to bytes.
    escaped = region.decode("utf-8", "surrogateescape")
    text = _ESCAPED_BYTE.sub(lambda run: "\ufffd" * len(run[0]), escaped)
    found, reached = _search_text(text, at_end=at_end)
    if (bad := _ESCAPED_BYTE.search(escaped)) is not None:
        count = len(_ESCAPED_BYTE.findall(escaped))
        found.findings.insert(0, Finding(INVALID_UTF8, bad.start(), count, "bytes replaced"))
    findings, lost = (_in_bytes(some, escaped, offset) for some in (found.findings, found.lost))
    return _Searched(found.events, findings, lost, escaped[reached:].encode("utf-8", "surrogateescape"))


def _search_text(text: str, *, at_end: bool) -> tuple[_Searched, int]:
    """Return what is found, offsets in characters, and the end of the last event."""
    events: list[Event] = []
    findings: list[Finding] = []
    lost: list[Finding] = []
    position = reached = 0
    looks_left = _MAX_LOOKS * (len(text) + 1000)
    stop = -1
    while (found := _START.search(text, position)) is not None:
        start = found.start()
        if start >= stop:
            boundary = _NEXT.search(text, start + 1)
            stop = boundary.start() if boundary else len(text)
        attempt = object_at(text, start, stop)
        looks_left -= attempt.cost
        got = event_of(attempt.value) if attempt.value is not None else None
        if got is not None:
            events.append(got[0])
            findings.extend(Finding(what, start, 1, "event kept") for what in [*attempt.repaired, *got[1]])
            findings.extend(_gap(text, reached, start, lost, "" if reached == 0 else ","))
            position = reached = attempt.end
            continue
        if attempt.value is None and _EVENT_START.match(text, start):
            lost.append(Finding(f"{CORRUPT}: event cannot be read", start, 1, "event dropped"))
        # An object of another kind can be a whole trace around its events; searching it takes as long as it is.
        looks_left -= attempt.end - start
        inside = attempt.value is None or '"ph"' in text[start : attempt.end]
        position = start + 1 if inside else attempt.end
        position = max(position, stop) if looks_left < 0 and inside else position
    if not at_end:
        findings.extend(_gap(text, reached, len(text), lost, ""))
    return _Searched(events, findings, lost, b""), reached


def _gap(text: str, start: int, end: int, lost: list[Finding], proper: str) -> list[Finding]:
    """Return a finding for text between two events that belongs to none of the lost events, if there is any."""
    if text[start:end].strip(" \t\r\n") == proper or (lost and (lost[-1].offset or 0) >= start):
        return []
    return [Finding(f"{CORRUPT}: text between events", start, 1, "skipped")]


def _in_bytes(findings: list[Finding], text: str, offset: int) -> list[Finding]:
    """Return the findings with offsets in bytes of the file, from offsets in characters of `text` at `offset`."""
    converted: list[Finding] = []
    chars = size = 0
    for finding in sorted(findings, key=lambda f: f.offset or 0):
        start = finding.offset or 0
        size += len(text[chars:start].encode("utf-8", "surrogateescape"))
        chars = start
        converted.append(replace(finding, offset=offset + size))
    return converted
