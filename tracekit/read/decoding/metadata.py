"""Metadata of a trace file, from outside its events: rank, world size, host, time base."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import msgspec

from tracekit.read.decoding.events import Distributed, Document, Event
from tracekit.read.decoding.lenient_json import whole_object
from tracekit.read.findings import CORRUPT, INVALID_UTF8, Finding

# No clock shows it. Stands for a base time that is present but is not an integer, to tell it from a missing one.
_UNUSABLE_NS = 2**63 - 1
_EXACT_FLOAT = 2**53
_MOST_DIGITS = 20


class ProcessGroup(NamedTuple):
    """One entry of ``pg_config``: a process group of the rank; what the entry lacks is None."""

    name: str | None
    desc: str | None
    backend: str | None
    size: int | None
    ranks: tuple[int, ...] | None


@dataclass(frozen=True)
class Metadata:
    """Metadata of one file; what it lacks is None."""

    base_ns: int | None = None
    rank: int | None = None
    world_size: int | None = None
    host: str | None = None
    groups: tuple[ProcessGroup, ...] | None = None
    asked_for_memory: bool | None = None

    def or_else(self, other: Metadata) -> Metadata:
        """Return this metadata, missing values taken from `other`."""
        return replace(other, **{name: value for name, value in asdict(self).items() if value is not None})


def metadata_of(document: Document[Any]) -> Metadata:
    """Return the metadata of a decoded document."""
    distributed = document.distributed or Distributed()
    fields = distributed.rank, distributed.world_size
    return _metadata(document.base_ns, *fields, document.host_name, distributed.pg_config, document.profile_memory)


def _metadata(
    base_ns: object, rank: object, size: object, host: object, groups: object, memory: object = None
) -> Metadata:
    asked = None if memory is None else _integer(memory) == 1
    return Metadata(_base(base_ns), _integer(rank), _integer(size), _text(host), _groups(groups), asked)


def _groups(config: object) -> tuple[ProcessGroup, ...] | None:
    """Return the process groups of ``pg_config``; None where there are none. Newer files hold it as text."""
    if isinstance(config, str):
        try:
            config = json.loads(config)
        except (ValueError, RecursionError):
            return None
    entries = [entry for entry in config if isinstance(entry, dict)] if isinstance(config, list) else []
    return tuple(_group(entry) for entry in entries) or None


def _group(entry: dict[str, Any]) -> ProcessGroup:
    ranks = _ranks(entry.get("ranks"))
    size = _integer(entry.get("pg_size"))
    size = size if size is not None and 0 < size < 2**31 else len(ranks) if ranks else None
    name = entry.get("pg_name")
    name = str(name) if isinstance(name, int) else _text(name)
    # Of a list that is cut, the members are not known.
    members = ranks if ranks and len(ranks) == size else None
    return ProcessGroup(name, _text(entry.get("pg_desc")), _text(entry.get("backend_config")), size, members)


def _ranks(value: object) -> tuple[int, ...] | None:
    """Return the ranks of a list, or of its text ("[0, 1]"); None where one of them is no rank."""
    if isinstance(value, str):
        value = value.strip().removeprefix("[").removesuffix("]").split(",")
    if not isinstance(value, list):
        return None
    ranks = [_integer(rank) for rank in value]
    found = tuple(rank for rank in ranks if rank is not None and 0 <= rank < 2**31)
    return found if len(found) == len(ranks) else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def metadata_before(head: bytes) -> tuple[Metadata, list[Finding]]:
    """Return the metadata in the text before the events, which ends with the bracket that opens them, and findings."""
    head = head.removeprefix(b"\xef\xbb\xbf")
    if head.strip() == b"[":
        return Metadata(), []
    text = head + b"]}"
    try:
        head.decode()
        return metadata_of(msgspec.json.decode(text, type=Document[Event])), []
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        findings = metadata_findings(text, 0)
    if findings is None:
        return metadata_in(head), [Finding(f"{CORRUPT}: text before the events", 0, 1, "searched for metadata")]
    return metadata_in(head), findings


def metadata_findings(text: bytes, offset: int) -> list[Finding] | None:
    """Return what had to be repaired in the text around the events, at `offset`; None where it is beyond repair."""
    found = whole_object(text)
    if found is None:
        return None
    value, what = found
    findings = [Finding(fault, offset, 1, "metadata kept") for fault in what]
    try:
        text.decode()
    except UnicodeDecodeError as error:
        findings.append(Finding(INVALID_UTF8, offset + error.start, 1, "bytes replaced"))
    if not isinstance(value.get("distributedInfo"), dict | None):
        findings.append(Finding("distributedInfo that is not an object", offset, 1, "not used"))
    return findings


def metadata_in(text: bytes) -> Metadata:
    """Return the metadata found in damaged text, each value searched for on its own."""
    distributed = _value_after(text, b"distributedInfo")
    fields = distributed if isinstance(distributed, dict) else {}
    base_ns, host, memory = (
        _value_after(text, key) for key in (b"baseTimeNanoseconds", b"host_name", b"profile_memory")
    )
    return _metadata(base_ns, fields.get("rank"), fields.get("world_size"), host, fields.get("pg_config"), memory)


def _value_after(text: bytes, key: bytes) -> Any:
    """Return the value of the last such key, which counts wherever a trace is read; None where there is none."""
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
    """Return a 64-bit integer, also from text ("3") or from a float that holds it (3.0); None for anything else."""
    if isinstance(value, str) and len(text := value.strip()) <= _MOST_DIGITS and text.removeprefix("-").isdecimal():
        value = int(text)
    if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT_FLOAT:
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63 else None
