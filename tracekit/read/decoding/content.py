"""The text of a trace file in blocks, decompressed by what the bytes are and not by how the file is called."""

from __future__ import annotations

import os
import zlib
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import BinaryIO

from tracekit.errors import InputError
from tracekit.read.findings import CORRUPT, ENDS_EARLY, READ_SO_FAR, Finding

GZIP_MAGIC = b"\x1f\x8b"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
# Of frames that hold no data, which may come first; their own first byte counts from 0x50 to 0x5f.
_ZSTD_SKIPPED = b"\x2a\x4d\x18"
# Small enough that the allocator hands out the same memory again and again.
BLOCK_BYTES = 2**18
# Of compressed data: little more than makes a block, since what is left over is copied each time.
_CHUNK_BYTES = 2**16
# Four bytes of zstd can stand for 128 KiB.
_ZSTD_CHUNK_BYTES = 4096

# JSON traces shrink 15 to 60 fold. What expands further than this, and is large, was made to exhaust its reader.
MAX_EXPANSION = 400
_EXPANSION_MATTERS_FROM = 256 * 2**20


def blocks(path: Path, findings: list[Finding]) -> Generator[bytes, None, None]:
    """Yield the decompressed text of a file in blocks of about BLOCK_BYTES; only the last may be empty.

    Damage of the compression is added to `findings`; what came before it is yielded.

    Raises:
        InputError: the file cannot be read, is empty, or expands beyond all measure.
    """
    try:
        with path.open("rb") as file:
            yield from _decompressed(path, file, findings)
    except OSError as error:
        reason = error.strerror or error
        raise InputError(f"{path}: cannot be read ({reason}); check the path and its permissions") from None


def _decompressed(path: Path, file: BinaryIO, findings: list[Finding]) -> Iterator[bytes]:
    magic = file.read(4)
    file.seek(0)
    if magic.startswith(GZIP_MAGIC):
        source = _gunzip(file, findings)
    elif magic == ZSTD_MAGIC or (magic[1:] == _ZSTD_SKIPPED and magic[0] >> 4 == 5):
        source = _unzstd(file, findings)
    else:
        source = iter(lambda: file.read(BLOCK_BYTES), b"")
    size, total = max(path.stat().st_size, 1), 0
    for block in source:
        total += len(block)
        if total > _EXPANSION_MATTERS_FROM and total > MAX_EXPANSION * size:
            raise InputError(
                f"{path}: {size} bytes expand to more than {total}, over {MAX_EXPANSION}-fold; "
                f"this is no trace but a decompression bomb, so it was not read"
            )
        yield block
    if not total and findings:
        raise InputError(f"{path}: nothing can be read ({findings[0].what}); copy the file again or record again")
    if not total:
        raise InputError(empty_sentence(path))


def empty_sentence(path: Path) -> str:
    """Say that a file holds nothing."""
    return f"{path}: the file is empty; was the profiler stopped before it wrote the trace?"


def _gunzip(file: BinaryIO, findings: list[Finding]) -> Iterator[bytes]:
    """Undo gzip, member after member; stop at damage and say whether the data is cut or corrupt."""
    from isal import igzip_lib, isal_zlib

    member, produced = isal_zlib.decompressobj(wbits=31), 0
    pending, parts = b"", list[bytes]()
    while True:
        given = pending or file.read(_CHUNK_BYTES)
        try:
            part = member.decompress(given, BLOCK_BYTES)
        except (igzip_lib.IsalError, EOFError) as error:  # pyright: ignore[reportGeneralTypeIssues] - stub of an instance
            rest = list(_up_to_damage(file, produced))
            parts.extend(rest)
            place = produced + sum(map(len, rest))
            findings.append(Finding(f"{CORRUPT}: gzip data ({error})", place, 1, READ_SO_FAR))
            break
        parts.append(part)
        produced += len(part)
        pending = member.unconsumed_tail
        if member.eof:
            pending = _after_member(member.unused_data, file)
            if not pending.startswith(GZIP_MAGIC):
                if pending:
                    findings.append(Finding(f"{CORRUPT}: bytes after the gzip data", produced, 1, "skipped"))
                break
            member = isal_zlib.decompressobj(wbits=31)
        elif not given and not part:
            # Without input it still gives what it held back for want of room; only then the data ends.
            findings.append(Finding(f"{ENDS_EARLY}: gzip data without its end", produced, 1, READ_SO_FAR))
            break
        if sum(map(len, parts)) >= BLOCK_BYTES:
            yield b"".join(parts)
            parts = []
    yield b"".join(parts)


