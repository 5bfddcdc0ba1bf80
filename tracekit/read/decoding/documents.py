"""Whether damaged text is that of several traces: ranks that shared a path wrote one after or over the other."""

from __future__ import annotations

import re

# An object that begins as a trace does; within strings its quotes would be escaped.
_BEGINNING = re.compile(
    rb'\{\s*"(?:schemaVersion|deviceProperties|distributedInfo|displayTimeUnit|baseTimeNanoseconds|traceEvents)"\s*:'
)
_LIST = re.compile(rb"\}\s*\]\s*\[\s*\{")
# The end of a trace: of an event, the list, what Kineto writes behind it, the object.
_END = re.compile(rb'\}\s*\](?:\s*,\s*"\w+"\s*:\s*(?:"[^"\\]*"|[\d.]+|\{[^{}]*\}))*\s*\}')
_EVENT = re.compile(rb'"ph"\s*:')


def is_list_of_traces(text: bytes) -> bool:
    """Return whether what stands where events belong, with or without their bracket, begins as a trace does."""
    return _BEGINNING.match(text.lstrip(b"[ \t\r\n")) is not None


def is_several(text: bytes, *, has_head: bool, in_object: bool) -> bool:
    """Return whether the text of events, which does not decode, goes on in another trace.

    That is where another one begins (`has_head`: one has begun before this text), and where events follow on the end of
    one: of a longer trace that a shorter one was written over, the end is left. `in_object`: the events before are in
    an object, not in a list alone.
    """
    beginnings = len(_BEGINNING.findall(text)) + has_head
    if beginnings > 1 or (not in_object and _LIST.search(text)):
        return True
    ends = (end.end() for end in _END.finditer(text)) if in_object and has_head else ()
    rests = (text[end:].lstrip() for end in ends)
    # A comma there is damage by a few bytes, a bracket the end of an event that holds a list of objects.
    return any(not rest.startswith((b",", b"]", b"}")) and _EVENT.search(rest) is not None for rest in rests)
