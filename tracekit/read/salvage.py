"""The events of damaged text: every whole one is kept, what can be mended is mended, and both are counted.

Most of a damaged file is intact. Text that does not decode is halved between events until the faulty stretch is alone;
only that is searched event by event, with mending of the faults that are known from the field.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from tracekit.read import clock
from tracekit.read.batches import BOUNDARY
from tracekit.read.events import CheckedEvent, Event, ExactEvent
from tracekit.read.findings import CORRUPT, ENDS_EARLY, Finding

_START = re.compile(r'\{\s*"')
_EVENT_START = re.compile(r'\{\s*"(?:ph|name|cat|pid|tid|ts|dur)"\s*:')
_CLOSED = re.compile(r"\s*\]\s*(?=[,}]|$)")
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|-?\b(?:inf(?:inity)?|nan)\b', re.IGNORECASE | re.DOTALL)
_ILLEGAL_ESCAPE = re.compile(r'\\(?!["\\/bfnrt]|u[0-9a-fA-F]{4})(.?)', re.DOTALL)
_CONTROL = re.compile(r"[\x00-\x1f]")
# A value with quotes of its own ends where the next key of an event, or the end of the object, follows.
_QUOTED_VALUE = re.compile(
    r'("(?:name|cat|Call stack|Python module)"\s*:\s*")(.*?)(?="\s*(?:,\s*"[A-Za-z_ ]+"\s*:|\}))', re.DOTALL
)
# One event's text does not exceed this; beyond it a lost quote would make every search quadratic.
_MAX_EVENT_CHARS = 2**20


class Salvaged(NamedTuple):
    """Events in file order; `tail`, where the end of the events list was met: the text after its bracket."""

    events: list[Event]
    findings: list[Finding]
    tail: bytes | None


def salvage(text: bytes, offset: int, *, at_end: bool) -> Salvaged:
    """Return what can be kept of the text of some events; `at_end` tells that the file ends with it."""
    events: list[Event] = []
    findings: list[Finding] = []
    lost: list[int] = []
    for decoded, (start, end) in _runs(_pieces(text)):
        if decoded is not None:
            events.extend(decoded)
            continue
        found = _recover(text[start:end], offset + start)
        events.extend(found.events)
        findings.extend(found.findings)
        lost.extend(found.lost)
        if found.tail is not None:
            return Salvaged(events, [*findings, *_dropped(lost)], found.tail + text[end:])
    if at_end:
        # Whatever could not be read last is the event that the writer was at.
        done = "incomplete event dropped" if lost else "complete events kept"
        findings.append(Finding(f"{ENDS_EARLY}: the list of events is not closed", offset + len(text), 1, done))
        lost = lost[:-1]
    return Salvaged(events, [*findings, *_dropped(lost)], None)


def _dropped(lost: list[int]) -> list[Finding]:
    return [Finding(f"{CORRUPT}: event cannot be read", place, 1, "event dropped") for place in lost]


class _Found(NamedTuple):
    events: list[Event]
    findings: list[Finding]
    lost: list[int]
    tail: bytes | None


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
        checked = msgspec.json.decode(text, type=list[CheckedEvent])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if clock.is_exact([e.ts for e in checked]):
        return msgspec.json.decode(text, type=list[Event])
    return list[Event](msgspec.json.decode(text, type=list[ExactEvent]))


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


def _recover(region: bytes, offset: int) -> _Found:
    """Search a faulty stretch object by object."""
    findings: list[Finding] = []
    try:
        text = region.decode()
    except UnicodeDecodeError as error:
        text = region.decode("utf-8", "replace")
        findings.append(Finding("invalid UTF-8 in text", offset + error.start, 1, "bytes replaced"))
    events: list[Event] = []
    lost: list[int] = []
    position = 0
    while (start := _START.search(text, position)) is not None:
        place = start.start()
        value, position, mended = _object_at(text, place)
        if value is None:
            if _EVENT_START.match(text, place):
                lost.append(offset + place)
            continue
        event = _as_event(value)
        if event is not None:
            events.append(event)
            findings.extend(Finding(what, offset + place, 1, "event kept") for what in mended)
        if (closed := _CLOSED.match(text, position)) and _ends_list(text, closed.end()):
            return _Found(events, findings, lost, text[closed.end() :].encode())
    return _Found(events, findings, lost, None)


def _ends_list(text: str, position: int) -> bool:
    """After the bracket that closes the events comes nothing, a brace, or the key of another fact."""
    rest = text[position : position + 200].lstrip()
    return rest[:1] in ("", "}") or re.match(r',\s*"', rest) is not None


def _object_at(text: str, start: int) -> tuple[dict[str, Any] | None, int, list[str]]:
    """Return the object that begins here, where to go on, and what had to be mended; null where none can be read."""
    value, end = _parse(text[start : start + _MAX_EVENT_CHARS])
    if value is not None:
        return value, start + end, _leniency(text[start : start + end], value)
    stop = _NEXT.search(text, start + 1, start + _MAX_EVENT_CHARS)
    limit = stop.start() if stop else min(len(text), start + _MAX_EVENT_CHARS)
    candidate = text[start:limit]
    for mend in (_mend_tokens, _mend_quotes):
        changed, what = mend(candidate)
        value, end = _parse(changed) if what else (None, 0)
        if value is not None:
            # The mended text has another length: what follows it is found from the candidate's end.
            return value, limit - (len(changed) - end), what
    return None, start + 1, []


def _leniency(text: str, value: dict[str, Any]) -> list[str]:
    """What the lenient parser let pass; empty for proper JSON."""
    try:
        json.loads(text, parse_constant=_refuse)
    except ValueError:
        return [
            "number that JSON does not know (NaN, Infinity)" if _has_nan(value) else "raw control characters in text"
        ]
    return []


def _refuse(token: str) -> None:
    raise ValueError(token)


_NEXT = re.compile(BOUNDARY.pattern.decode())


def _parse(text: str) -> tuple[dict[str, Any] | None, int]:
    try:
        value, end = json.JSONDecoder(strict=False).raw_decode(text)
    except (ValueError, RecursionError):
        return None, 0
    return (value, end) if isinstance(value, dict) else (None, 0)


def _mend_tokens(text: str) -> tuple[str, list[str]]:
    """Bare inf and nan become null, illegal escapes a backslash of their own."""
    what: set[str] = set()

    def mend(found: re.Match[str]) -> str:
        token = found[0]
        if token[0] != '"':
            what.add("number that JSON does not know (inf, nan)")
            return "null"
        legal = _ILLEGAL_ESCAPE.sub(r"\\\\\1", token)
        if legal != token:
            what.add("illegal escape in text")
        return legal

    return _TOKEN.sub(mend, text), sorted(what)


def _mend_quotes(text: str) -> tuple[str, list[str]]:
    """Quotes inside a name are escaped, up to the key or brace that must follow the name."""
    what: set[str] = set()

    def mend(found: re.Match[str]) -> str:
        inner = re.sub(r'(?<!\\)"', r"\"", found[2])
        if inner != found[2]:
            what.add("unescaped quote in text")
        return found[1] + inner

    quoted = _QUOTED_VALUE.sub(mend, text)
    mended, more = _mend_tokens(quoted)
    return mended, sorted(what | set(more))


def _has_nan(value: object) -> bool:
    if isinstance(value, dict):
        return any(_has_nan(v) for v in value.values())
    if isinstance(value, list):
        return any(_has_nan(v) for v in value)
    return isinstance(value, float) and (value != value or value in (float("inf"), float("-inf")))  # noqa: PLR0124


def _as_event(value: dict[str, Any]) -> Event | None:
    """Return the object as an event; null where it is another object (of a damaged argument list, say)."""
    if "ph" not in value:
        return None
    if not isinstance(value.get("args"), dict):
        value = {k: v for k, v in value.items() if k != "args"}
    try:
        return msgspec.json.decode(msgspec.json.encode(value), type=Event)
    except (msgspec.MsgspecError, OverflowError, RecursionError, UnicodeEncodeError):
        return None
