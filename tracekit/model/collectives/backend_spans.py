"""The calls of a CPU backend's spans (``gloo:all_reduce``): gloo writes no id, so kind, size and order decide.

A backend may run another collective than the one that was called: gloo has no reduce-scatter and all-reduces the full
input instead. A span therefore stands for any call of its *family* with the same input, oldest first.

Of a damaged file spans or calls are lost, and order says nothing across the gap. torch writes one thread after another,
so that a file that ends early may lack a whole thread of the backend, or the later calls. There one step after the
other is looked at, and in it each family and size of which as many spans as calls are left; none of its spans may be
later than the thread at which the file ends. Of a file with a corrupt part nothing is matched.
"""

from __future__ import annotations

from collections import defaultdict, deque
from typing import NamedTuple

import polars as pl

from tracekit.model import names
from tracekit.model.collectives.calls import first_numel
from tracekit.model.event_kinds import Kinds
from tracekit.model.recordings import RUN
from tracekit.model.steps import is_damage, step_at
from tracekit.read.findings import AROUND_EVENTS, CORRUPT

_FAMILY = {"reduce_scatter": "reduction", "all_reduce": "reduction", "reduce": "reduction"}
# How the step of a span was found whose call may be another one's, or lost.
UNSURE = "time: the file is damaged"

_Found = tuple[int | None, int | None]  # launched_ns, call
_NEVER = 2**62
_NONE: _Found = (None, None)
_Recording = tuple[int, int]  # rank, cycle


class _Call(NamedTuple):
    start: int
    call: int


def match_spans(spans: pl.DataFrame, calls: pl.DataFrame, steps: pl.DataFrame, damage: pl.DataFrame) -> pl.DataFrame:
    """Return `spans` by start with `call`, `launched_ns` and `linked_by`, the call's null where none is known to fit.

    No earlier call fits a span whose call was before the recording. `damage`: the files that lack events (rank, cycle,
    `horizon_ns`: until when they hold all calls, null where that is not known; see :func:`horizons`).
    """
    spans = spans.sort("start_ns")
    calls = calls.sort("start_ns")
    horizon: dict[_Recording, int | None] = {(rank, cycle): at for rank, cycle, at in damage.iter_rows()}
    by_order, unsure = _by_order(spans, calls, horizon)
    found = by_order | _by_steps(spans, calls, steps, horizon)
    rows = [found.get(row, _NONE) for row in range(spans.height)]
    sources = ("order" if call is not None else "time" for _, call in rows)
    linked = [UNSURE if row in unsure and row not in found else source for row, source in enumerate(sources)]
    return spans.with_columns(
        pl.Series("launched_ns", [launched for launched, _ in rows], dtype=pl.Int64),
        pl.Series("call", [call for _, call in rows], dtype=pl.Int64),
        pl.Series("linked_by", linked, dtype=pl.String),
    )


def horizons(repairs: pl.DataFrame, kinds: Kinds, spans: pl.DataFrame) -> pl.DataFrame:
    """Return the files that lack events: rank, cycle, `horizon_ns`, null where a part of the file is corrupt.

    It is the last start on the thread at which the file ends, where that is one that calls, else the end of time.
    """
    lossy = repairs.drop_nulls("rank").filter(is_damage(), ~pl.any_horizontal(_says(part) for part in AROUND_EVENTS))
    files = lossy.group_by(RUN).agg(pl.col("what").str.starts_with(CORRUPT).any().alias("is_corrupt"))
    if files.is_empty():
        return pl.DataFrame(schema={"rank": pl.Int32, "cycle": pl.Int32, "horizon_ns": pl.Int64})
    thread = [*RUN, "pid", "tid"]
    events = pl.concat([part.select(*thread, "index", "ts_ns") for part in kinds])
    last = events.sort("index").unique(RUN, keep="last")
    backend = spans.select(thread).unique()
    callers = last.join(backend, on=thread, how="anti", nulls_equal=True)
    at = events.join(callers.select(thread), on=thread, how="semi").group_by(RUN).agg(pl.col("ts_ns").max())
    horizon = pl.when(~pl.col("is_corrupt")).then(pl.col("ts_ns").fill_null(_NEVER)).alias("horizon_ns")
    return files.join(at, on=RUN, how="left").select(*RUN, horizon)


def _says(what: str) -> pl.Expr:
    return pl.col("what").str.contains(what, literal=True)


def _family(kind: str | None) -> str | None:
    return _FAMILY.get(kind or "", kind)


def _by_order(
    spans: pl.DataFrame, calls: pl.DataFrame, damaged: dict[_Recording, int | None]
) -> tuple[dict[int, _Found], set[int]]:
    """Return the calls of spans (by row) of whole files, and the spans of damaged ones whose call can be any."""
    waiting: dict[tuple[object, ...], deque[_Call]] = defaultdict(deque)
    called: set[tuple[object, ...]] = set()
    for rank, cycle, call, kind, numel, start in calls.select(*RUN, "call", "kind", "in_numel", "start_ns").iter_rows():
        waiting[rank, cycle, _family(kind), numel].append(_Call(start, call))
        called.add((rank, cycle, _family(kind)))
    found: dict[int, _Found] = {}
    unsure: set[int] = set()
    for row, (rank, cycle, name, dims, start) in enumerate(
        spans.select(*RUN, "name", "input_dims", "start_ns").iter_rows()
    ):
        family = _family(names.kind_of(name))
        if (rank, cycle) in damaged:
            unsure |= {row} if (rank, cycle, family) in called else set()
            continue
        # Operators of older torch have no shapes: a call of unknown size may be any span's.
        queues = [waiting[rank, cycle, family, n] for n in (first_numel(dims) if dims else 0, None)]
        fitting = [q for q in queues if q and q[0].start <= start]
        if fitting:
            found[row] = min(fitting, key=lambda q: q[0]).popleft()
    return found, unsure


def _by_steps(
    spans: pl.DataFrame, calls: pl.DataFrame, steps: pl.DataFrame, horizon: dict[_Recording, int | None]
) -> dict[int, _Found]:
    """Return the calls of spans (by row) of files that end early: step by step, where the numbers of both agree."""
    if all(at is None for at in horizon.values()):
        return {}
    called: dict[tuple[object, ...], list[_Call]] = defaultdict(list)
    seen: dict[tuple[object, ...], list[tuple[int, int]]] = defaultdict(list)
    beyond: set[tuple[object, ...]] = set()
    of_calls = step_at(calls, steps, "start_ns").select(*RUN, "step", "call", "kind", "in_numel", "start_ns")
    for rank, cycle, step, call, kind, numel, start in of_calls.iter_rows():
        called[rank, cycle, step, _family(kind), numel].append(_Call(start, call))
    of_spans = step_at(spans, steps, "start_ns").select(*RUN, "step", "name", "input_dims", "start_ns")
    for row, (rank, cycle, step, name, dims, start) in enumerate(of_spans.iter_rows()):
        at = horizon.get((rank, cycle))
        if at is None or start > at:
            beyond.add((rank, cycle, step))
        elif dims:
            seen[rank, cycle, step, _family(names.kind_of(name)), first_numel(dims)].append((row, start))
    return {
        row: call
        for key, rows in seen.items()
        if key[:3] not in beyond and len(rows) == len(called[key])
        if all(call.start <= at for call, (_, at) in zip(called[key], rows, strict=True))
        for call, (row, _) in zip(called[key], rows, strict=True)
    }
