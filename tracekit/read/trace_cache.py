"""A trace file opened: decoded the first time, and read from the cache from then on.

An entry is valid if the digest of the file's content is the same: a trace is read, though not decoded, at each opening,
so that neither clocks nor file systems have to be trusted.
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
from tracekit.read.decode import decode
from tracekit.read.decoding.archives import DAMAGED, archive_of, open_file
from tracekit.read.decoding.columns import SCHEMAS, Columns
from tracekit.read.decoding.metadata import Metadata
from tracekit.read.findings import CORRUPT, Finding
from tracekit.read.kineto import refuse_other
from tracekit.read.processes import Process, apart, marked, process_findings, processes_of, refuse_same_number

# Fewer events are decoded in the time that reading an entry takes.
MIN_EVENTS = 1000
_CHUNK_BYTES = 2**18


class _FileInfo(msgspec.Struct, frozen=True):
    """The metadata that is cached of a file beside its frames; `names`: of processes, see decode.py."""

    metadata: Metadata
    findings: list[Finding]
    num_events: int
    processes: list[Process] = []
    names: dict[int, str] = {}


@dataclass
class Opened:
    """One file: metadata, findings, and frames when first asked for. `digest`: of its content, None if not known.

    `processes`: those that mark steps, where there are several; each is a rank with frames of its own.
    """

    path: Path
    info: _FileInfo
    digest: str | None = None
    decoded: Columns | None = None

    @property
    def metadata(self) -> Metadata:
        """What the file tells of its rank and run."""
        return self.info.metadata

    @property
    def findings(self) -> list[Finding]:
        """Faults of the file."""
        return self.info.findings

    @property
    def processes(self) -> list[Process]:
        """The processes of a file that holds several ranks; empty where it holds one."""
        return self.info.processes

    @cached_property
    def parts(self) -> list[Columns]:
        """The frames of each process; of a file of one rank all of them.

        Raises:
            InputError: as `columns`.
        """
        return apart(self.columns, self.info.names, self.path).parts if self.processes else [self.columns]

    @cached_property
    def columns(self) -> Columns:
        """The frames in file order.

        Raises:
            InputError: they are not cached any more, and the file has changed or gone.
        """
        if self.decoded is not None:
            return self.decoded
        assert self.digest is not None
        for entry in _entry_paths(self.path):
            if frames := entries.load(entry, self.digest, SCHEMAS):
                return Columns(**frames)
        again = _decode_and_store(self.path)
        if again.digest != self.digest or again.decoded is None:
            raise InputError(f"{self.path}: the file was changed while it was being read; open it again")
        return again.decoded


def read_file(path: Path, *, cache: bool = True) -> Opened:
    """Return the file opened, from the cache where it has an entry; what is decoded is stored there.

    Raises:
        InputError: as :func:`tracekit.read.decode.decode`, or it is another program's trace.
    """
    if not cache:
        columns, info = _kineto(path)
        return Opened(path, info, None, columns)
    # A file that cannot be read is reported where it is decoded.
    with suppress(OSError, msgspec.MsgspecError, *DAMAGED):
        if cached := _cached(path):
            return cached
    return _decode_and_store(path)


def _cached(path: Path) -> Opened | None:
    digest: str | None = None
    for entry in _entry_paths(path):
        if found := entries.entry_info(entry):
            digest = digest or _digest(path)
            if found.key == digest:
                info = msgspec.json.decode(found.more, type=_FileInfo)
                return Opened(path, info, digest)
    return None


def _kineto(path: Path) -> tuple[Columns, _FileInfo]:
    decoded = decode(path)
    columns, names = decoded.columns, decoded.names
    refuse_other(columns, path)
    pids = marked(columns, names)
    if len(pids) < 2:
        refuse_same_number(columns, path)
        return columns, _FileInfo(decoded.metadata, decoded.findings, columns.num_events)
    if any(finding.what.startswith(CORRUPT) for finding in decoded.findings):
        raise InputError(
            f"{path}: damaged, and {len(pids)} processes mark steps in it: several ranks wrote this file; give each "
            f"rank a path of its own and record again"
        )
    found = apart(columns, names, path)
    findings = [*decoded.findings, *process_findings(found, len(pids))]
    processes = processes_of(found, pids, names)
    return columns, _FileInfo(decoded.metadata, findings, columns.num_events, processes, names)


def _decode_and_store(path: Path) -> Opened:
    before = _state(path)
    columns, info = _kineto(path)
    digest: str | None = None
    with suppress(OSError, *DAMAGED):
        digest = _digest(path)
    # File changed while reading: decoded data and digest may differ.
    if digest is None or _state(path) != before:
        return Opened(path, info, None, columns)
    if columns.num_events >= MIN_EVENTS:
        entries.store(_entry_paths(path), digest, columns._asdict(), info)
    return Opened(path, info, digest, columns)


def _entry_paths(path: Path) -> list[Path]:
    return entries.entry_paths(path.parent, path.name)


def _state(path: Path) -> tuple[int, ...] | None:
    try:
        inside = None if path.is_file() else archive_of(path)
        stat = (inside[0] if inside else path).stat()
    except OSError:
        return None
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


def _digest(path: Path) -> str:
    """Return a digest of the content: of two checksums of every chunk, 64 bits for each 256 KiB.

    It detects rewritten files at the speed of reading; SHA-256 of all bytes takes five times as long, a tenth of the
    decoding of uncompressed JSON. It does not withstand an attacker, who could write the entry as well.
    """
    digest, chunk = hashlib.sha256(), memoryview(bytearray(_CHUNK_BYTES))
    with open_file(path) as file:
        while size := file.readinto(chunk):  # pyright: ignore[reportAttributeAccessIssue] - all of these have it
            part = chunk[:size]
            digest.update(b"%d %d %d " % (size, isal_zlib.crc32(part), isal_zlib.adler32(part)))
    return digest.hexdigest()
