"""Cache entries on disk: frames under a key of what they were made from, written atomically and verified when read.

An entry is a zip file, uncompressed: one Parquet file for each frame that has rows, and ``about.json`` with the key,
the version of the code that wrote it, digests of the frames, and metadata of its owner. It is sealed with a secret of
the user (see cache_seal.py): an entry that came with a trace, that another user wrote or that was edited could cost any
amount of memory, or say anything. An entry that is missing, damaged, not sealed by this user, of another key or written
by other code counts as absent.
"""

from __future__ import annotations

import hashlib
import io
import os
import time
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache as once
from pathlib import Path
from typing import IO, Any, cast

import msgspec
import polars as pl

from tracekit.read import cache_seal

FOLDER = ".tracekit-cache"
SUFFIX = ".zip"
# The most that entries in the user's cache folder may take, which nobody tidies up.
MAX_USER_BYTES = 4 * 2**30

# The rooms whose code decides what an entry holds; they import no other.
DECIDING_ROOMS = ("read", "model")
_ABOUT = "about.json"
_PARTIAL = ".partial"
_ABANDONED_NS = 24 * 3600 * 10**9
_DAMAGE = (
    OSError, EOFError, ValueError, LookupError, RuntimeError, zipfile.BadZipFile, zlib.error, msgspec.MsgspecError,
    pl.exceptions.PolarsError, pl.exceptions.PanicException,
)  # fmt: skip

Schemas = Mapping[str, Mapping[str, pl.DataType]]


class EntryInfo(msgspec.Struct, frozen=True):
    """The metadata of an entry: `heights` are rows of each frame, `more` is its owner's, as JSON."""

    version: str
    key: str
    heights: dict[str, int]
    more: msgspec.Raw = msgspec.Raw(b"null")
    digests: dict[str, str] = {}
    seal: str = ""


@once
def code_version() -> str:
    """Return a digest of the code that reads and models: what any other version wrote is not used."""
    return digest_of_code(Path(__file__).parent.parent)


def digest_of_code(package: Path) -> str:
    """Return a digest of the modules of `package` that decide what an entry holds: its own, and all of two rooms."""
    digest = hashlib.sha256(pl.__version__.encode())
    modules = [*package.glob("*.py"), *(module for room in DECIDING_ROOMS for module in (package / room).rglob("*.py"))]
    for module in sorted(modules):
        digest.update(f"{module.relative_to(package)}\0".encode() + module.read_bytes())
    return digest.hexdigest()[:16]


def entry_paths(folder: Path, name: str) -> list[Path]:
    """Return the paths that an entry may have, best first: beside the traces, in the user's cache folder."""
    return [folder / FOLDER / f"{name}{SUFFIX}", *_in_users_folder(folder, name)]


def _in_users_folder(folder: Path, name: str) -> Iterator[Path]:
    from platformdirs import user_cache_path

    with suppress(OSError, RuntimeError):
        digest = hashlib.sha256(str(folder.resolve() / name).encode("utf-8", "surrogateescape")).hexdigest()[:16]
        yield user_cache_path("tracekit", appauthor=False) / "traces" / f"{digest}{SUFFIX}"


def entry_info(path: Path) -> EntryInfo | None:
    """Return the metadata of the entry at this path; None where this version of the code wrote none."""
    with suppress(*_DAMAGE), _opened(path) as entry:
        return _info(entry)
    return None


def _opened(path: Path) -> zipfile.ZipFile:
    # Opening a pipe would wait for whoever writes to it.
    if not path.is_file():
        raise FileNotFoundError(path)
    return zipfile.ZipFile(path)


def _info(entry: zipfile.ZipFile) -> EntryInfo | None:
    found = msgspec.json.decode(_stored(entry, _ABOUT), type=EntryInfo)
    unsealed = msgspec.json.encode(msgspec.structs.replace(found, seal=""))
    return found if found.version == code_version() and cache_seal.is_ours(unsealed, found.seal) else None


