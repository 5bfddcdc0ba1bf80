"""Allocations and frees of the first optimizer steps, from the strategy's own code run in a process of its own."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import polars as pl

from tracekit import training
from tracekit.errors import UsageError
from tracekit.plan.program_arguments import arguments
from tracekit.strategies import find

if TYPE_CHECKING:
    from tracekit.manifest import Manifest

DRY_MEMORY = training.RUNNERS / "dry_memory.py"
# In the order of time; `storage` names what is allocated, resized (FSDP2 does) and freed.
CHANGES_SCHEMA = pl.Schema(
    {
        "storage": pl.Int64,
        "delta_bytes": pl.Int64,
        "stream": pl.Int32,
        "step": pl.Int32,
        "phase": pl.String,
        "layer": pl.String,
        "operator": pl.String,
        "category": pl.String,
    }
)


def changes(manifest: Manifest, model: str) -> pl.DataFrame:
    """What rank 0 allocates and frees in the first steps of training `model` as the manifest says: CHANGES_SCHEMA.

    Raises:
        UsageError: the strategy cannot run without data, or the training program refuses an option.
    """
    strategy = find(manifest.strategy)
    if strategy.dry_step == "not at all":
        raise UsageError(f"the memory of {strategy.name} cannot be planned whole: no step of it runs in one process")
    mesh = ",".join(f"{axis.axis}={axis.size}" for axis in manifest.mesh)
    program = ["--strategy", strategy.name, "--mesh", mesh, *arguments(manifest, model)]
    try:
        printed = json.loads(training.started(DRY_MEMORY, program).splitlines()[-1])
    except training.LaunchError as error:
        raise UsageError(f"the memory of {strategy.name} is refused by the dry run: {error}") from None
    schema = {name: CHANGES_SCHEMA[name] for name in CHANGES_SCHEMA.names() if name != "category"}
    rows = pl.DataFrame(printed["changes"], schema=schema, orient="row")
    categories = pl.Series("category", printed["categories"], pl.String)
    rows = rows.with_columns(categories.gather(rows["storage"]))
    # What forward makes and frees was not saved for backward.
    short = (pl.col("phase").last() == "forward") & (pl.col("delta_bytes").sum() == 0)
    passing = (pl.col("category") == "activations") & short.over("storage")
    return rows.with_columns(pl.when(passing).then(pl.lit("temporaries")).otherwise("category").alias("category"))
