"""Bus bandwidth of fabrics from a table of measured sizes: fitted, and told between them.

Bus bandwidth is as nccl-tests defines it (doc/PERFORMANCE.md): bytes over time, times what each rank of a ring sends
for a byte of payload.
"""

from __future__ import annotations

import polars as pl

from tracekit.timing import cost

#: Columns of a table of measured sizes.
COLUMNS = ("fabric", "kind", "ranks", "bytes", "busbw_gb_s")
_GROUP = ("fabric", "kind", "ranks")


def bus_bandwidth(table: pl.DataFrame) -> pl.DataFrame:
    """At each power of two from the smallest to the largest size of a fabric: predicted, and measured where it was.

    `busbw_gb_s` with its interval is 10⁹ bytes a second. `error` is what a measured size is predicted off by from the
    other sizes of its fabric alone; null where it was not measured, and at the smallest and the largest.
    """
    usable = table.filter(pl.col("busbw_gb_s") > 0, pl.col("bytes") > 0)
    parts = [_fabric(rows.sort("bytes")) for _, rows in usable.group_by(_GROUP, maintain_order=True)]
    return pl.concat(parts) if parts else _frame([])


def _frame(rows: list[tuple[object, ...]]) -> pl.DataFrame:
    bandwidths = ("busbw_gb_s", "low_gb_s", "high_gb_s", "measured_gb_s", "error")
    sizes = {"fabric": pl.String, "kind": pl.String, "ranks": pl.Int64, "bytes": pl.Int64}
    return pl.DataFrame(rows, {**sizes, **dict.fromkeys(bandwidths, pl.Float64)}, orient="row")


def _fabric(rows: pl.DataFrame) -> pl.DataFrame:
    fabric, kind, ranks = rows.select(_GROUP).row(0)
    crossed = cost.crossings(kind, ranks)
    sizes = rows["bytes"].to_list()
    # At 1 GB/s a byte takes 1 ns.
    times = [round(nbytes * crossed / gb_s) for nbytes, gb_s in rows.select("bytes", "busbw_gb_s").rows()]
    whole = cost.fit(sizes, times, kind=kind, ranks=ranks, source=fabric)
    measured = dict(zip(sizes, rows["busbw_gb_s"], strict=True))
    found: list[tuple[object, ...]] = []
    for nbytes in sorted({*sizes, *_powers(sizes[0], sizes[-1])}):
        told, low, high = whole.time_ns(nbytes)
        bandwidths = [nbytes * crossed / ns for ns in (told, high, low)]
        error = _unseen(sizes.index(nbytes), sizes, times, kind, ranks) if nbytes in sizes[1:-1] else None
        found.append((fabric, kind, ranks, nbytes, *bandwidths, measured.get(nbytes), error))
    return _frame(found)


def _powers(first: int, last: int) -> list[int]:
    """Powers of two from the first to the last size."""
    return [2**k for k in range(first.bit_length() - 1, last.bit_length()) if first <= 2**k <= last]


def _unseen(place: int, sizes: list[int], times: list[int], kind: str, ranks: int) -> float:
    """Predicted over measured bandwidth, less 1, of the size at that place, by a fit to the other sizes."""
    others = cost.fit(sizes[:place] + sizes[place + 1 :], times[:place] + times[place + 1 :], kind=kind, ranks=ranks)
    return times[place] / others.time_ns(sizes[place])[0] - 1
