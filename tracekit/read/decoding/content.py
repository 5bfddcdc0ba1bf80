"""The text of a trace file in blocks, decompressed by its first bytes and not by its name."""

from __future__ import annotations

import os
import zlib
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import BinaryIO

from tracekit.errors import InputError, UsageError
from tracekit.read.decoding.archives import DAMAGED, open_file, size_of
from tracekit.read.findings import CORRUPT, ENDS_EARLY, READ_SO_FAR, Finding

GZIP_MAGIC = b"\x1f\x8b"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
# Magic of frames that hold no data, which may come first; their own first byte is one of 0x50 to 0x5f.
_ZSTD_SKIPPED = b"\x2a\x4d\x18"
# Bytes of a block: small enough that the allocator reuses the same memory.
BLOCK_BYTES = 2**18
# Compressed bytes read at once: little more than makes a block, since what is left over is copied each time.
_CHUNK_BYTES = 2**16
# Four bytes of zstd can stand for 128 KiB.
_ZSTD_CHUNK_BYTES = 4096

# JSON traces are compressed 15 to 60 fold. A large file that expands further than this is a decompression bomb.
MAX_EXPANSION = 400
_EXPANSION_MATTERS_FROM = 256 * 2**20
# Whatever the factor: a trace of this much text is beyond what a machine's memory holds as tables.
MOST_VARIABLE = "TRACEKIT_MAX_TEXT_BYTES"
_MOST_BYTES = 64 * 2**30
# Bytes of text that the compressed files now being read have come to, by path: for whoever shows progress.
EXPANDED: dict[Path, int] = {}


def blocks(path: Path, findings: list[Finding]) -> Generator[bytes, None, None]:
    """Yield the decompressed text of a file in blocks of about BLOCK_BYTES; only the last may be empty.

    Damage of the compressed data is added to `findings`; text before it is yielded.

    Raises:
        InputError: the file cannot be read, is empty, or expands beyond all measure.
    """
    try:
        with open_file(path) as file:
            yield from _decompressed(path, file, findings)
    except OSError as error:
        reason = error.strerror or error
        raise InputError(f"{path}: cannot be read ({reason}); check the path and its permissions") from None
    except DAMAGED as error:
        raise InputError(f"{path}: cannot be read ({error}); copy the archive again") from None
    finally:
        EXPANDED.pop(path, None)


def _decompressed(path: Path, file: BinaryIO, findings: list[Finding]) -> Iterator[bytes]:
    magic = file.read(4)
    file.seek(0)
    if magic.startswith(GZIP_MAGIC):
        source = _gunzip(file, findings)
    elif magic == ZSTD_MAGIC or (magic[1:] == _ZSTD_SKIPPED and magic[0] >> 4 == 5):
        source = _unzstd(file, findings)
    else:
        source = iter(lambda: file.read(BLOCK_BYTES), b"")
    size, total = max(size_of(path), 1), 0
    most = _most_bytes()
    for block in _up_to_damage_of_archive(source, findings):
        total += len(block)
        if total > _EXPANSION_MATTERS_FROM and total > MAX_EXPANSION * size:
            raise InputError(
                f"{path}: {size} bytes expand to more than {total}, over {MAX_EXPANSION}-fold; "
                f"this is a decompression bomb, not a trace, and was not read"
            )
        if total > size:
            EXPANDED[path] = total
        # A file that is not compressed never is more than itself; a member of a zip archive can be.
        if total > max(size, most):
            raise InputError(
                f"{path}: {size} bytes expand to more than {most:,}, the most that is read of a compressed file; "
                f"set {MOST_VARIABLE} to a larger number of bytes if this is a trace"
            )
        yield block
    if not total and findings:
        raise InputError(f"{path}: nothing can be read ({findings[0].what}); copy the file again or record again")
    if not total:
        raise InputError(empty_sentence(path))


