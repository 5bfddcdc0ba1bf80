"""Step time on more GPUs: one ring latency a rank and call, learnt from one model of a table, predicts the others.

python analysis/scaling.py TABLE.csv [--format json] [-o FILE.png]

TABLE.csv has a row a measured run: model, gpus, sharding (FULL_SHARD or SHARD_GRAD_OP) and step_s.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
import script

from tracekit.timing.latency import COLUMNS, scaling

if TYPE_CHECKING:
    import altair as alt

# Of MosaicML's decoders; each layer is wrapped, and the root.
LAYERS = {"1b": 24, "3b": 32, "7b": 32, "13b": 40, "30b": 48, "70b": 80}


def chart(table: pl.DataFrame) -> alt.TopLevelMixin:
    """Step time over the number of GPUs, as a multiple of the measured one: a line a model inside its interval."""
    import altair as alt

    ones = (pl.lit(1.0).alias(name) for name in ("ratio", "low", "high"))
    start = table.unique("model", maintain_order=True).select("model", pl.col("from_gpus").alias("gpus"), *ones)
    over = {"ratio": "step_s", "low": "low_s", "high": "high_s"}
    told = table.select(
        "model", "gpus", *((pl.col(name) / pl.col("from_step_s")).alias(to) for to, name in over.items())
    )
    points = pl.concat([start, told])
    axis = alt.Axis(values=points["gpus"].unique().sort().to_list())
    base = alt.Chart(points).encode(
        x=alt.X("gpus:Q", title="GPUs", axis=axis).scale(type="log", base=2),
        color=alt.Color("model:N", sort=list(LAYERS), title=None),
    )
    band = base.mark_area(opacity=0.15).encode(y=alt.Y("low:Q", title="step time over the measured one"), y2="high:Q")
    line = base.mark_line(point=True).encode(y=alt.Y("ratio:Q").scale(zero=False))
    return (band + line).properties(width=420, height=280, title="Predicted from one latency a rank and call")


def layers(text: str) -> tuple[str, int]:
    """MODEL=N, as the type of an option."""
    name, _, count = text.partition("=")
    return name, script.positive(count)


if __name__ == "__main__":
    parser = script.parser(__doc__, runs=None)
    parser.add_argument("table", metavar="TABLE.csv", type=Path, help="measured runs: model, gpus, sharding, step_s")
    parser.add_argument("--learn-from", default="7b", metavar="MODEL", help="whose rows tell the latency (7b)")
    parser.add_argument("--gpus", nargs="+", type=script.positive, default=[256, 512], metavar="N", help="256 512")
    parser.add_argument("--layers", nargs="+", type=layers, default=[], metavar="MODEL=N", help="of other models")
    given = parser.parse_args()
    with script.one_sentence():
        known = {**LAYERS, **dict(given.layers)}
        measured = script.read_table(given.table, COLUMNS)
        script.write(scaling(measured, given.learn_from, given.gpus, known), given, chart)
