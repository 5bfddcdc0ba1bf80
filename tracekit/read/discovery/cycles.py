"""The cycles of a run: the files that were recorded in one window, and the window that is read."""

from __future__ import annotations

import re
from collections import Counter
from contextlib import closing
from pathlib import Path

from tracekit.errors import InputError, UsageError
from tracekit.manifest import Manifest
from tracekit.read.decoding.archives import size_of
from tracekit.read.decoding.batches import EVENTS_KEY
from tracekit.read.decoding.content import blocks
from tracekit.read.decoding.metadata import metadata_in
from tracekit.read.discovery.sources import Source, in_order

_STEP_IN_NAME = re.compile(r"[-_.]?(?:step|iteration|iter|cycle)[-_=]?(\d{1,9})(?!\d)", re.IGNORECASE)
_TRACE_IN_NAME = re.compile(r"trace", re.IGNORECASE)
# The timestamp that tensorboard_trace_handler puts between worker and suffix.
_STAMP_IN_NAME = re.compile(r"\.(\d{1,30})(?=\.pt\.trace\.json)", re.IGNORECASE)


def split_cycles(sources: list[Source]) -> list[Source]:
    """Return the sources with the cycles of flat folders told apart.

    There the files of one worker differ only by a step number or a timestamp (``worker0_step_12.1694.pt.trace.json``).
    The cycle is that step number where every file has one, else the position among the worker's files.
    """
    groups: dict[tuple[Path, int], list[Source]] = {}
    for source in sources:
        groups.setdefault((source.path.parent, source.cycle), []).append(source)
    return sorted((s for group in groups.values() for s in _split(group)), key=in_order)


def without_strays(sources: list[Source]) -> tuple[list[Source], list[Source]]:
    """Return the sources, and apart from them other JSON files of the folder, which must not count as a rank's.

    Only files are inspected that the user did not name and that have no trace's name. A single file is never a stray.
    """
    strays = [s for s in sources if not s.given and s.rank_in_name is None and not _TRACE_IN_NAME.search(s.path.name)]
    strays = [s for s in strays if len(sources) > 1 and not _holds_events(s.path)]
    return ([s for s in sources if s not in strays], strays) if len(strays) < len(sources) else (sources, [])


def choose_cycle(sources: list[Source], wanted: int | None = None, manifest: Manifest | None = None) -> int:
    """Return the cycle to read: the wanted one, else the newest that has all ranks seen in any cycle.

    Recordings that the manifest calls incomplete, and empty files, count only where there are no others.

    Raises:
        UsageError: there is no such cycle.
    """
    per_cycle = Counter(source.cycle for source in sources)
    if wanted is not None:
        if wanted not in per_cycle:
            listed = ", ".join(map(str, sorted(per_cycle)))
            raise UsageError(f"cycle {wanted} is not in this run, which has the cycles {listed}; choose one of them")
        return wanted
    per_cycle = Counter(source.cycle for source in sources if _is_written(source.path)) or per_cycle
    full = [cycle for cycle, files in per_cycle.items() if files == max(per_cycle.values())]
    cut = {t.cycle for r in (manifest.ranks if manifest else []) for t in r.traces if t.complete is False}
    return max([cycle for cycle in full if cycle not in cut] or full)


def _is_written(path: Path) -> bool:
    try:
        return size_of(path) > 0
    except (OSError, InputError):
        return False


def _split(group: list[Source]) -> list[Source]:
    names = [_worker(s.path.name) for s in group]
    count = Counter(names)
    # All ranks may have the same worker name: then only the metadata in the traces tells them apart.
    workers = [(name, _rank_in_file(s.path) if count[name] > 1 else None) for s, name in zip(group, names, strict=True)]
    if len(set(workers)) == len(workers):
        return group
    steps = [_step(s.path.name) for s in group]
    if None not in steps and len(set(zip(workers, steps, strict=True))) == len(workers):
        return [s._replace(cycle=step) for s, step in zip(group, steps, strict=True) if step is not None]
    seen: Counter[tuple[str, int | None]] = Counter()
    split: list[Source] = []
    for source, worker in sorted(zip(group, workers, strict=True), key=lambda pair: _age(pair[0].path.name)):
        split.append(source._replace(cycle=seen[worker]))
        seen[worker] += 1
    return split


def _worker(name: str) -> str:
    return _STEP_IN_NAME.sub("", _STAMP_IN_NAME.sub("", name))


def _step(name: str) -> int | None:
    found = _STEP_IN_NAME.search(name)
    return int(found[1]) if found else None


def _age(name: str) -> tuple[int, int, str]:
    stamp, step = _STAMP_IN_NAME.search(name), _step(name)
    return (-1 if step is None else step, int(stamp[1]) if stamp else -1, name)


def _rank_in_file(path: Path) -> int | None:
    """Return the rank in the metadata before the events, or None."""
    head = _first_block(path) or b""
    events = EVENTS_KEY.search(head)
    return metadata_in(head[: events.start()] if events else head).rank


def _holds_events(path: Path) -> bool:
    """Return whether it looks like a trace, or cannot be read, which is then reported by the reader."""
    head = _first_block(path)
    return head is None or bool(EVENTS_KEY.search(head)) or b'"ph"' in head


def _first_block(path: Path) -> bytes | None:
    try:
        with closing(blocks(path, [])) as text:
            return next(text, b"")
    except InputError:
        return None
