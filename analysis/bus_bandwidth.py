"""Bus bandwidth of a fabric by the size of a call: fitted to measured sizes, and told between them.

python analysis/bus_bandwidth.py TABLE.csv [--format json] [-o FILE.png]

TABLE.csv is what nccl-tests prints, with a fabric a row: fabric, kind, ranks, bytes, busbw_gb_s.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
import script

from tracekit.timing.bandwidth_table import COLUMNS, bus_bandwidth

if TYPE_CHECKING:
    import altair as alt


def chart(table: pl.DataFrame) -> alt.TopLevelMixin:
    """Bus bandwidth over size: the fit as a line inside its interval, what was measured as points."""
    import altair as alt

    base = alt.Chart(table.with_columns(pl.col("bytes") / 2**20)).encode(
        x=alt.X("bytes:Q", title="MiB of payload").scale(type="log", base=2),
        color=alt.Color("fabric:N", title=None, legend=alt.Legend(labelLimit=0)),
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
        script.write(bus_bandwidth(script.read_table(given.table, COLUMNS)), given, chart)
