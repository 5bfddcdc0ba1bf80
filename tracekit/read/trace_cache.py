"""A trace file opened: decoded the first time, and from then on only looked at.

A digest of its content alone decides whether what was kept fits: a trace is read, though not decoded, at each opening,
so that for what is kept no clock or file system has to be trusted.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import msgspec
from isal import isal_zlib

from tracekit.errors import InputError
from tracekit.read import cache_entries as entries
from tracekit.read.decode import Decoded, decode
from tracekit.read.decoding.columns import SCHEMAS, Columns
from tracekit.read.decoding.metadata import Facts
from tracekit.read.findings import Finding

# Fewer are decoded in the time that reading an entry takes.
MIN_EVENTS = 1000
_CHUNK_BYTES = 2**18


class _About(msgspec.Struct, frozen=True):
    """What is kept of a file beside its frames."""

    facts: Facts
    findings: list[Finding]
    num_events: int


@dataclass
class Opened:
    """One file: its facts and findings, and its frames when asked for. `digest`: of its content, null if not known."""

    path: Path
    facts: Facts
    findings: list[Finding]
    num_events: int
    digest: str | None = None
    decoded: Columns | None = None

    @cached_property
    def columns(self) -> Columns:
        """The frames in file order.

        Raises:
            InputError: they are not kept any more, and the file has changed or gone.
        """
        if self.decoded is not None:
            return self.decoded
        assert self.digest is not None
        for place in _places(self.path):
            if frames := entries.load(place, self.digest, SCHEMAS):
                return Columns(**frames)
        again = _decoded_and_kept(self.path)
        if again.digest != self.digest or again.decoded is None:
            raise InputError(f"{self.path}: the file was changed while it was being read; open it again")
        return again.decoded


def read_file(path: Path, *, cache: bool = True) -> Opened:
    """Return what a trace file holds, from the cache where it has it; what is decoded is kept there.

    Raises:
        InputError: as :func:`decode`.
    """
    if not cache:
        return _opened(path, decode(path), None)
    # A file that cannot be read is refused where it is decoded.
    with suppress(OSError, msgspec.MsgspecError):
        if kept := _kept(path):
            return kept
    return _decoded_and_kept(path)


def _kept(path: Path) -> Opened | None:
    digest: str | None = None
    for place in _places(path):
        if found := entries.about(place):
            digest = digest or _digest(path)
            if found.key == digest:
                kept = msgspec.json.decode(found.more, type=_About)
                return Opened(path, kept.facts, kept.findings, kept.num_events, digest)
    return None


def _decoded_and_kept(path: Path) -> Opened:
    before = _state(path)
    decoded = decode(path)
    digest: str | None = None
    with suppress(OSError):
        digest = _digest(path)
    # Whoever wrote into the file meanwhile made what was decoded and what was hashed two things.
    if digest is None or _state(path) != before:
        return _opened(path, decoded, None)
    if decoded.columns.num_events >= MIN_EVENTS:
        about = _About(decoded.facts, decoded.findings, decoded.columns.num_events)
        entries.store(_places(path), digest, decoded.columns._asdict(), about)
    return _opened(path, decoded, digest)


def _opened(path: Path, decoded: Decoded, digest: str | None) -> Opened:
    columns = decoded.columns
    return Opened(path, decoded.facts, decoded.findings, columns.num_events, digest, columns)


def _places(path: Path) -> list[Path]:
    return entries.places(path.parent, path.name)


def _state(path: Path) -> tuple[int, ...] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


def _digest(path: Path) -> str:
    """Return a digest of the content: of two checksums of every chunk, 64 bits for each 256 KiB.

    That tells apart what was rewritten, at the speed of reading; SHA-256 of all bytes takes five times as long, a
    tenth of the decoding of uncompressed JSON. It does not withstand an attacker, who could write the entry as well.
    """
    digest, chunk = hashlib.sha256(), memoryview(bytearray(_CHUNK_BYTES))
    with path.open("rb", buffering=0) as file:
        while size := file.readinto(chunk):
            part = chunk[:size]
            digest.update(b"%d %d %d " % (size, isal_zlib.crc32(part), isal_zlib.adler32(part)))
    return digest.hexdigest()
