"""As-of joins: for each time in one table, the row of another that began last (its step, layer or call)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

_IntArray = npt.NDArray[np.int64]
_LONG_AGO = -(2**63)


def latest(table: pl.DataFrame, time: str, rows: pl.DataFrame, start: str, by: list[str]) -> pl.DataFrame:
    """Return, for each row of `table`, the row of `rows` that began last at or before its `time`.

    Only rows with the same `by` count; of several that begin at one moment it is the last one. Where there is none, or
    the time is null, all columns are null. `rows` is sorted by `start`; those without a start are ignored.
    """
    if rows[start].null_count():
        rows = rows.drop_nulls(start)
    if rows.is_empty() or table.is_empty():
        return _nothing(rows, table.height)
    times = table[time].fill_null(_LONG_AGO).to_numpy()
    starts = rows[start].to_numpy()
    if _one_key(table, rows, by):
        found = np.searchsorted(starts, times, side="right") - 1
    else:
        found = _by_key(times, starts, *_keys(table, rows, by))
    if (found < 0).any():
        # A row of nulls at the end, where -1 points.
        rows = pl.concat([rows, _nothing(rows, 1)])
    return rows[found]


def around(table: pl.DataFrame, time: str, rows: pl.DataFrame, span: tuple[str, str], by: list[str]) -> pl.DataFrame:
    """Return the rows of :func:`latest`, null where that row (`span`: its start and end columns) ended at or before."""
    start, end = span
    found = latest(table, time, rows, start, by)
    inside = (table[time] < found[end]).fill_null(value=False)
    return found if inside.all() else found.select(pl.when(inside).then(pl.all()))


def _nothing(rows: pl.DataFrame, height: int) -> pl.DataFrame:
    return pl.DataFrame([pl.Series(c.name, [None], c.dtype).new_from_index(0, height) for c in rows])


def _one_key(table: pl.DataFrame, rows: pl.DataFrame, by: list[str]) -> bool:
    """Return whether all rows of both tables share one key, as they do in a trace of one rank."""
    columns = [frame[name] for name in by for frame in (table, rows)]
    ends = [(c.null_count(), c.min(), c.max()) for c in columns]
    same = all(nulls == 0 and low == high for nulls, low, high in ends)
    return same and all(a == b for a, b in zip(ends[::2], ends[1::2], strict=True))


def _keys(table: pl.DataFrame, rows: pl.DataFrame, by: list[str]) -> tuple[_IntArray, _IntArray]:
    """Return the numbers of the keys of both tables' rows; -1 for keys that `rows` lacks."""
    known = rows.select(by).unique(maintain_order=True).with_row_index("__key")
    numbers = (
        frame.select(by).join(known, on=by, how="left", maintain_order="left")["__key"].cast(pl.Int64).fill_null(-1)
        for frame in (table, rows)
    )
    of_table, of_rows = (n.to_numpy() for n in numbers)
    return of_table, of_rows


def _by_key(times: _IntArray, starts: _IntArray, of_table: _IntArray, of_rows: _IntArray) -> _IntArray:
    found = np.full(times.shape, -1, np.int64)
    table_order, rows_order = np.argsort(of_table, kind="stable"), np.argsort(of_rows, kind="stable")
    keys = np.arange(of_rows.max() + 1)
    table_ends = np.searchsorted(of_table[table_order], [keys, keys + 1])
    rows_ends = np.searchsorted(of_rows[rows_order], [keys, keys + 1])
    for (first, last), (low, high) in zip(table_ends.T, rows_ends.T, strict=True):
        here = table_order[first:last]
        candidates = rows_order[low:high]
        nth = np.searchsorted(starts[candidates], times[here], side="right") - 1
        found[here] = np.where(nth >= 0, candidates[nth], -1)
    return found
