"""What was decoded of a trace file, kept so that the next opening need not decode it again.

An entry is a zip file, uncompressed: one Parquet file a frame that has rows, and ``about.json`` with the facts, the
findings, a digest of the trace and the version of the reader. The digest alone decides whether an entry fits: a trace
is read, though not decoded, at each opening, so that no clock or file system has to be trusted. Zip's checksums find
damaged entries. An entry that is missing, damaged or does not fit is the same: nothing.
"""

from __future__ import annotations

import hashlib
import io
import os
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import suppress
from functools import cache as once
from pathlib import Path

import msgspec
import polars as pl
from isal import isal_zlib

from tracekit.read.columns import SCHEMAS, Columns
from tracekit.read.decode import Decoded, decode
from tracekit.read.facts import Facts
from tracekit.read.findings import Finding

FOLDER = ".tracekit-cache"
SUFFIX = ".zip"
# Fewer are decoded in the time that reading an entry takes.
MIN_EVENTS = 1000
# Of the entries in the user's folder, which nobody tidies up.
MAX_USER_BYTES = 4 * 2**30

_ABOUT = "about.json"
_CHUNK_BYTES = 2**18
_EMPTY = {name: pl.DataFrame(schema=schema) for name, schema in SCHEMAS.items()}
_DAMAGE = (
    OSError, EOFError, ValueError, LookupError, RuntimeError, zipfile.BadZipFile, zlib.error, msgspec.MsgspecError,
    pl.exceptions.PolarsError, pl.exceptions.PanicException,
)  # fmt: skip


class About(msgspec.Struct, frozen=True):
    """What an entry holds beside the frames."""

    reader: str
    digest: str
    facts: Facts
    findings: list[Finding]


def read_file(path: Path, *, cache: bool = True) -> Decoded:
    """Return what :func:`decode` returns, from the cache where it has it; what is decoded is kept there.

    Raises:
        InputError: as :func:`decode`.
    """
    if not cache:
        return decode(path)
    places = [_beside(path), *_in_users_folder(path)]
    known = _load(path, places)
    if known is not None:
        return known
    before = _state(path)
    decoded = decode(path)
    if decoded.columns.num_events >= MIN_EVENTS:
        with suppress(OSError):
            digest = _digest(path)
            # Whoever wrote into the file meanwhile made what was decoded and what was hashed two things.
            if _state(path) == before:
                _store(decoded, digest, places)
    return decoded


@once
def reader_version() -> str:
    """Return a digest of the reader's own source: an entry that other code wrote, older or newer, does not fit."""
    digest = hashlib.sha256()
    for module in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(module.read_bytes())
    return digest.hexdigest()[:16]


def _beside(path: Path) -> Path:
    return path.parent / FOLDER / f"{path.name}{SUFFIX}"


def _in_users_folder(path: Path) -> Iterator[Path]:
    from platformdirs import user_cache_path

    with suppress(OSError, RuntimeError):
        place = hashlib.sha256(str(path.resolve()).encode("utf-8", "surrogateescape")).hexdigest()[:16]
        yield user_cache_path("tracekit", appauthor=False) / "traces" / f"{place}{SUFFIX}"


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


def _load(path: Path, places: list[Path]) -> Decoded | None:
    digest: str | None = None
    for place in places:
        if not place.is_file():
            continue
        with suppress(*_DAMAGE), zipfile.ZipFile(place) as entry:
            about = msgspec.json.decode(entry.read(_ABOUT), type=About)
            if about.reader != reader_version():
                continue
            digest = digest or _digest(path)
            if about.digest == digest:
                return Decoded(_frames(entry), about.facts, about.findings)
    return None


def _frames(entry: zipfile.ZipFile) -> Columns:
    kept = [name for name in SCHEMAS if f"{name}.parquet" in entry.NameToInfo]
    # Together, since each query costs more than reading a small frame.
    read = pl.collect_all([pl.scan_parquet(io.BytesIO(entry.read(f"{name}.parquet"))) for name in kept])
    frames = _EMPTY.copy()
    for name, frame in zip(kept, read, strict=True):
        if frame.schema != _EMPTY[name].schema:
            raise ValueError(name)
        frames[name] = frame
    return Columns(*frames.values())


def _store(decoded: Decoded, digest: str, places: list[Path]) -> None:
    """Write the entry in the first place that takes it, under another name until it is whole."""
    about = About(reader_version(), digest, decoded.facts, decoded.findings)
    for place in places:
        partial = place.with_name(f"{place.name}.{os.getpid()}.{id(decoded)}.partial")
        try:
            _make_folder(place.parent)
            with zipfile.ZipFile(partial, "w") as entry:
                entry.writestr(_ABOUT, msgspec.json.encode(about))
                for name, frame in zip(SCHEMAS, decoded.columns, strict=True):
                    if frame.is_empty():
                        continue
                    parquet = io.BytesIO()
                    # Parquet's own encodings shrink it as much as matters; compression would double the reading.
                    frame.write_parquet(parquet, compression="uncompressed", statistics=False)
                    entry.writestr(f"{name}.parquet", parquet.getbuffer())
            partial.replace(place)
        except OSError:
            continue
        else:
            if place is not places[0]:
                _tidy(place)
            return
        finally:
            with suppress(OSError):
                partial.unlink(missing_ok=True)


def _make_folder(folder: Path) -> None:
    if folder.is_dir():
        return
    # To root every folder is writable, also those that somebody made read-only on purpose.
    if folder.parent.is_dir() and not folder.parent.stat().st_mode & 0o222:
        raise PermissionError(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ".gitignore").write_text("# tracekit's cache: safe to delete\n*\n", encoding="utf-8")


def _tidy(newest: Path) -> None:
    """Remove the entries that were written longest ago while there are too many bytes of them."""
    entries = [(stat.st_mtime_ns, stat.st_size, e) for e in newest.parent.glob(f"*{SUFFIX}") if (stat := e.stat())]
    size = sum(s for _, s, _ in entries)
    for _, bytes_, entry in sorted(entries):
        if size <= MAX_USER_BYTES or entry == newest:
            return
        with suppress(OSError):
            entry.unlink()
        size -= bytes_