def _after_member(unused: bytes, file: BinaryIO) -> bytes:
    """Return what follows a gzip member, without the zeros that tapes and block devices add."""
    rest = unused.lstrip(b"\0")
    while len(rest) < len(GZIP_MAGIC) and (more := file.read(_CHUNK_BYTES)):
        rest = (rest + more).lstrip(b"\0")
    return rest


def _up_to_damage(file: BinaryIO, known: int) -> Iterator[bytes]:
    """Yield what lies between the first `known` bytes of text and the damage, which igzip keeps to itself."""
    file.seek(0)
    member, seen = zlib.decompressobj(wbits=31), 0
    steps = [2**16, 4096, 64, 1]
    while steps:
        place, before = file.tell(), member.copy()
        chunk = file.read(steps[0])
        try:
            part = member.decompress(chunk)
        except zlib.error:
            # Go back and come nearer in smaller steps.
            file.seek(place)
            member = before
            del steps[0]
            continue
        seen += len(part)
        if seen > known:
            yield part[max(0, len(part) - (seen - known)) :]
        if member.eof:
            following = _after_member(member.unused_data, file)
            file.seek(file.tell() - len(following))
            member = zlib.decompressobj(wbits=31)
        if not chunk:
            return


def _unzstd(file: BinaryIO, findings: list[Finding]) -> Iterator[bytes]:
    """Undo zstd, frame after frame; stop at damage and say whether the data is cut or corrupt."""
    import zstandard

    frame, frame_start, produced = zstandard.ZstdDecompressor().decompressobj(), 0, 0
    parts: list[bytes] = []
    while chunk := file.read(_ZSTD_CHUNK_BYTES):
        try:
            parts.append(frame.decompress(chunk))
        except zstandard.ZstdError as error:
            parts.append(_zstd_up_to_damage(file, frame_start, len(chunk)))
            place = produced + sum(map(len, parts))
            findings.append(Finding(f"{CORRUPT}: zstd data ({error})", place, 1, READ_SO_FAR))
            break
        if frame.eof:
            file.seek(-len(frame.unused_data), os.SEEK_CUR)
            frame, frame_start = zstandard.ZstdDecompressor().decompressobj(), file.tell()
        if sum(map(len, parts)) >= BLOCK_BYTES:
            yield (block := b"".join(parts))
            produced, parts = produced + len(block), []
    else:
        if file.tell() != frame_start:
            place = produced + sum(map(len, parts))
            findings.append(Finding(f"{ENDS_EARLY}: zstd data without its end", place, 1, READ_SO_FAR))
    yield b"".join(parts)


def _zstd_up_to_damage(file: BinaryIO, frame_start: int, chunk_bytes: int) -> bytes:
    """Return what the last chunk read gives before the damage, byte by byte."""
    import zstandard

    end = file.tell()
    file.seek(frame_start)
    frame = zstandard.ZstdDecompressor().decompressobj()
    while (left := end - chunk_bytes - file.tell()) > 0:
        frame.decompress(file.read(min(left, _ZSTD_CHUNK_BYTES)))
    text = bytearray()
    try:
        for _ in range(end - file.tell()):
            text += frame.decompress(file.read(1))
    except zstandard.ZstdError:
        pass
    return bytes(text)
