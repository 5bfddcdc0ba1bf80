"""JSON text cut between events into batches of bounded size, so that a file of any size can be decoded."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from typing import Literal, NamedTuple

EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
# Between two events, of which the second one starts with a key that Kineto writes into events.
BOUNDARY = re.compile(
    rb"(?<=\})[ \t\r\n]*,[ \t\r\n]*"
    rb'(?=\{[ \t\r\n]*"(?:ph|name|cat|pid|tid|ts|dur|id|args|s|bp)"[ \t\r\n]*:)'
)
# The same for the key that Kineto itself writes first; a list inside the arguments of one event cannot look like it.
_SAFE_BOUNDARY = re.compile(rb'(?<=\})[ \t\r\n]*,[ \t\r\n]*(?=\{[ \t\r\n]*"ph"[ \t\r\n]*:)')
_FIRST_KEY = re.compile(rb'\s*\{\s*"ph"\s*:')
_EVENT = re.compile(rb'"ph"\s*:\s*"[Xi]"')
# Bytes of whole events: as much as fits into the processor's cache with what is decoded of it.
BATCH_BYTES = 2 * 2**20
# Metadata before the events is small; a file without events within this many bytes is something else.
_MAX_HEAD_BYTES = 64 * 2**20
_SEARCH_BYTES = 2**12
_MAX_EVENT_BYTES = 64 * 2**20
_FEW_BATCHES = 4
_BRACKETS = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)
_COMMA = re.compile(rb"[ \t\r\n]*,[ \t\r\n]*(?=\{)")


class Batch(NamedTuple):
    """Some text of the file and its offset there, in bytes.

    "head": all before the events, up to the bracket. "headless": the text up to the first event, where that is not the
    beginning of a trace. "events": probably whole events, in brackets, with the offset of the first; this text, and
    what is decoded from it as msgspec.Raw, is a view of memory that the next batch overwrites. "rest": the last events,
    the end of their list and all after it. "foreign": a file without events. `is_exact`: cut by counting brackets.
    """

    kind: Literal["head", "headless", "events", "rest", "foreign"]
    text: bytes | memoryview
    offset: int
    is_exact: bool = False


# What is sent back: whether the last batch ends inside an event.
Batches = Generator[Batch, bool | None, None]


def batches(blocks: Iterator[bytes]) -> Batches:
    """Yield a head or headless, any number of events, and a rest; or one foreign.

    Objects in the arguments of events can look like events. Where the consumer of a batch finds that it ends inside
    one, and sends True, the same text comes again, cut exactly.
    """
    text, start = _beginning(blocks)
    span = _EVENT.search(text, 0, start if start >= 0 else len(text))
    if span:
        # The head is damaged, or lies behind events.
        yield Batch("headless", text[: span.start()], 0)
        yield from _cut(text, blocks, 0)
    elif start < 0:
        yield Batch("foreign", text, 0)
    else:
        yield Batch("head", text[:start], 0)
        yield from _cut(text[start:], blocks, start)


def _beginning(blocks: Iterator[bytes]) -> tuple[bytes, int]:
    """Return the first text of the file and where in it the events start; -1 where that is not found."""
    text = bytearray()
    searched = 0
    for block in blocks:
        text += block
        # Searched again only when there is twice as much of it.
        if len(text) < 2 * searched:
            continue
        searched = len(text)
        if (start := _events_start(text)) >= 0 or searched > _MAX_HEAD_BYTES:
            return bytes(text), start
    return bytes(text), _events_start(text)


def _cut(text: bytes, blocks: Iterator[bytes], offset: int) -> Batches:
    """Yield the text from `offset` on, each batch cut at its last boundary.

    All batches share one buffer: for large files, fresh memory would cost more than decoding.
    """
    boundary = _SAFE_BOUNDARY if _FIRST_KEY.match(text) or _SAFE_BOUNDARY.search(text) else BOUNDARY
    window = _Window(text, blocks)
    wanted = BATCH_BYTES
    while window.fill(wanted):
        cut = window.last(boundary)
        if cut is None and wanted > _FEW_BATCHES * BATCH_BYTES:
            # Later events may begin with another key than the first ones did.
            boundary = BOUNDARY
            cut = window.last(boundary)
        if cut is None and wanted > _MAX_EVENT_BYTES:
            # No event is this long; the buffer must not grow without bound.
            cut = window.end, window.end
        if cut is None:
            wanted *= 2
            continue
        is_inside = yield Batch("events", window.events(cut[0]), offset)
        if is_inside:
            window.restore()
            whole = window.last_whole()
            if whole is None and wanted <= _FEW_BATCHES * BATCH_BYTES:
                wanted *= 2
                continue
            # No boundary in all this text: a bracket is lost, and recovery has to search for events.
            cut = whole or cut
            yield Batch("events", window.events(cut[0]), offset, is_exact=True)
        offset += window.drop(cut[1])
        wanted = BATCH_BYTES
    yield Batch("rest", window.rest(), offset)


class _Window:
    """The buffer of batches; text begins at its second byte, so that brackets can be set around events in place."""

    def __init__(self, text: bytes, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks
        self._waiting = memoryview(text)
        self._memory = bytearray(BATCH_BYTES + 2)
        self._covered = 0, 0
        self.end = 1

    def fill(self, size: int) -> bool:
        """Append text until there are more than `size` bytes; return False where it ends before."""
        if size + 2 > len(self._memory):
            # Views of the old memory may be in use still, so it cannot grow.
            larger = bytearray(size + 2)
            larger[: self.end] = memoryview(self._memory)[: self.end]
            self._memory = larger
        while self.end <= size:
            if not self._waiting:
                self._waiting = memoryview(next(self._blocks, b""))
                if not self._waiting:
                    return False
            taken = self._waiting[: size + 1 - self.end]
            self._memory[self.end : self.end + len(taken)] = taken
            self.end += len(taken)
            self._waiting = self._waiting[len(taken) :]
        return True

    def last(self, boundary: re.Pattern[bytes]) -> tuple[int, int] | None:
        """Return where the last whole event ends and the next begins; None where there is no boundary."""
        reach = _SEARCH_BYTES
        while True:
            low = max(1, self.end - reach)
            found = list(boundary.finditer(self._memory, low, self.end))
            if found:
                return found[-1].span()
            if low == 1:
                return None
            reach *= 8

    def last_whole(self) -> tuple[int, int] | None:
        """Return the same by counting brackets outside of strings, which is slow and needs undamaged text."""
        found = None
        depth = 0
        for token in _BRACKETS.finditer(self._memory, 1, self.end):
            mark = token[0]
            depth += (mark in b"[{") - (mark in b"]}") if len(mark) == 1 else 0
            if depth == 0 and mark == b"}" and (comma := _COMMA.match(self._memory, token.end(), self.end)):
                found = comma.span()
        return found

    def events(self, end: int) -> memoryview:
        """Return the events before `end`, in brackets."""
        self._covered = end, self._memory[end]
        self._memory[0] = ord("[")
        self._memory[end] = ord("]")
        return memoryview(self._memory)[: end + 1]

    def restore(self) -> None:
        """Put back the byte that the bracket at the end of the events has overwritten."""
        end, covered = self._covered
        self._memory[end] = covered

    def drop(self, start: int) -> int:
        """Drop the text before `start` and return its length."""
        left = bytes(memoryview(self._memory)[start : self.end])
        self._memory[1 : 1 + len(left)] = left
        self.end = 1 + len(left)
        return start - 1

    def rest(self) -> bytes:
        """Return all that is left."""
        return bytes(memoryview(self._memory)[1 : self.end])


def _events_start(text: bytes | bytearray) -> int:
    """Return where the first event may begin, after the bracket of the list at the top or of its key; -1 if unknown."""
    bare = text.lstrip(b"\xef\xbb\xbf \t\r\n")
    if bare[:1] == b"[":
        return len(text) - len(bare) + 1
    found = EVENTS_KEY.search(text)
    return found.end() if found else -1
