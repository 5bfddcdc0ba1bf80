"""The rank of each file, where it was found, and faults in the ranks of a run as a whole."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import count
from typing import NamedTuple

from tracekit.errors import InputError
from tracekit.read.decoding.metadata import Metadata
from tracekit.read.discovery.file_names import ranks_by_axes, ranks_by_series
from tracekit.read.discovery.sources import Source
from tracekit.read.findings import Finding

# More than any cluster has: a larger world size is damage, and must not be iterated over.
_MOST_RANKS = 2**20


class Ranked(NamedTuple):
    """The rank of one file and where it was found.

    That is "distributedInfo", "file name", "folder name", "axes in name", "order", "process name" or "order of pids".
    """

    rank: int
    rank_from: str


class InFile(NamedTuple):
    """One process of a file that holds several: its place by the order of pids, their number, the rank it tells."""

    place: int
    num_processes: int
    rank: int | None


def assign_ranks(
    sources: Sequence[Source],
    in_files: Sequence[int | None],
    in_file: Sequence[InFile | None] = (),
    size: int | None = None,
) -> list[Ranked]:
    """Return a rank for each file of one cycle: from its metadata, else its name, else the lowest that is free.

    Names tell a rank alone (rank3), or all those without one together: by axes (TP-1-DP-0), or as a series (profile_3).
    Of a file that holds several ranks the metadata and name are the first one's, and the others follow by the order of
    their pids where these ranks are free and below `size`.
    """
    places = in_file or [None] * len(sources)
    known = [_known(source, rank) for source, rank in zip(sources, in_files, strict=True)]
    first = {ranked.rank for ranked, place in zip(known, places, strict=True) if ranked and not (place and place.place)}
    known = [
        _of_process(ranked, place, first, size) if place else ranked
        for ranked, place in zip(known, places, strict=True)
    ]
    taken = {ranked.rank for ranked in known if ranked}
    unnamed = [n for n, ranked in enumerate(known) if ranked is None and places[n] is None]
    for n, ranked in zip(unnamed, _together([sources[n].path.name for n in unnamed], taken), strict=False):
        known[n] = ranked
    taken = {ranked.rank for ranked in known if ranked}
    free = (rank for rank in count() if rank not in taken)
    by_order = [Ranked(0, "order of pids" if place else "order") for place in places]
    return [ranked or other._replace(rank=next(free)) for ranked, other in zip(known, by_order, strict=True)]


def _of_process(known: Ranked | None, process: InFile, first: set[int], size: int | None) -> Ranked | None:
    """Return the rank of one of several processes, from what is known of its file; None where nothing tells it."""
    if process.rank is not None:
        return Ranked(process.rank, "process name")
    if known is None or process.place == 0:
        return known
    following = range(known.rank + 1, known.rank + process.num_processes)
    if first.isdisjoint(following) and (size is None or following.stop <= size):
        return Ranked(known.rank + process.place, "order of pids")
    return None


def _together(names: list[str], taken: set[int]) -> list[Ranked]:
    """Return what these names tell beside each other; nothing where they tell none, or ranks that others have."""
    for ranks, rank_from in ((ranks_by_axes(names), "axes in name"), (ranks_by_series(names), "file name")):
        if ranks is not None and taken.isdisjoint(ranks):
            return [Ranked(rank, rank_from) for rank in ranks]
    return []


def refuse_duplicates(sources: Sequence[Source], ranked: Sequence[Ranked]) -> None:
    """Refuse two files of one rank in one cycle.

    Raises:
        InputError: naming both files and why they are taken for one rank.
    """
    seen: dict[int, tuple[Source, Ranked]] = {}
    for source, one in zip(sources, ranked, strict=True):
        if one.rank in seen:
            first, other = seen[one.rank]
            why = " and ".join(dict.fromkeys((other.rank_from, one.rank_from)))
            raise InputError(
                f"{source.path}: rank {one.rank} is also in {first.path} (by {why}), in the same cycle; "
                f"open one run at a time, or name the files that belong together"
            )
        seen[one.rank] = (source, one)


def world_size(files: Iterable[Metadata], in_manifest: int | None) -> int | None:
    """Return the number of ranks of the run: from its manifest, else the largest in its files; None if unknown."""
    sizes = [in_manifest] if in_manifest is not None else [metadata.world_size for metadata in files]
    return max((size for size in sizes if size is not None and 0 < size <= _MOST_RANKS), default=None)


def missing_ranks(ranks: Iterable[int], size: int | None) -> list[int]:
    """Return the ranks of the run that no file holds; none where the world size is unknown."""
    return sorted(set(range(size or 0)) - set(ranks))


def rank_findings(
    ranks: Sequence[int], files: Sequence[Metadata], size: int | None
) -> list[tuple[int | None, Finding]]:
    """Return faults, each with the index of its file (None: the run as a whole)."""
    found: list[tuple[int | None, Finding]] = []
    for index, (rank, metadata) in enumerate(zip(ranks, files, strict=True)):
        claimed = metadata.world_size
        if claimed is not None and claimed != size:
            what = f"world size {claimed}, where the run has {'an unknown one' if size is None else size}"
            found.append((index, Finding(what, None, 1, "not used")))
        if size is not None and rank >= size:
            found.append((index, Finding(f"rank {rank} of a world of {size} ranks", None, 1, "kept")))
    missing = missing_ranks(ranks, size)
    if missing and size is not None:
        what = f"no file of {spans(missing)}: needs {size} of {size} ranks, has {size - len(missing)}"
        done = "tables of each rank hold; what compares all ranks is unknown"
        found.append((None, Finding(what, None, len(missing), done)))
    return found


def _known(source: Source, in_file: int | None) -> Ranked | None:
    if in_file is not None and 0 <= in_file < 2**31:
        return Ranked(in_file, "distributedInfo")
    if source.rank_in_name is not None:
        return Ranked(source.rank_in_name, source.named_by or "file name")
    return None


def spans(ranks: list[int]) -> str:
    """Return sorted ranks as text, "rank 3" or "ranks 0-33, 35, 37-299", of at most a line."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    shown = [str(first) if first == last else f"{first}-{last}" for first, last in runs]
    more = f" and {len(shown) - 8} more spans" if len(shown) > 9 else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(shown[: 8 if more else 9])}{more}"
