"""The manifest of a run: in the folder of its traces, in an archive of them, or one folder above."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

import msgspec

from tracekit.errors import InputError
from tracekit.manifest import MANIFEST_NAME, RANK_ENTRIES, Manifest, is_foreign, manifest_from, read_manifest
from tracekit.read.decoding.archives import ARCHIVE_NAME, DAMAGED, is_archive, members, open_file
from tracekit.read.discovery.sources import LeftOut
from tracekit.read.findings import Finding

# Far more than the manifest of a large model takes; what an archive holds may expand to anything.
_MOST_BYTES = 2**28


def find_manifest(paths: Iterable[Path]) -> Manifest | None:
    """Return the manifest of these folders, files and archives; of several, the first one with the ranks of all.

    Raises:
        InputError: one is damaged, out of range, or of a later format.
    """
    seen: dict[Path, Manifest | None] = {}
    found: dict[Path, Manifest] = {}
    for path in paths:
        for places in _places(path):
            seen |= {place: _manifest_at(place) for place in places if place not in seen}
            here = {place: manifest for place in places if (manifest := seen[place])}
            found |= here
            if here:
                break
    if not found:
        return None
    first, *others = found.values()
    ranks = {info.rank: info for manifest in (*others, first) for info in manifest.ranks}
    return msgspec.structs.replace(first, ranks=[ranks[rank] for rank in sorted(ranks)])


def foreign_manifests(paths: Iterable[Path]) -> list[LeftOut]:
    """Return the files in these folders and archives that have our manifest's name but are another program's."""
    what = "not a manifest that tracekit wrote (it has neither a format nor a strategy)"
    return [LeftOut(path, Finding(what, None, 1, "file left out")) for path in _others(paths)]


def run_folders(path: Path) -> tuple[Path, Path]:
    """Return the folders in which files of a run may lie: that of its traces, and the one above."""
    folder = path.resolve() if path.is_dir() else path.resolve().parent
    return folder, folder.parent


def _places(path: Path) -> Iterator[list[Path]]:
    """Yield the folders and archives that a manifest may lie in, the nearest first."""
    if path.is_file() and is_archive(path):
        yield [path]
    folder, above = run_folders(path)
    yield [folder]
    if path.is_dir():
        yield _archives_in(path)
    yield [above]


def _archives_in(folder: Path) -> list[Path]:
    try:
        return sorted(file for file in folder.iterdir() if ARCHIVE_NAME.search(file.name) and file.is_file())
    except OSError:
        return []


def _manifest_at(place: Path) -> Manifest | None:
    if place.is_dir():
        return read_manifest(place)
    found = _names_in(place)
    return manifest_from(place / found[0].parent, {n.name: _member(place / n) for n in found}) if found else None


def _names_in(archive: Path) -> list[PurePosixPath]:
    """Return the names of the manifest that lies highest in an archive and of what ranks wrote beside it.

    None of an archive that cannot be read, which is told where its traces are looked for.
    """
    try:
        names = [member.path for member in members(archive) if not any(p.startswith(".") for p in member.path.parts)]
    except InputError:
        return []
    manifests = sorted((name for name in names if name.name == MANIFEST_NAME), key=lambda name: len(name.parts))
    beside = [name for name in names if manifests and name.parent == manifests[0].parent]
    return manifests[:1] + [name for name in beside if fnmatch(name.name, RANK_ENTRIES)]


def _member(path: Path) -> bytes:
    try:
        with open_file(path) as file:
            data = file.read(_MOST_BYTES + 1)
    except (OSError, *DAMAGED) as error:
        raise InputError(f"{path}: cannot be read ({error}); unpack the archive and give the folder") from None
    if len(data) > _MOST_BYTES:
        raise InputError(f"{path}: expands to more than {_MOST_BYTES:,} bytes, which no manifest has; remove it")
    return data


def _others(paths: Iterable[Path]) -> Iterator[Path]:
    for path in paths:
        for place in [path, *_archives_in(path)] if path.is_dir() else [path]:
            if (file := place / MANIFEST_NAME).is_file():
                data = file.read_bytes()
            elif place.is_file() and is_archive(place) and (names := _names_in(place)):
                data = _member(file := place / names[0])
            else:
                continue
            if is_foreign(data, file):
                yield file
