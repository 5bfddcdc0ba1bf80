"""The files that a run consists of, and the rank and cycle that their paths name.

Layouts read: one file; a folder of files; a pattern; our own runs (``rank0.json.gz``, ``cycle1/rank0.json.gz``);
torchtitan's ``iteration_20/rank0_trace.json.gz``; a folder a rank (``rank0/trace.json``); TensorBoard's and HTA's flat
folders. Hidden files and folders, among them our cache, are not part of a run.
"""

from __future__ import annotations

import glob
import os
import re
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from tracekit.errors import InputError
from tracekit.manifest import MANIFEST_NAME, RANK_ENTRIES, read_manifest
from tracekit.read.decoding.archives import ARCHIVE_NAME, archive_of, is_archive, links, members
from tracekit.read.decoding.formats import by_name
from tracekit.read.discovery.file_names import by_number, rank_in
from tracekit.read.findings import Finding
from tracekit.text import plain_line

_TRACE_NAME = re.compile(r"\.(json|gz|gzip|zst|zstd)$", re.IGNORECASE)
_NOT_TRACES = re.compile(r"^(manifest|report)\.json$|\.meta\.json$", re.IGNORECASE)
_RANK_IN_FOLDER = re.compile(r"^(?:rank|worker)[-_=]?(\d{1,6})$", re.IGNORECASE)
_ADDRESS = re.compile(r"^([a-zA-Z][a-zA-Z0-9+.-]+):/{1,2}(.*)$", re.DOTALL)
_BESIDE_TRACES = (MANIFEST_NAME, RANK_ENTRIES, "tracekit-patterns.toml")
# Files of a folder without traces whose names are looked at for the refusal.
_LOOKED_AT = 10_000
_CYCLE_IN_FOLDER = re.compile(r"^(?:cycle|iteration|iter|step)[-_]?(\d{1,9})$", re.IGNORECASE)


class Source(NamedTuple):
    """One trace file.

    `cycle`: its number, 0 if unknown; `rank_in_name`: the rank in its path, found in `named_by` ("file name" or
    "folder name"); `given`: the user named this file, rather than a folder that holds it.
    """

    path: Path
    cycle: int = 0
    rank_in_name: int | None = None
    named_by: str | None = None
    given: bool = False


class LeftOut(NamedTuple):
    """A path in a folder that is not read, with the reason."""

    path: Path
    finding: Finding


def expand(paths: Iterable[Path]) -> list[Path]:
    """Return these paths, patterns such as ``run/iteration_*/rank0*.gz`` replaced by what they match.

    Raises:
        MissingExtraError: a path is an address (``s3://…``).
        InputError: no path is given, a pattern matches nothing, or a path is neither a file nor a folder.
    """
    found: list[Path] = []
    for path in paths:
        _refuse_address(path)
        if os.path.exists(path) or not glob.has_magic(str(path)):  # noqa: PTH110 - Path's own raises on odd names
            _refuse_other(path)
            found.append(path)
            continue
        matches = sorted(glob.glob(str(path), recursive=True))  # noqa: PTH207 - the pattern may be absolute
        if not matches:
            raise InputError(f"{path}: no file or folder matches this pattern; give a trace file or a run folder")
        found.extend(map(Path, matches))
    if not found:
        raise InputError("no path given; give a trace file or a run folder")
    return found


def find_sources(paths: Iterable[Path], left_out: list[LeftOut] | None = None) -> list[Source]:
    """Return the trace files below these files and folders, each once, ordered by cycle, rank and name.

    Files and folders that cannot be read are added to `left_out`.

    Raises:
        InputError: a path is neither a file nor a folder, or a folder holds no trace.
    """
    by_file: dict[Path, Source] = {}
    for path in paths:
        for source in _below(path, [] if left_out is None else left_out):
            by_file.setdefault(source.path.resolve(), source)
    return sorted(by_file.values(), key=in_order)


def input_files(paths: Iterable[Path]) -> Iterator[Path]:
    """Yield the files that opening these paths reads, archives as a whole, with what lies beside traces."""
    for path in paths:
        if path.is_file():
            yield path
        folder = path if path.is_dir() else path.parent
        yield from _walk(folder, []) if path.is_dir() else ()
        # Of a cycle's folder the manifest lies one above.
        for name in _BESIDE_TRACES:
            yield from folder.glob(name)
            yield from folder.parent.glob(name)


def in_order(source: Source) -> tuple[int, int, tuple[str | int, ...]]:
    """Return the sort key: cycle, rank, name, in which numbers count as numbers."""
    return (source.cycle, -1 if source.rank_in_name is None else source.rank_in_name, by_number(str(source.path)))


def _below(path: Path, left_out: list[LeftOut]) -> Iterator[Source]:
    if not (path.exists() or archive_of(path)):
        _refuse_other(path)
    if path.is_file() and is_archive(path):
        yield from _inside(path, [], left_out, given=True)
        return
    if not path.is_dir():
        yield _source(path, [path.absolute().parent.name], given=True)
        return
    unread: list[LeftOut] = []
    files = list(_walk(path, unread))
    left_out.extend(unread)
    if not files:
        raise _no_trace(path, unread)
    for file in files:
        folders = [path.resolve().name, *file.parent.relative_to(path).parts]
        if is_archive(file):
            yield from _inside(file, folders, left_out, given=False)
        else:
            yield _source(file, folders, given=False)


