"""The run folder on disk: its file names, the refusal of a folder in use, and files that are written atomically.

manifest.json                 the run, written by rank 0; who makes it has the folder
rank<r>.json.gz               the trace of a rank (with several cycles: cycle<c>/rank<r>.json.gz)
rank<r>.meta.json             a rank's entry of the manifest's `ranks`, written by that rank
.<name>.tmp                   a file being written
<folder>.new                  beside it: a run that will replace the one in the folder when it is complete
"""

from __future__ import annotations

import errno
import gzip
import json
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tracekit.record.errors import RecordError, RunExistsError

MANIFEST = "manifest.json"
RUN_PATTERNS = ("manifest.json", "rank*.json.gz", "rank*.meta.json", "cycle*/rank*.json.gz")
TEMPORARY_PATTERNS = (".*.tmp", "cycle*/.*.tmp")
# A trace is compressed sixteen fold; zlib's default of 6 gains 7 % for a quarter more time, 1 loses 30 %.
COMPRESSION_LEVEL = 5
# What the system says where nothing more can be written, and the least that a file takes of a disk.
FULL = (errno.ENOSPC, errno.EDQUOT)
BLOCK = 4096


def trace_name(rank: int, cycle: int, num_cycles: int) -> str:
    """The trace's path inside the run folder, with `/` on every system."""
    name = f"rank{rank}.json.gz"
    return name if num_cycles == 1 else f"cycle{cycle}/{name}"


def meta_name(rank: int) -> str:
    """The name of a rank's own entry of the manifest."""
    return f"rank{rank}.meta.json"


def run_files(folder: Path) -> list[Path]:
    """Every file of a run that lies in `folder`, of any rank and cycle, sorted."""
    return sorted(path for pattern in RUN_PATTERNS for path in folder.glob(pattern) if path.is_file())


def look(folder: Path, overwrite: bool) -> Path:
    """Makes `folder` and returns where a new run is written: the folder, or beside the run that it shall replace.

    Raises RunExistsError where it holds a run and `overwrite` is off, RecordError where the system refuses. Files that
    are not a run's stay. Several ranks may look at one folder at once.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        found = run_files(folder)
        if found and not overwrite:
            name = found[0].relative_to(folder).as_posix()
            raise RunExistsError(
                f"{shown(folder)} holds a run already ({name}); choose another folder or allow overwriting it"
            )
        if not found:
            return folder
        beside = folder.with_name(f"{folder.name}.new")
        beside.mkdir(exist_ok=True)
        remove_run(beside)
    except OSError as error:
        text = f"{shown(folder)} cannot be used as a run folder ({error.strerror or error}); choose another one"
        raise RecordError(text) from error
    return beside


def claim(folder: Path, value: Any) -> None:
    """Writes the manifest of a new run, unless another job was faster.

    A hard link is made or refused in one moment, also on network file systems. Raises RunExistsError or RecordError.
    """
    mine = folder / f".{MANIFEST}.{uuid.uuid4().hex}.tmp"
    try:
        mine.write_text(as_text(value), encoding="utf-8")
        os.link(mine, folder / MANIFEST)
    except FileExistsError:
        raise RunExistsError(
            f"another job began to record into {shown(folder)} at the same moment; choose another folder"
        ) from None
    except OSError as error:
        raise RecordError(
            f"{shown(folder)} cannot be used as a run folder ({error.strerror or error}); choose another one"
        ) from error
    finally:
        mine.unlink(missing_ok=True)


def replace_run(old: Path, new: Path) -> None:
    """Moves the run in `new` to `old`, whose own run goes. Raises OSError."""
    moved = [path.relative_to(new) for path in run_files(new)]
    for path in run_files(old):
        if path.relative_to(old) not in moved:
            path.unlink(missing_ok=True)
    # The manifest is the last to come: until then the folder holds no complete run of either kind.
    for name in sorted(moved, key=lambda name: name.as_posix() == MANIFEST):
        (old / name).parent.mkdir(exist_ok=True)
        (new / name).replace(old / name)
    remove_run(new)
    _remove_empty_cycles(old)
    _remove_empty(new)


def remove_run(folder: Path) -> None:
    """Removes every file of a run, whatever its rank or cycle, so that the ranks of two runs never mix."""
    for path in [*run_files(folder), *(path for pattern in TEMPORARY_PATTERNS for path in folder.glob(pattern))]:
        path.unlink(missing_ok=True)
    _remove_empty_cycles(folder)


def shown(path: Path) -> str:
    """A path in a sentence: on one line, whatever its name holds."""
    text = str(path)
    return text if text.isprintable() else repr(text)


def as_text(value: Any) -> str:
    """`value` as the text of a file. Raises ValueError for NaN and the infinities, which JSON does not have."""
    return json.dumps(value, indent=1, allow_nan=False) + "\n"


def write_json(path: Path, value: Any) -> None:
    """Writes `value` as indented JSON, atomically; where the disk is full, over the old file. Raises OSError."""
    text = as_text(value)
    try:
        _write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))
    except OSError as error:
        if error.errno not in FULL or not path.exists():
            raise
        # The blocks that the old text takes are there for the new one; half of it is worse than the old one whole.
        old = path.read_bytes()
        if len(text.encode()) > max(BLOCK, len(old)):
            raise
        path.write_text(text, encoding="utf-8")


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in `path`, or None where there is none that can be read."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def write_trace(path: Path, export: Callable[[str], Any]) -> None:
    """Compresses what `export(plain_path)` writes into `path`, atomically. Raises OSError.

    The plain file lies beside the trace. Kineto takes line ends out of its name, so that it lies among the system's
    temporary files where the folder has such a name.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    name = f".{path.name}.plain.tmp"
    odd = not str(path.parent).isprintable()
    plain = Path(tempfile.mkdtemp(prefix="tracekit-")) / name if odd else path.with_name(name)
    try:
        export(str(plain))
        _require_whole(plain)
        _write_atomically(path, lambda temporary: _compress(plain, temporary))
    finally:
        # Kineto itself writes beside its file and renames; where it fails, that file keeps the space.
        for left in (plain, plain.with_name(f"{name}.tmp")):
            left.unlink(missing_ok=True)
        if odd:
            _remove_empty(plain.parent)


def _require_whole(plain: Path) -> None:
    """Raises OSError where the profiler, which does not look whether its writes succeed, left half a file."""
    with plain.open("rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - 64))
        if file.read().rstrip().endswith(b"}"):
            return
    free = shutil.disk_usage(plain.parent).free
    if free < BLOCK * 16:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    raise OSError(errno.EIO, f"the profiler wrote a part of it only, {plain.stat().st_size} bytes")


def _compress(plain: Path, compressed: Path) -> None:
    with plain.open("rb") as source, gzip.open(compressed, "wb", compresslevel=COMPRESSION_LEVEL) as target:
        shutil.copyfileobj(source, target, 1 << 20)


def _write_atomically(path: Path, write: Callable[[Path], Any]) -> None:
    """Writes beside `path` and renames, so that a reader never sees half a file, not even after a kill."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        write(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _remove_empty_cycles(folder: Path) -> None:
    for path in folder.glob("cycle*"):
        if path.is_dir() and not any(path.iterdir()):
            _remove_empty(path)


def _remove_empty(path: Path) -> None:
    try:
        path.rmdir()
    except OSError:
        # Another rank claims the same folder and was faster, or somebody keeps a file there.
        return
