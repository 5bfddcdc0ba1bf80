"""Trace files inside tar and zip archives, as paths below the archive's own: ``traces.tar.gz/rank0.json``.

Nothing is unpacked beside the archive. A zip's members are read in place; a tar that is compressed is decompressed
once, into a temporary file without a name, since its members can only be found by reading it to the end.
"""

from __future__ import annotations

import io
import os
import re
import struct
import tarfile
import tempfile
import zipfile
import zlib
from contextlib import closing
from functools import lru_cache
from pathlib import Path, PurePosixPath
from threading import Lock
from typing import IO, TYPE_CHECKING, BinaryIO, NamedTuple, cast

from tracekit.errors import InputError
from tracekit.read.decoding.formats import is_tar

if TYPE_CHECKING:
    from typing_extensions import Buffer

ZIP_MAGIC = b"PK\x03\x04"
_ZIP_EMPTY = b"PK\x05\x06"
ARCHIVE_NAME = re.compile(r"\.(zip|tar|tgz|tar\.(gz|gzip|zst|zstd))$", re.IGNORECASE)
# More than any run has; each costs a look at its header.
_MOST_MEMBERS = 100_000
_METHODS = {12: "bzip2", 14: "lzma", 93: "zstd", 9: "deflate64", 95: "xz"}
_BROKEN = (tarfile.TarError, zipfile.BadZipFile, EOFError, ValueError, NotImplementedError, struct.error)
# What reading a member of a damaged archive raises.
DAMAGED = (zipfile.BadZipFile, EOFError, zlib.error)
_lock = Lock()


class Member(NamedTuple):
    """One file of an archive: its cleaned path, its size as stored, and what the archive calls it."""

    path: PurePosixPath
    stored_bytes: int
    handle: tarfile.TarInfo | zipfile.ZipInfo


class _State(NamedTuple):
    path: Path
    size: int
    mtime_ns: int


class _Contents(NamedTuple):
    members: dict[PurePosixPath, Member]
    links: list[PurePosixPath]


def is_archive(path: Path) -> bool:
    """Return whether a file is an archive, by its content: a zip, or a tar in gzip, zstd or neither."""
    from tracekit.read.decoding.content import blocks

    if re.search(r"\.json(\.(gz|gzip|zst|zstd))?$", path.name, re.IGNORECASE):
        return False
    try:
        with path.open("rb") as file:
            if file.read(4) in {ZIP_MAGIC, _ZIP_EMPTY}:
                return True
        with closing(blocks(path, [])) as text:
            return is_tar(next(text, b""))
    except (OSError, InputError):
        return False


def archive_of(path: Path) -> tuple[Path, PurePosixPath] | None:
    """Return the archive that a path leads into, and the member there; None for a path of the file system."""
    for parent in path.parents:
        if parent.is_file():
            return parent, PurePosixPath(path.relative_to(parent))
    return None


def members(archive: Path) -> list[Member]:
    """Return the files in an archive, each name once (the last of several), in the order of their names.

    Raises:
        InputError: it cannot be read, is damaged or encrypted, holds too much, or packs by a method not read here.
    """
    return sorted(_contents(archive).members.values(), key=lambda member: member.path)


def links(archive: Path) -> list[PurePosixPath]:
    """Return what in an archive is neither a file nor a folder: links, devices, files with holes.

    Raises:
        InputError: as :func:`members`.
    """
    return _contents(archive).links


def _contents(archive: Path) -> _Contents:
    with _lock:
        return _read_contents(_state(archive))


def _state(archive: Path) -> _State:
    stat = archive.stat()
    return _State(archive, stat.st_size, stat.st_mtime_ns)


def open_file(path: Path) -> BinaryIO:
    """Return a trace file opened for reading, whether in the file system or in an archive.

    Raises:
        OSError: it is not there, or cannot be read.
        InputError: as :func:`members`.
    """
    if path.is_file() or (inside := archive_of(path)) is None:
        return path.open("rb")
    member = _member(*inside)
    if isinstance(member.handle, zipfile.ZipInfo):
        # The file below stays open until the member is closed, too.
        with zipfile.ZipFile(inside[0]) as archive:
            return cast("BinaryIO", archive.open(member.handle))
    with _lock:
        plain = _plain_tar(_state(inside[0]))
    return io.BufferedReader(_Slice(plain, member.handle.offset_data, member.handle.size))