def _stored(entry: zipfile.ZipFile, name: str) -> bytes:
    """Return a member, which takes no more memory than it takes in the file."""
    member = entry.getinfo(name)
    if member.compress_type != zipfile.ZIP_STORED or member.file_size != member.compress_size:
        raise ValueError(name)
    return entry.read(member)


def load(path: Path, key: str, schemas: Schemas) -> dict[str, pl.DataFrame] | None:
    """Return the frames of the entry at this path; None where it is not the entry of this key."""
    with suppress(*_DAMAGE), _opened(path) as entry:
        found = _info(entry)
        if found is not None and found.key == key:
            frames = _frames(entry, schemas, found.digests)
            # A frame whose name in the archive is damaged looks as if it had no rows.
            return frames if {name: frame.height for name, frame in frames.items()} == found.heights else None
    return None


def _frames(entry: zipfile.ZipFile, schemas: Schemas, digests: Mapping[str, str]) -> dict[str, pl.DataFrame]:
    frames = {name: pl.DataFrame(schema=schema) for name, schema in schemas.items()}
    stored = [name for name in schemas if f"{name}.parquet" in entry.NameToInfo]
    parquets = {name: _stored(entry, f"{name}.parquet") for name in stored}
    if any(cache_seal.digest(data) != digests.get(name) for name, data in parquets.items()):
        raise ValueError("edited")
    # Together, since each query costs more than reading a small frame.
    read = pl.collect_all([pl.scan_parquet(io.BytesIO(data)) for data in parquets.values()])
    for name, frame in zip(stored, read, strict=True):
        if frame.schema != frames[name].schema:
            raise ValueError(name)
        frames[name] = frame
    return frames


def store(paths: list[Path], key: str, frames: Mapping[str, pl.DataFrame], more: Any = None) -> None:
    """Write the entry to the first of these paths that can be written, under another name until it is complete."""
    heights = {name: frame.height for name, frame in frames.items()}
    about = EntryInfo(code_version(), key, heights, msgspec.Raw(msgspec.json.encode(more)))
    for path in paths:
        partial = path.with_name(f"{path.name}.{os.getpid()}.{id(frames)}{_PARTIAL}")
        try:
            _make_folder(path.parent)
            with zipfile.ZipFile(partial, "w") as entry:
                digests: dict[str, str] = {}
                for name, frame in frames.items():
                    if frame.is_empty():
                        continue
                    # Parquet's own encodings shrink it as much as matters; compression would double the reading.
                    with entry.open(f"{name}.parquet", "w", force_zip64=True) as file:
                        parquet = cache_seal.Digested(file)
                        frame.write_parquet(cast("IO[bytes]", parquet), compression="uncompressed", statistics=False)
                    digests[name] = parquet.digest()
                unsealed = msgspec.structs.replace(about, digests=digests)
                seal = cache_seal.seal(msgspec.json.encode(unsealed))
                entry.writestr(_ABOUT, msgspec.json.encode(msgspec.structs.replace(unsealed, seal=seal)))
            partial.replace(path)
        except (OSError, pl.exceptions.PolarsError):
            continue
        else:
            _tidy(path, None if path is paths[0] else MAX_USER_BYTES)
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


def _tidy(newest: Path, most_bytes: int | None) -> None:
    """Remove partial entries of killed processes, and the oldest entries while they take more than `most_bytes`."""
    entries: list[tuple[int, int, Path]] = []
    for path in newest.parent.glob(f"*{SUFFIX}*"):
        # Other processes tidy here too.
        with suppress(OSError):
            stat = path.stat()
            age = time.time_ns() - stat.st_mtime_ns
            if path.suffix == SUFFIX:
                entries.append((stat.st_mtime_ns, stat.st_size, path))
            elif path.suffix == _PARTIAL and age > _ABANDONED_NS:
                path.unlink()
    size = sum(s for _, s, _ in entries)
    for _, bytes_, entry in sorted(entries):
        if most_bytes is None or size <= most_bytes or entry == newest:
            return
        with suppress(OSError):
            entry.unlink()
        size -= bytes_