def _most_bytes() -> int:
    asked = os.environ.get(MOST_VARIABLE, "")
    if not asked:
        return _MOST_BYTES
    if not asked.isdecimal() or len(asked) > 18:
        raise UsageError(f"{MOST_VARIABLE}={asked[:40]} is not a number of bytes such as {_MOST_BYTES}")
    return int(asked)


def empty_sentence(path: Path) -> str:
    """Return the error text for an empty file."""
    return f"{path}: the file is empty; was the profiler stopped before it wrote the trace?"


def _up_to_damage_of_archive(source: Iterator[bytes], findings: list[Finding]) -> Iterator[bytes]:
    """Yield what a file holds, of an archive's member up to damage of the archive."""
    produced = 0
    try:
        for block in source:
            yield block
            produced += len(block)
    except DAMAGED as error:
        findings.append(Finding(f"{CORRUPT}: data of the archive ({error})", produced, 1, READ_SO_FAR))


def _gunzip(file: BinaryIO, findings: list[Finding]) -> Iterator[bytes]:
    """Yield the text of all gzip members up to damage, and report whether the data is cut or corrupt."""
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
            offset = produced + sum(map(len, rest))
            findings.append(Finding(f"{CORRUPT}: gzip data ({error})", offset, 1, READ_SO_FAR))
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
            # Without input it still returns what did not fit before; only after that the data has ended.
            findings.append(Finding(f"{ENDS_EARLY}: gzip data without its end", produced, 1, READ_SO_FAR))
            break
        if sum(map(len, parts)) >= BLOCK_BYTES:
            yield b"".join(parts)
            parts = []
    yield b"".join(parts)


def _after_member(unused: bytes, file: BinaryIO) -> bytes:
    """Return the bytes after a gzip member, without the zero padding that tapes and block devices add."""
    rest = unused.lstrip(b"\0")
    while len(rest) < len(GZIP_MAGIC) and (more := file.read(_CHUNK_BYTES)):
        rest = (rest + more).lstrip(b"\0")
    return rest


def _up_to_damage(file: BinaryIO, known: int) -> Iterator[bytes]:
    """Yield the text between its first `known` bytes and the damage, which igzip does not give out."""
    file.seek(0)
    member, seen = zlib.decompressobj(wbits=31), 0
    steps = [2**16, 4096, 64, 1]
    while steps:
        place, before = file.tell(), member.copy()
        chunk = file.read(steps[0])
        try:
            part = member.decompress(chunk)
        except zlib.error:
            # Go back and approach the damage in smaller steps.
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
    """Yield the text of all zstd frames up to damage, and report whether the data is cut or corrupt."""
    import zstandard

    frame, frame_start, produced = zstandard.ZstdDecompressor().decompressobj(), 0, 0
    parts: list[bytes] = []
    while chunk := file.read(_ZSTD_CHUNK_BYTES):
        try:
            parts.append(frame.decompress(chunk))
        except zstandard.ZstdError as error:
            parts.append(_zstd_up_to_damage(file, frame_start, len(chunk)))
            offset = produced + sum(map(len, parts))
            findings.append(Finding(f"{CORRUPT}: zstd data ({error})", offset, 1, READ_SO_FAR))
            break
        if frame.eof:
            file.seek(-len(frame.unused_data), os.SEEK_CUR)
            frame, frame_start = zstandard.ZstdDecompressor().decompressobj(), file.tell()
        if sum(map(len, parts)) >= BLOCK_BYTES:
            yield (block := b"".join(parts))
            produced, parts = produced + len(block), []
    else:
        if file.tell() != frame_start:
            offset = produced + sum(map(len, parts))
            findings.append(Finding(f"{ENDS_EARLY}: zstd data without its end", offset, 1, READ_SO_FAR))
    yield b"".join(parts)


def _zstd_up_to_damage(file: BinaryIO, frame_start: int, chunk_bytes: int) -> bytes:
    """Return the text that the last chunk read holds before the damage, decompressed byte by byte."""
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
