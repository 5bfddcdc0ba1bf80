"""Bus bandwidth of a fabric by the size of a call: α + c·√s + β·s fitted to measured sizes, and told between them.

python analysis/bus_bandwidth.py TABLE.csv [--format json] [-o FILE.png]

TABLE.csv is what nccl-tests prints, with a fabric a row: fabric, kind, ranks, bytes, busbw_gb_s. Bus bandwidth is as
nccl-tests defines it (doc/PERFORMANCE.md): bytes over time, times what each rank of a ring sends for a byte of payload.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
import script

from tracekit.errors import InputError
from tracekit.timing import cost

if TYPE_CHECKING:
    import altair as alt

COLUMNS = ("fabric", "kind", "ranks", "bytes", "busbw_gb_s")
GROUP = ("fabric", "kind", "ranks")


def bus_bandwidth(table: pl.DataFrame) -> pl.DataFrame:
    """At each power of two from the smallest to the largest size of a fabric: predicted, and measured where it was.

    `busbw_gb_s` with its interval is 10⁹ bytes a second. `error` is what a measured size is predicted off by from the
    other sizes of its fabric alone; null where it was not measured, and at the smallest and the largest.
    """
    parts = [_fabric(rows.sort("bytes")) for _, rows in table.group_by(GROUP, maintain_order=True)]
    return pl.concat(parts)


def _fabric(rows: pl.DataFrame) -> pl.DataFrame:
    fabric, kind, ranks = rows.select(GROUP).row(0)
    crossed = cost.crossings(kind, ranks)
    sizes = rows["bytes"].to_list()
    times = [round(s * crossed / gb_s) for s, gb_s in rows.select("bytes", "busbw_gb_s").rows()]
    whole = cost.fit(sizes, times, kind=kind, ranks=ranks, source=fabric)
    measured = dict(zip(sizes, rows["busbw_gb_s"], strict=True))
    found: list[tuple[object, ...]] = []
    for nbytes in sorted({*sizes, *_powers(sizes[0], sizes[-1])}):
        told, low, high = whole.time_ns(nbytes)
        bandwidths = [nbytes * crossed / ns for ns in (told, high, low)]
        found.append((fabric, kind, ranks, nbytes, *bandwidths, measured.get(nbytes), _unseen(nbytes, sizes, times, kind, ranks)))
    columns = [*GROUP, "bytes", "busbw_gb_s", "low_gb_s", "high_gb_s", "measured_gb_s", "error"]
    types = {"measured_gb_s": pl.Float64, "error": pl.Float64}
    return pl.DataFrame(found, columns, schema_overrides=types, orient="row")


def _powers(first: int, last: int) -> list[int]:
    """Powers of two from the first to the last size."""
    return [2**k for k in range(first.bit_length() - 1, last.bit_length()) if first <= 2**k <= last]


def _unseen(nbytes: int, sizes: list[int], times: list[int], kind: str, ranks: int) -> float | None:
    """Predicted over measured bandwidth, less 1, by a fit to the other sizes."""
    if nbytes not in sizes[1:-1]:
        return None
    place = sizes.index(nbytes)
    others = cost.fit(sizes[:place] + sizes[place + 1 :], times[:place] + times[place + 1 :], kind=kind, ranks=ranks)
    return times[place] / others.time_ns(nbytes)[0] - 1


def read(path: Path) -> pl.DataFrame:
    """The measured sizes. Raises InputError where the file is no such table."""
    try:
        table = pl.read_csv(path)
    except pl.exceptions.PolarsError as error:
        raise InputError(f"{path}: this is no table of bus bandwidths: {str(error).splitlines()[0]}") from None
    missing = [name for name in COLUMNS if name not in table.columns]
    if missing:
        raise InputError(f"{path}: there is no column {', '.join(missing)}; needed are {', '.join(COLUMNS)}")
    return table.filter(pl.col("busbw_gb_s") > 0, pl.col("bytes") > 0)


def chart(table: pl.DataFrame) -> alt.LayerChart:
    """Bus bandwidth over size: the fit as a line inside its interval, what was measured as points."""
    import altair as alt

    base = alt.Chart(table.with_columns(pl.col("bytes") / 2**20)).encode(
        x=alt.X("bytes:Q", title="MiB of payload").scale(type="log", base=2), color=alt.Color("fabric:N", title=None)
    )
    low = alt.Y("low_gb_s:Q", title="bus bandwidth, GB/s")
    band = base.mark_area(opacity=0.15).encode(y=low, y2="high_gb_s:Q")
    line, points = base.mark_line().encode(y="busbw_gb_s:Q"), base.mark_point(filled=True).encode(y="measured_gb_s:Q")
    return (band + line + points).properties(width=460, height=300)


if __name__ == "__main__":
    parser = script.parser(__doc__, runs=None)
    parser.add_argument("table", metavar="TABLE.csv", type=Path, help="fabric, kind, ranks, bytes, busbw_gb_s")
    given = parser.parse_args()
    with script.one_sentence():
        script.write(bus_bandwidth(read(given.table)), given, chart)
