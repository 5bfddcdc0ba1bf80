"""Which rank each file holds, how we know, and what is amiss with the ranks of a run as a whole."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import count
from typing import NamedTuple

from tracekit.errors import InputError
from tracekit.read.decoding.metadata import Facts
from tracekit.read.discovery.sources import Source
from tracekit.read.findings import Finding

# Larger than any cluster: what a file claims beyond it is damage, and must not be counted through.
_MOST_RANKS = 2**20


class Ranked(NamedTuple):
    """The rank of one file and where it was found: "distributedInfo", "file name", "folder name" or "order"."""

    rank: int
    rank_from: str


def assign_ranks(sources: Sequence[Source], told: Sequence[int | None]) -> list[Ranked]:
    """Return a rank for each file of one cycle: what the trace tells, else its name, else the lowest that is free."""
    known = [_known(source, rank) for source, rank in zip(sources, told, strict=True)]
    taken = {ranked.rank for ranked in known if ranked}
    free = (rank for rank in count() if rank not in taken)
    return [ranked or Ranked(next(free), "order") for ranked in known]


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


def world_size(told: Iterable[Facts], manifest_says: int | None) -> int | None:
    """Return how many ranks the run had: by its manifest, else the largest number its traces tell; null if unknown."""
    sizes = [manifest_says] if manifest_says is not None else [facts.world_size for facts in told]
    return max((size for size in sizes if size is not None and 0 < size <= _MOST_RANKS), default=None)


def missing_ranks(ranks: Iterable[int], size: int | None) -> list[int]:
    """Return the ranks of the run that no file holds; none where the world size is unknown."""
    return sorted(set(range(size or 0)) - set(ranks))


def rank_findings(ranks: Sequence[int], told: Sequence[Facts], size: int | None) -> list[tuple[int | None, Finding]]:
    """Return what is amiss, each with the place of the file it is about (null: the run as a whole)."""
    found: list[tuple[int | None, Finding]] = []
    for place, (rank, facts) in enumerate(zip(ranks, told, strict=True)):
        said = facts.world_size
        if said is not None and said != size:
            what = f"world size {said}, where the run has {'an unknown one' if size is None else size}"
            found.append((place, Finding(what, None, 1, "not used")))
        if size is not None and rank >= size:
            found.append((place, Finding(f"rank {rank} of a world of {size} ranks", None, 1, "kept")))
    missing = missing_ranks(ranks, size)
    if missing and size is not None:
        what = f"no file of {spans(missing)}: needs {size} of {size} ranks, has {size - len(missing)}"
        done = "tables of each rank hold; what compares all ranks is unknown"
        found.append((None, Finding(what, None, len(missing), done)))
    return found


def _known(source: Source, told: int | None) -> Ranked | None:
    if told is not None and 0 <= told < 2**31:
        return Ranked(told, "distributedInfo")
    if source.rank_in_name is not None:
        return Ranked(source.rank_in_name, source.named_by or "file name")
    return None


def spans(ranks: list[int]) -> str:
    """Say of sorted ranks "rank 3" or "ranks 0-33, 35, 37-299", at most a line of it."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    shown = [str(first) if first == last else f"{first}-{last}" for first, last in runs]
    more = f" and {len(shown) - 8} more spans" if len(shown) > 9 else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(shown[: 8 if more else 9])}{more}"
