"""Step time on more GPUs by the latency of rings: one α a rank and call, learnt from one model, predicts others.

Source of the form: a ring takes N-1 steps, each of latency α (Thakur, Rabenseifner and Gropp, "Optimization of
Collective Communication Operations in MPICH"); fully sharded training issues 3 collectives a wrapped unit and step, 2
where parameters stay gathered (Zhao et al., "PyTorch FSDP").
"""

from __future__ import annotations

from typing import NamedTuple

import polars as pl

from tracekit.errors import UsageError

CALLS_PER_UNIT = {"FULL_SHARD": 3, "SHARD_GRAD_OP": 2}
#: Columns of a table of measured runs.
COLUMNS = ("model", "gpus", "sharding", "step_s")


class Alpha(NamedTuple):
    """Latency of a rank and call, in s; `error`: the most that a step of a size of the group left out was off by."""

    fitted: float
    error: float


def scaling(table: pl.DataFrame, learn: str, gpus: list[int], layers: dict[str, int]) -> pl.DataFrame:
    """Step time of each model but `learn` on so many GPUs, from its smallest measured group: one row each.

    `table` has COLUMNS; `layers` is by model. Times are s.

    Raises:
        UsageError: `learn` was not measured on three sizes of the group, or a model's layers or sharding are unknown.
    """
    alpha = learnt(table.filter(model=learn), learn, layers)
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
    (model, base, sharding, step), *more = table.sort("gpus").select(COLUMNS).rows()
    number = calls(model, sharding, layers)
    points = [(number * (row[1] - base), row[3] - step) for row in more]
    errors = [abs(x * _slope(points[:i] + points[i + 1 :]) - y) / (step + y) for i, (x, y) in enumerate(points)]
    return Alpha(_slope(points), max(errors))


def calls(model: str, sharding: str, layers: dict[str, int]) -> int:
    """Collectives of a step: so many a unit, a unit a layer and the root."""
    if model not in layers:
        raise UsageError(f"how many layers {model} has is not known: give --layers {model}=N")
    if sharding not in CALLS_PER_UNIT:
        raise UsageError(f"{model} is sharded by {sharding!r}: choose from {', '.join(CALLS_PER_UNIT)}")
    return CALLS_PER_UNIT[sharding] * (layers[model] + 1)


def _slope(points: list[tuple[int, float]]) -> float:
    """The line through the origin of least squares."""
    return sum(x * y for x, y in points) / sum(x * x for x, _ in points)