def size_of(path: Path) -> int:
    """Return the size of a trace file as it is stored, in bytes.

    Raises:
        OSError: it is not there.
    """
    inside = None if path.is_file() else archive_of(path)
    return path.stat().st_size if inside is None else _member(*inside).stored_bytes


def _member(archive: Path, name: PurePosixPath) -> Member:
    if member := _contents(archive).members.get(name):
        return member
    raise FileNotFoundError(2, "no such member of the archive", str(archive / name))


@lru_cache(maxsize=64)
def _read_contents(state: _State) -> _Contents:
    try:
        with state.path.open("rb") as file:
            is_zip = file.read(4) in {ZIP_MAGIC, _ZIP_EMPTY}
        found, others = (_in_zip(state.path), []) if is_zip else _in_tar(state)
    except _BROKEN as error:
        raise InputError(
            f"{state.path}: the archive is damaged or of a kind that is not read ({error}); "
            f"unpack it and give the folder"
        ) from None
    return _Contents({member.path: member for member in found}, others)


def _in_zip(path: Path) -> list[Member]:
    with zipfile.ZipFile(path) as archive:
        infos = [info for info in archive.infolist() if not info.is_dir()]
    _refuse_many(path, len(infos))
    for info in infos:
        if info.flag_bits & 1:
            raise InputError(f"{path}: {info.filename} is encrypted; unpack the archive and give the folder")
        if info.compress_type not in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
            method = _METHODS.get(info.compress_type, f"method {info.compress_type}")
            raise InputError(
                f"{path}: {info.filename} is packed by {method}, and only stored and deflated members are read; "
                f"unpack the archive and give the folder"
            )
    return [Member(_clean(info.filename), info.compress_size, info) for info in infos]


def _in_tar(state: _State) -> tuple[list[Member], list[PurePosixPath]]:
    found: list[Member] = []
    others: list[PurePosixPath] = []
    with tarfile.open(fileobj=io.BufferedReader(_Slice(_plain_tar(state))), mode="r:") as archive:
        while (info := archive.next()) is not None:
            if info.isreg() and not info.issparse():
                found.append(Member(_clean(info.name), info.size, info))
            elif not info.isdir():
                others.append(_clean(info.name))
            _refuse_many(state.path, len(found) + len(others))
            archive.members = []  # pyright: ignore[reportAttributeAccessIssue] - else it keeps all of them
    return found, others


def _refuse_many(path: Path, count: int) -> None:
    if count > _MOST_MEMBERS:
        raise InputError(f"{path}: the archive holds more than {_MOST_MEMBERS:,} files; give those of one run")


def _clean(name: str) -> PurePosixPath:
    """Return a member's name without what would lead out of the archive."""
    parts = [part for part in re.split(r"[/\\]", name) if part not in {"", ".", ".."}]
    return PurePosixPath(*(parts or ["unnamed"]))


class _Descriptor:
    """An open file, for as long as anybody reads it."""

    def __init__(self, file: IO[bytes]) -> None:
        """Take over what a file has open."""
        self.number = os.dup(file.fileno())

    def __del__(self) -> None:
        """Close it."""
        os.close(self.number)


@lru_cache(maxsize=8)
def _plain_tar(state: _State) -> _Descriptor:
    """Return the tar without compression: the archive itself, or a temporary file."""
    from tracekit.read.decoding.content import blocks

    with state.path.open("rb") as file:
        if is_tar(file.read(512)):
            return _Descriptor(file)
    with tempfile.TemporaryFile() as spooled:
        for block in blocks(state.path, []):
            spooled.write(block)
        spooled.flush()
        return _Descriptor(spooled)


class _Slice(io.RawIOBase):
    """A stretch of an open file, read at a place of its own: several threads share the file."""

    def __init__(self, file: _Descriptor, start: int = 0, size: int | None = None) -> None:
        """Begin at `start`; `size` of None means to the end."""
        self._file = file
        self._start = start
        self._size = os.fstat(file.number).st_size - start if size is None else size
        self._at = 0

    def readable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True

    def readinto(self, buffer: Buffer, /) -> int:
        """Read what is left of the stretch, at most what the buffer holds."""
        view = memoryview(buffer)
        data = os.pread(self._file.number, max(0, min(len(view), self._size - self._at)), self._start + self._at)
        view[: len(data)] = data
        self._at += len(data)
        return len(data)

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Go to an offset in the stretch."""
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        """Return the offset in the stretch."""
        return self._at