def _no_trace(folder: Path, unread: list[LeftOut]) -> InputError:
    """Return the error for a folder without traces, which names what else is there."""
    but = f"; {unread[0].path}: {unread[0].finding.what}" if unread else ""
    names = sorted(file.name for _, file in zip(range(_LOOKED_AT), folder.rglob("*"), strict=False) if file.is_file())
    seen = {what: name for name in reversed(names) if (what := by_name(name))}
    other = "".join(f"; {name} is {what}" for what, name in sorted(seen.items(), key=lambda one: one[1])[:5])
    return InputError(
        f"{folder}: no trace in this folder (looked for *.json, *.json.gz and archives of them{but}{other}); "
        f"{_why_unrecorded(folder) or 'give a run folder'}"
    )


def _why_unrecorded(folder: Path) -> str:
    """Return what the manifest says of a run that left no trace, and what to do; nothing without a manifest."""
    manifest = read_manifest(folder)
    if manifest is None:
        return ""
    ranks: dict[str, list[int]] = {}
    for rank in manifest.ranks:
        for trace in rank.traces:
            why = "names files that are not there" if trace.file else f"says: {trace.reason or 'not written'}"
            ranks.setdefault(why, []).append(rank.rank)
    if not ranks:
        return "its manifest has no word on any trace: the run was killed or is going on; record it again"
    said = "; ".join(
        f"{why} (rank {', '.join(map(str, sorted(set(of))[:8]))}{', …' * (len(set(of)) > 8)})"
        for why, of in ranks.items()
    )
    return f"its manifest {plain_line(said)}; bring the files, or record the run again"


def _inside(archive: Path, folders: list[str], left_out: list[LeftOut], *, given: bool) -> Iterator[Source]:
    """Yield the traces in an archive; one without any, or that cannot be read, is refused or left out."""
    try:
        names = [member.path for member in members(archive)]
    except InputError as error:
        if given:
            raise
        left_out.append(_left_out(archive, str(error).removeprefix(f"{archive}: "), "archive"))
        return
    traces = [name for name in names if _is_trace(name.name) and not any(p.startswith(".") for p in name.parts)]
    # What an archive is called says as little as a folder's name does, but for the rank or cycle in it.
    stem = ARCHIVE_NAME.sub("", archive.name)
    for name in traces:
        yield _source(archive / name, [*folders, stem, *name.parts[:-1]], given=given)
    left_out.extend(
        _left_out(archive / n, "not a file but a link or a device", "it") for n in links(archive) if _is_trace(n.name)
    )
    nested = [name for name in names if ARCHIVE_NAME.search(name.name)]
    left_out.extend(
        _left_out(archive / n, "an archive inside an archive: unpack the outer one", "file") for n in nested
    )
    if not traces:
        seen = ", ".join(map(str, names[:5])) or "nothing"
        what = f"no trace in this archive (it holds {seen}{', …' if len(names) > 5 else ''})"
        what += "; archives inside an archive are not read: unpack the outer one" if nested else ""
        if given:
            raise InputError(f"{archive}: {what}; give an archive of *.json or *.json.gz files")
        left_out.append(_left_out(archive, what, "archive"))


def _is_trace(name: str) -> bool:
    return bool(_TRACE_NAME.search(name)) and not _NOT_TRACES.search(name) and not ARCHIVE_NAME.search(name)


def _walk(folder: Path, left_out: list[LeftOut]) -> Iterator[Path]:
    def note(error: OSError) -> None:
        left_out.append(_left_out(Path(error.filename), f"folder cannot be read ({_reason(error)})", "folder"))

    for parent, folders, files in os.walk(folder, onerror=note):
        folders[:] = sorted(f for f in folders if not f.startswith("."))
        for name in sorted(files):
            if name.startswith(".") or not (_is_trace(name) or ARCHIVE_NAME.search(name)):
                continue
            file = Path(parent, name)
            if other := _other_kind(file):
                left_out.append(_left_out(file, other, "file"))
            else:
                yield file


def _left_out(path: Path, what: str, kind: str) -> LeftOut:
    return LeftOut(path, Finding(what, None, 1, f"{kind} left out"))


def _refuse_address(path: Path) -> None:
    # As a path, s3://bucket/run has lost one of its slashes.
    address = _ADDRESS.match(str(path))
    if address is None or path.exists():
        return
    raise InputError(
        f"{address[1]}://{address[2]}: runs are read from folders of this machine; reading from object stores is to "
        "come with the extra zero-tracekit[remote]: until then copy the run here and give its folder"
    )


def _refuse_other(path: Path) -> None:
    if other := _other_kind(path):
        raise InputError(f"{path}: {other}; give a trace file or a run folder")


def _other_kind(path: Path) -> str | None:
    """Return why a path is neither a file nor a folder, as text; None where it is one."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return "a link to nothing" if path.is_symlink() else "no such file or folder"
    except (OSError, ValueError) as error:
        return f"cannot be read ({_reason(error)})"
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        return None
    kinds = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}
    return f"{kinds.get(stat.S_IFMT(mode), 'something')}, not a file (it cannot be read more than once)"


def _reason(error: OSError | ValueError) -> str:
    strerror = error.strerror if isinstance(error, OSError) else None
    return (strerror or str(error)).lower()


def _source(path: Path, folders: list[str], *, given: bool) -> Source:
    cycle = _nearest(_CYCLE_IN_FOLDER, folders) or 0
    rank = rank_in(path.name)
    if rank is not None:
        return Source(path, cycle, rank, "file name", given)
    rank = _nearest(_RANK_IN_FOLDER, folders)
    return Source(path, cycle, rank, None if rank is None else "folder name", given)


def _nearest(pattern: re.Pattern[str], folders: list[str]) -> int | None:
    return next((int(m[1]) for folder in reversed(folders) if (m := pattern.match(folder))), None)
