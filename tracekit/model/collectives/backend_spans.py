"""The calls of a CPU backend's spans (``gloo:all_reduce``): gloo writes no id, so kind, size and order decide.

A backend may run another collective than the one that was called: gloo has no reduce-scatter and all-reduces the full
input instead. A span therefore stands for any call of its *family* with the same input, oldest first.
"""

from __future__ import annotations

from collections import defaultdict, deque

import polars as pl

from tracekit.model import names
from tracekit.model.collectives.calls import first_numel
from tracekit.model.recordings import RUN

_FAMILY = {"reduce_scatter": "reduction", "all_reduce": "reduction", "reduce": "reduction"}


def match_spans(spans: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Return `spans` with `call` and `launched_ns`, null where no earlier call fits (it began before the window)."""
    waiting: dict[tuple[object, ...], deque[tuple[int, int]]] = defaultdict(deque)
    for rank, cycle, call, kind, numel, start in (
        calls.sort("start_ns").select(*RUN, "call", "kind", "in_numel", "start_ns").iter_rows()
    ):
        waiting[rank, cycle, _FAMILY.get(kind, kind), numel].append((start, call))
    spans = spans.sort("start_ns")
    found: list[tuple[int | None, int | None]] = []
    for rank, cycle, name, dims, start in spans.select(*RUN, "name", "input_dims", "start_ns").iter_rows():
        kind = names.kind_of(name)
        family = _FAMILY.get(kind or "", kind)
        # Operators of older torch have no shapes: a call of unknown size may be any span's.
        queues = [waiting[rank, cycle, family, n] for n in (first_numel(dims) if dims else 0, None)]
        fitting = [q for q in queues if q and q[0][0] <= start]
        found.append(min(fitting, key=lambda q: q[0]).popleft() if fitting else (None, None))
    return spans.with_columns(
        pl.Series("launched_ns", [launched for launched, _ in found], dtype=pl.Int64),
        pl.Series("call", [call for _, call in found], dtype=pl.Int64),
    )
