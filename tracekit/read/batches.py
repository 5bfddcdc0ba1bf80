"""A stream of JSON text cut between events, so that a file of any size is decoded in pieces of bounded size."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
# Between two events: the second one starts with a key that Kineto writes into events.
BOUNDARY = re.compile(
    rb"(?<=\})[ \t\r\n]*,[ \t\r\n]*"
    rb'(?=\{[ \t\r\n]*"(?:ph|name|cat|pid|tid|ts|dur|id|args|s|bp)"[ \t\r\n]*:)'
)
# The same for the key that Kineto itself writes first; a list inside the arguments of one event cannot look like it.
_SAFE_BOUNDARY = re.compile(rb'(?<=\})[ \t\r\n]*,[ \t\r\n]*(?=\{[ \t\r\n]*"ph"[ \t\r\n]*:)')
_FIRST_KEY = re.compile(rb'\s*\{\s*"ph"\s*:')
_SPAN = re.compile(rb'"ph"\s*:\s*"X"')
# Metadata before the events is small; a file without events within this many bytes is something else.
_MAX_HEAD_BYTES = 64 * 2**20
_SEARCH_BYTES = 2**12
# A boundary can lie across two blocks.
_OVERLAP_BYTES = 256
_MAX_EVENT_BYTES = 64 * 2**20


class Batch(NamedTuple):
    """Some text of the file, and its place.

    "head": all before the events, up to the bracket. "headless": the text up to the first event, where that is not the
    beginning of a trace. "events": whole events in brackets, at least by the look of it, with the place of the first.
    "rest": the last events, the end of their list and all after it. "alien": a file without events.
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
    boundary = _SAFE_BOUNDARY if _FIRST_KEY.match(text) or _SAFE_BOUNDARY.search(text) else BOUNDARY
    held = [text]
    for more in blocks:
        block = more
        cut = _last_boundary(held[-1][-_OVERLAP_BYTES:], block, boundary)
        if cut is None:
            held.append(block)
            if sum(map(len, held)) < _MAX_EVENT_BYTES:
                continue
            # No event is this long: whatever it is, it must not grow without bound.
            block, held = b"".join(held), []
            cut = _last_boundary(b"", block, BOUNDARY) or (len(block), len(block))
        end, resume = cut
        # The blocks are large: each copy of one is felt.
        before = b"".join(held)[:end] if end < 0 else b"".join(held)
        text = b"".join((b"[", before, memoryview(block)[: max(end, 0)], b"]"))
        yield Batch("events", text, offset)
        offset += sum(map(len, held)) + resume
        held = [block[resume:]]
    yield Batch("rest", b"".join(held), offset)


def _events_start(text: bytes) -> int:
    """Where the first event may begin: after the list's bracket, at the top or behind its key; -1 unknown."""
    bare = text.lstrip(b"\xef\xbb\xbf \t\r\n")
    if bare[:1] == b"[":
        return len(text) - len(bare) + 1
    found = EVENTS_KEY.search(text)
    return found.end() if found else -1


def _last_boundary(near: bytes, block: bytes, boundary: re.Pattern[bytes]) -> tuple[int, int] | None:
    """End of the last whole event and start of the next, as places in the block; null where there is no boundary.

    The end can be negative, a place in `near`, the text before the block.
    """
    reach = _SEARCH_BYTES
    while True:
        whole = reach >= len(block)
        text = near + block if whole else block[-reach:]
        shift = -len(near) if whole else len(block) - reach
        spans = [found.span() for found in boundary.finditer(text)]
        if spans and spans[-1][1] + shift > 0:
            return spans[-1][0] + shift, spans[-1][1] + shift
        if whole:
            return None
        reach *= 8
