"""The text of a trace file in blocks, decompressed by what the bytes are and not by how the file is called."""

from __future__ import annotations

import queue
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from tracekit.errors import InputError
from tracekit.read.findings import CORRUPT, ENDS_EARLY, Finding

GZIP_MAGIC = b"\x1f\x8b"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
BLOCK_BYTES = 8 * 2**20
_CHUNK_BYTES = 2**20

# JSON traces shrink 15 to 60 fold. What expands further than this, and is large, was made to exhaust its reader.
MAX_EXPANSION = 400
_EXPANSION_MATTERS_FROM = 256 * 2**20


def blocks(path: Path, findings: list[Finding]) -> Iterator[bytes]:
    """Yield the decompressed text of a file in blocks of about BLOCK_BYTES, read ahead in a thread of its own.

    Damage of the compression is added to `findings`; what came before it is yielded.

    Raises:
        InputError: the file cannot be read, is empty, or expands beyond all measure.
    """
    try:
        with path.open("rb") as file:
            yield from _ahead(_decompressed(path, file, findings))
    except OSError as error:
        reason = error.strerror or error
        raise InputError(f"{path}: cannot be read ({reason}); check the path and its permissions") from None


def _decompressed(path: Path, file: BinaryIO, findings: list[Finding]) -> Iterator[bytes]:
    magic = file.read(4)
    file.seek(0)
    if magic.startswith(GZIP_MAGIC):
        source = _gunzip(file, findings)
    elif magic == ZSTD_MAGIC:
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
    pending = file.read(_CHUNK_BYTES)
    parts: list[bytes] = []
    while pending:
        try:
            part = member.decompress(pending, BLOCK_BYTES)
        except (igzip_lib.IsalError, EOFError) as error:  # pyright: ignore[reportGeneralTypeIssues] - stub of an instance
            parts.extend(_up_to_damage(file, produced))
            findings.append(Finding(f"{CORRUPT}: gzip data ({error})", sum(map(len, parts)), 1, "read up to there"))
            break
        parts.append(part)
        produced += len(part)
        pending = member.unused_data if member.eof else member.unconsumed_tail
        if member.eof:
            rest = pending or file.read(_CHUNK_BYTES)
            member, pending = isal_zlib.decompressobj(wbits=31), rest if rest.startswith(GZIP_MAGIC) else b""
        elif not pending and not (pending := file.read(_CHUNK_BYTES)):
            findings.append(Finding(f"{ENDS_EARLY}: gzip data without its end", produced, 1, "read up to there"))
        if sum(map(len, parts)) >= BLOCK_BYTES:
            yield b"".join(parts)
            parts = []
    if parts:
        yield b"".join(parts)


def _up_to_damage(file: BinaryIO, known: int) -> Iterator[bytes]:
    """Yield what lies between the first `known` bytes of text and the damage, which igzip keeps to itself."""
    file.seek(0)
    member, seen = zlib.decompressobj(wbits=31), 0
    steps = [_CHUNK_BYTES, 4096, 64, 1]
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
            file.seek(file.tell() - len(member.unused_data))
            member = zlib.decompressobj(wbits=31)
        if not chunk:
            return


def _unzstd(file: BinaryIO, findings: list[Finding]) -> Iterator[bytes]:
    import zstandard

    produced = 0
    with zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True) as reader:
        while True:
            try:
                block = reader.read(BLOCK_BYTES)
            except zstandard.ZstdError as error:
                findings.append(Finding(f"{CORRUPT}: zstd data ({error})", produced, 1, "read up to there"))
                return
            if not block:
                return
            produced += len(block)
            yield block


def _ahead(source: Iterator[bytes], depth: int = 2) -> Iterator[bytes]:
    """Yield from `source`, which runs up to `depth` blocks ahead in a thread; its exceptions surface here."""
    line: queue.Queue[bytes | BaseException | None] = queue.Queue(depth)
    stopped = threading.Event()

    def put(item: bytes | BaseException | None) -> None:
        while not stopped.is_set():
            try:
                line.put(item, timeout=0.1)
            except queue.Full:
                continue
            return

    def pump() -> None:
        try:
            for block in source:
                put(block)
                if stopped.is_set():
                    return
            put(None)
        except BaseException as error:  # noqa: BLE001 - whatever it is belongs to the reader
            put(error)

    thread = threading.Thread(target=pump, name="tracekit-decompress", daemon=True)
    thread.start()
    try:
        while (item := line.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stopped.set()
        thread.join()
