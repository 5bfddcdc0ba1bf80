"""What a trace file says about itself outside its events: rank, world size, host, time base."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, replace
from typing import Any

import msgspec

from tracekit.read.decoding.events import Distributed, Document, Event
from tracekit.read.decoding.lenient_json import whole_object
from tracekit.read.findings import CORRUPT, INVALID_UTF8, Finding

# No clock shows it. Stands for a base time that is told but is no integer, so that it is not taken for none.
_UNUSABLE_NS = 2**63 - 1
_EXACT_FLOAT = 2**53
_MOST_DIGITS = 20


@dataclass(frozen=True)
class Facts:
    """Facts of one file, null where it does not tell."""

    base_ns: int | None = None
    rank: int | None = None
    world_size: int | None = None
    host: str | None = None

    def or_else(self, other: Facts) -> Facts:
        """Return these facts, the missing ones taken from `other`."""
        return replace(other, **{name: value for name, value in asdict(self).items() if value is not None})


def facts_of(document: Document[Any]) -> Facts:
    """Return the facts of a decoded document."""
    told = document.distributed or Distributed()
    return _facts(document.base_ns, told.rank, told.world_size, document.host_name)


def _facts(base_ns: object, rank: object, size: object, host: object) -> Facts:
    return Facts(_base(base_ns), _integer(rank), _integer(size), host if isinstance(host, str) else None)


def facts_before(head: bytes) -> tuple[Facts, list[Finding]]:
    """Return the facts in the text before the events, which ends with the bracket that opens them."""
    head = head.removeprefix(b"\xef\xbb\xbf")
    if head.strip() == b"[":
        return Facts(), []
    text = head + b"]}"
    try:
        head.decode()
        return facts_of(msgspec.json.decode(text, type=Document[Event])), []
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        mended = mended_facts(text, 0)
    if mended is None:
        return facts_in(head), [Finding(f"{CORRUPT}: text before the events", 0, 1, "searched for facts")]
    return facts_in(head), mended


def mended_facts(text: bytes, offset: int) -> list[Finding] | None:
    """Return what had to be mended in the text around the events, which is at `offset`; null where it is damaged."""
    found = whole_object(text)
    if found is None:
        return None
    value, what = found
    findings = [Finding(fault, offset, 1, "facts kept") for fault in what]
    try:
        text.decode()
    except UnicodeDecodeError as error:
        findings.append(Finding(INVALID_UTF8, offset + error.start, 1, "bytes replaced"))
    if not isinstance(value.get("distributedInfo"), dict | None):
        findings.append(Finding("distributedInfo that is no object", offset, 1, "not used"))
    return findings


def facts_in(text: bytes) -> Facts:
    """Return what facts can be found in damaged text, each on its own."""
    distributed = _value_after(text, b"distributedInfo")
    told = distributed if isinstance(distributed, dict) else {}
    base_ns, host = (_value_after(text, key) for key in (b"baseTimeNanoseconds", b"host_name"))
    return _facts(base_ns, told.get("rank"), told.get("world_size"), host)


def _value_after(text: bytes, key: bytes) -> Any:
    """Of several such keys the last counts, as everywhere."""
    ends = [found.end() for found in re.finditer(rb'"' + key + rb'"\s*:\s*', text)]
    if not ends:
        return None
    value = text[ends[-1] : ends[-1] + 2**20].decode("utf-8", "replace")
    try:
        return json.JSONDecoder(strict=False).raw_decode(value)[0]
    except (ValueError, RecursionError):
        return None


def _base(value: object) -> int | None:
    if value is None:
        return None
    ns = _integer(value)
    return _UNUSABLE_NS if ns is None else ns


def _integer(value: object) -> int | None:
    """A 64-bit integer, also as text ("3") or as a float that holds it (3.0); anything else is no fact."""
    if isinstance(value, str) and len(text := value.strip()) <= _MOST_DIGITS and text.removeprefix("-").isdecimal():
        value = int(text)
    if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT_FLOAT:
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63 else None
