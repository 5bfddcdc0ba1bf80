"""Step time on more GPUs: the latency of a ring grows with its ranks, and one α a rank and call, learnt from one model,
predicts the others.

python analysis/scaling.py TABLE.csv [--format json] [-o FILE.png]

TABLE.csv has a row a measured run: model, gpus, sharding (FULL_SHARD or SHARD_GRAD_OP) and step_s. Source of the form:
a ring takes N-1 steps, each of latency α (Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication
Operations in MPICH"), and fully sharded training issues 3 collectives a wrapped unit and step, 2 where parameters stay
gathered (Zhao et al., "PyTorch FSDP").
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import polars as pl
import script

from tracekit.errors import InputError, UsageError

if TYPE_CHECKING:
    import altair as alt

CALLS_PER_UNIT = {"FULL_SHARD": 3, "SHARD_GRAD_OP": 2}
# Of MosaicML's decoders; each layer is wrapped, and the root.
LAYERS = {"1b": 24, "3b": 32, "7b": 32, "13b": 40, "30b": 48, "70b": 80}
COLUMNS = ("model", "gpus", "sharding", "step_s")


class Alpha(NamedTuple):
    """Latency of a rank and call, in s; `error`: the most that a step of the group of a size left out was off by."""

    fitted: float
    error: float


def scaling(table: pl.DataFrame, learn: str, gpus: list[int], layers: dict[str, int]) -> pl.DataFrame:
    """Step time of each model but `learn` on so many GPUs, from its smallest measured group: one row each.

    Raises:
        UsageError: `learn` was not measured on three sizes of the group, or a model's layers or sharding are unknown.
    """
    alpha = learnt(table.filter(model=learn).sort("gpus"), learn, layers)
    rows: list[tuple[str, int, float, float, float, int, float]] = []
    for name in table["model"].unique(maintain_order=True):
        if name == learn:
            continue
        model, base, sharding, step = table.filter(model=name).sort("gpus").select(COLUMNS).row(0)
        for count in (count for count in gpus if count > base):
            time = step + calls(model, sharding, layers) * (count - base) * alpha.fitted
            # More GPUs do not make a step shorter that does the same work on each.
            low, high = max(step, time * (1 - alpha.error)), time * (1 + alpha.error)
            rows.append((model, count, time, low, high, base, step))
    columns = ["model", "gpus", "step_s", "low_s", "high_s", "from_gpus", "from_step_s"]
    return pl.DataFrame(rows, columns, orient="row")


def learnt(table: pl.DataFrame, name: str, layers: dict[str, int]) -> Alpha:
    """α from the rows of one model by least squares, and its error on sizes of the group that it had not seen."""
    if table.height < 3:
        raise UsageError(f"{name} was measured on {table.height} sizes of the group: three tell α and its error")
    (model, base, sharding, step), *more = table.select(COLUMNS).rows()
    number = calls(model, sharding, layers)
    points = [(number * (row[1] - base), row[3] - step) for row in more]
    errors = [abs(x * slope(points[:i] + points[i + 1 :]) - y) / (step + y) for i, (x, y) in enumerate(points)]
    return Alpha(slope(points), max(errors))


def slope(points: list[tuple[int, float]]) -> float:
    """The line through the origin of least squares."""
    return sum(x * y for x, y in points) / sum(x * x for x, _ in points)


def calls(model: str, sharding: str, layers: dict[str, int]) -> int:
    """Collectives of a step: so many a unit, a unit a layer and the root."""
    if model not in layers:
        raise UsageError(f"how many layers {model} has is not known: give --layers {model}=N")
    if sharding not in CALLS_PER_UNIT:
        raise UsageError(f"{model} is sharded by {sharding!r}: choose from {', '.join(CALLS_PER_UNIT)}")
    return CALLS_PER_UNIT[sharding] * (layers[model] + 1)


def read(path: Path) -> pl.DataFrame:
    """The measured runs. Raises InputError where the file is no such table."""
    try:
        table = pl.read_csv(path)
    except pl.exceptions.PolarsError as error:
        raise InputError(f"{path}: this is no table of measured runs: {str(error).splitlines()[0]}") from None
    missing = [name for name in COLUMNS if name not in table.columns]
    if missing:
        raise InputError(f"{path}: there is no column {', '.join(missing)}; needed are {', '.join(COLUMNS)}")
    return table


def chart(table: pl.DataFrame) -> alt.LayerChart:
    """Step time over the number of GPUs, as a multiple of the measured one: a line a model inside its interval."""
    import altair as alt

    start = table.unique("model", maintain_order=True).select(
        "model", pl.col("from_gpus").alias("gpus"), *(pl.lit(1.0).alias(name) for name in ("ratio", "low", "high"))
    )
    told = table.select("model", "gpus", *(
        (pl.col(f"{name}_s") / pl.col("from_step_s")).alias(to)
        for name, to in (("step", "ratio"), ("low", "low"), ("high", "high"))
    ))  # fmt: skip
    base = alt.Chart(pl.concat([start, told])).encode(
        x=alt.X("gpus:Q", title="GPUs").scale(type="log", base=2),
        color=alt.Color("model:N", sort=list(LAYERS), title=None),
    )
    band = base.mark_area(opacity=0.15).encode(y=alt.Y("low:Q", title="step time over the measured one"), y2="high:Q")
    line = base.mark_line(point=True).encode(y=alt.Y("ratio:Q").scale(zero=False))
    return (band + line).properties(width=420, height=280, title="Predicted from one latency a rank and call")


def pair(text: str) -> tuple[str, int]:
    """NAME=N as the type of an option."""
    name, _, count = text.partition("=")
    return name, script.positive(count)


if __name__ == "__main__":
    parser = script.parser(__doc__, runs=None)
    parser.add_argument("table", metavar="TABLE.csv", type=Path, help="measured runs: model, gpus, sharding, step_s")
    parser.add_argument("--learn-from", default="7b", metavar="MODEL", help="whose rows tell α (7b)")
    parser.add_argument("--gpus", nargs="+", type=script.positive, default=[256, 512], metavar="N", help="256 512")
    parser.add_argument("--layers", nargs="+", type=pair, default=[], metavar="MODEL=N", help="layers of other models")
    given = parser.parse_args()
    with script.one_sentence():
        known = {**LAYERS, **dict(given.layers)}
        script.write(scaling(read(given.table), given.learn_from, given.gpus, known), given, chart)
