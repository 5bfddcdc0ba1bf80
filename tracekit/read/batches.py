"""A stream of JSON text cut between events, so that a file of any size is decoded in pieces of bounded size."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
# Between two events: the second one starts with a key that Kineto writes into events.
BOUNDARY = re.compile(rb'(?<=\})\s*,\s*(?=\{\s*"(?:ph|name|cat|pid|tid|ts|dur|id|args|s|bp)"\s*:)')
# The same for the key that Kineto itself writes first; a list inside the arguments of one event cannot look like it.
_SAFE_BOUNDARY = re.compile(rb'(?<=\})\s*,\s*(?=\{\s*"ph"\s*:)')
_SPAN = re.compile(rb'"ph"\s*:\s*"X"')
# Metadata before the events is small; a file without events within this many bytes is something else.
_MAX_HEAD_BYTES = 64 * 2**20
_SEARCH_BYTES = 2**16
# A boundary can lie across two blocks.
_OVERLAP_BYTES = 256
_MAX_EVENT_BYTES = 64 * 2**20


class Batch(NamedTuple):
    """Some text of the file. "head": all before the events, up to the bracket. "headless": the text up to the first
    event, where that is not the beginning of a trace. "events": whole events, joined by commas, at least by the look of
    it. "rest": the last events, the end of their list and all after it. "alien": a file without events.
    """

    part: str
    text: bytes
    offset: int


def batches(blocks: Iterator[bytes]) -> Iterator[Batch]:
    """Yield a head or headless, any number of events, and a rest; or one alien."""
    text = b""
    start = -1
    for block in blocks:
        text += block
        start = _events_start(text)
        if start >= 0 or len(text) > _MAX_HEAD_BYTES:
            break
    span = _SPAN.search(text, 0, start if start >= 0 else len(text))
    if span:
        # The head is damaged, or lies behind events.
        yield Batch("headless", text[: span.start()], 0)
        yield from _cut(text, blocks, 0)
    elif start < 0:
        yield Batch("alien", text, 0)
    else:
        yield Batch("head", text[:start], 0)
        yield from _cut(text[start:], blocks, start)


def _cut(text: bytes, blocks: Iterator[bytes], offset: int) -> Iterator[Batch]:
    """Cut the text from `offset` on at the last boundary of each block."""
    held = [text]
    for block in blocks:
        near = held[-1][-_OVERLAP_BYTES:] if held else b""
        cut = _last_boundary(near + block)
        held.append(block)
        size = sum(map(len, held))
        if cut is None and size < _MAX_EVENT_BYTES:
            continue
        text = b"".join(held)
        # No event is this long: whatever it is, it must not grow without bound.
        end, resume = (size, size) if cut is None else (p + size - len(block) - len(near) for p in cut)
        yield Batch("events", text[:end], offset)
        offset += resume
        held = [text[resume:]]
    yield Batch("rest", b"".join(held), offset)


def _events_start(text: bytes) -> int:
    """Where the first event may begin: after the list's bracket, at the top or behind its key; -1 unknown."""
    bare = text.lstrip(b"\xef\xbb\xbf \t\r\n")
    if bare[:1] == b"[":
        return len(text) - len(bare) + 1
    found = EVENTS_KEY.search(text)
    return found.end() if found else -1


def _last_boundary(text: bytes) -> tuple[int, int] | None:
    """End of the last whole event and start of the next; null where the text has no boundary."""
    for boundary in (_SAFE_BOUNDARY, BOUNDARY):
        reach = _SEARCH_BYTES
        while True:
            start = max(0, len(text) - reach)
            spans = [found.span() for found in boundary.finditer(text, start)]
            if spans:
                return spans[-1]
            if start == 0:
                break
            reach *= 8
    return None
