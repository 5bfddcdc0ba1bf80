"""A plan compared with torch's own code, call by call.

`runners/dry_run.py` runs that code for N ranks in a process of its own, which needs torch; nothing here does.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import polars as pl

from tracekit import training
from tracekit.errors import UsageError
from tracekit.plan.program_arguments import arguments
from tracekit.plan.schema import PLAN_SCHEMA, Call, plan_frame
from tracekit.strategies import STRATEGIES, find

if TYPE_CHECKING:
    from tracekit.manifest import Manifest

DRY_RUN = training.RUNNERS / "dry_run.py"
_COMPARED = [name for name in PLAN_SCHEMA.names() if name not in ("payload_numel", "payload_bytes", "passes")]


def prove(manifest: Manifest, model: str) -> pl.DataFrame:
    """Every collective of one optimizer step as rank 0 of torch's own code issues it, with PLAN_SCHEMA.

    `model` is the size of the training programs' decoder that the manifest describes.

    Raises:
        UsageError: the strategy cannot run without data, or the training program refuses an option.
    """
    strategy = find(manifest.strategy)
    if not strategy.dry_run:
        able = ", ".join(name for name, other in STRATEGIES.items() if other.dry_run)
        raise UsageError(f"--prove {strategy.name} is not possible: only {able} run without data")
    mesh = ",".join(f"{axis.axis}={axis.size}" for axis in manifest.mesh)
    try:
        printed = training.started(DRY_RUN, ["--strategy", strategy.name, "--mesh", mesh, *arguments(manifest, model)])
    except training.LaunchError as error:
        raise UsageError(f"--prove {strategy.name} is refused by the dry run: {error}") from None
    # Torch may have had something to say before.
    return plan_frame(Call(*call) for call in json.loads(printed.splitlines()[-1])["calls"])


def differences(planned: pl.DataFrame, proved: pl.DataFrame) -> pl.DataFrame:
    """Calls that plan and proof do not share: place (number of the call), side (plan or proof), and the call.

    Calls are compared one by one in their order; an empty frame means that they agree.
    """
    sides = [
        frame.select(_COMPARED).with_row_index("place").with_columns(pl.lit(side).alias("side"))
        for side, frame in (("plan", planned), ("proof", proved))
    ]
    both = pl.concat(sides, how="vertical_relaxed")
    alone = pl.struct("place", *_COMPARED).is_duplicated().not_()
    return both.filter(alone).select("place", "side", *_COMPARED).sort("place", "side")
