"""What was wrong with a file and what was done about it: the rows of the repairs table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One kind of fault in one file; `offset` is the byte of the (uncompressed) text where it was first seen."""

    what: str
    offset: int | None
    count: int
    done: str


ENDS_EARLY = "ends early"
CORRUPT = "corrupt"
INVALID_UTF8 = "invalid UTF-8 in text"
READ_SO_FAR = "read up to there"


def merged(findings: list[Finding]) -> list[Finding]:
    """Return one row a kind of fault: counts added, the first place kept, in order of place.

    Text that ends where its compressed data is corrupt is not said to end early: its writer was not cut off.
    """
    kinds: dict[tuple[str, str], Finding] = {}
    stopped = any(f.what.startswith(CORRUPT) and f.done == READ_SO_FAR for f in findings)
    for finding in (f for f in findings if not (stopped and f.what.startswith(ENDS_EARLY))):
        key = (finding.what, finding.done)
        seen = kinds.get(key)
        if seen is None:
            kinds[key] = finding
        else:
            places = [o for o in (seen.offset, finding.offset) if o is not None]
            kinds[key] = Finding(finding.what, min(places, default=None), seen.count + finding.count, finding.done)
    return sorted(kinds.values(), key=lambda f: -1 if f.offset is None else f.offset)
