"""Findings: faults of a file and what was done about each, the rows of the repairs table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One kind of fault in one file; `offset`: byte of the (uncompressed) text where it was first seen, or None."""

    what: str
    offset: int | None
    count: int
    done: str


ENDS_EARLY = "ends early"
CORRUPT = "corrupt"
INVALID_UTF8 = "invalid UTF-8 in text"
MEMORY_ASKED_FOR = "memory events, which the recording was asked for"
READ_SO_FAR = "read up to there"
# Damage around the events, that costs none of them.
AROUND_EVENTS = ("text before the events", "text after the events", "bytes after the gzip data")


def merged(findings: list[Finding]) -> list[Finding]:
    """Return one finding for each kind of fault, with its count and its first offset, in order of offset.

    Text that ends where its compressed data is corrupt is not reported to end early: its writer was not cut off.
    """
    kinds: dict[tuple[str, str], Finding] = {}
    stopped = any(f.what.startswith(CORRUPT) and f.done == READ_SO_FAR for f in findings)
    for finding in (f for f in findings if not (stopped and f.what.startswith(ENDS_EARLY))):
        key = (finding.what, finding.done)
        seen = kinds.get(key)
        if seen is None:
            kinds[key] = finding
        else:
            offsets = [o for o in (seen.offset, finding.offset) if o is not None]
            kinds[key] = Finding(finding.what, min(offsets, default=None), seen.count + finding.count, finding.done)
    return sorted(kinds.values(), key=lambda f: -1 if f.offset is None else f.offset)
