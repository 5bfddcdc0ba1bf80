"""Facts of a run beside its tables: how it was made, how much of it rests on known values, what was guessed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from tracekit.analyzers.complete_steps import of_complete_steps
from tracekit.analyzers.overlap import of_devices
from tracekit.report.by_device import several_devices

if TYPE_CHECKING:
    from tracekit.model.run import Run

Number = float | None


def description(run: Run) -> dict[str, Any]:
    """Settings from the manifest and how the run was read; values are plain, `None` where unknown.

    `coverage` counts collectives with known bytes; `guesses` tells, for what had to be inferred, from what
    and how often.
    """
    known = run.collectives["payload_bytes"].count()
    ranks = run.ranks.drop_nulls("num_events")  # the files of other cycles were not read
    return {
        **_from_manifest(run),
        "psi": run.psi,
        "num_ranks": ranks["rank"].n_unique(),
        "num_steps": run.steps.select("cycle", "step").drop_nulls().unique().height,
        "num_events": int(ranks["num_events"].sum()),
        "coverage": {"bytes_known": known, "collectives": run.collectives.height},
        "repairs": run.repairs.height,
        "guesses": {
            "rank_from": _counts(ranks, "rank_from"),
            "kind_from": _counts(run.collectives, "kind_from"),
            "bytes_from": _counts(run.collectives, "bytes_from"),
            "step_linked_by": _counts(run.work, "linked_by"),
        },
    }


def summary(run: Run) -> dict[str, Number]:
    """The numbers that runs are compared by, means over complete steps and ranks unless named otherwise.

    Where no step is complete they are over all steps, as the sentences are, and a sentence says so.

    Times are None where a rank has several devices: those stand apart in the tables, and no mean is of one of them.
    """
    steps = of_complete_steps(run, run.table("breakdown"))
    steps = steps.clear() if several_devices(run, steps) else steps
    hidden = of_devices(run, of_complete_steps(run, run.table("overlap", by=("rank", "step", "device"))))
    moved = of_complete_steps(run, run.table("totals"))
    hidden = hidden.clear() if several_devices(run, hidden) else hidden
    comm = int(hidden["comm_ns"].sum())
    return {
        "step_ns": _mean(steps["step_ns"]),
        "compute_ns": _mean(steps["compute_ns"]),
        "exposed_comm_ns": _mean(steps["exposed_comm_ns"]),
        "idle_ns": _mean(steps["idle_ns"]),
        "hidden_ratio": int(hidden["overlapped_ns"].sum()) / comm if comm else None,
        "num_collectives": _mean(moved["num_collectives"]),
        "theory_psi": _mean(moved["theory_psi"]),
        "plan_psi": _mean(moved["plan_psi"]),
        "measured_psi": _mean(moved["measured_psi"]),
        "payload_bytes": _mean(moved["payload_bytes"]),
        "wire_bytes": _mean(moved["wire_bytes"]),
        "peak_bytes": _highest(run.table("memory")["allocated_bytes"]),
    }


def _from_manifest(run: Run) -> dict[str, Any]:
    manifest = run.manifest
    if manifest is None:
        return {"strategy": None}
    precision = manifest.precision
    return {
        "strategy": manifest.strategy,
        "options": dict(manifest.options),
        "world_size": manifest.world_size,
        "mesh": {axis.axis: axis.size for axis in manifest.mesh},
        "backend": manifest.backend,
        "psi_train": manifest.psi_train,
        "micro_batches": manifest.micro_batches,
        "precision": {
            "param_dtype": precision.param_dtype,
            "reduce_dtype": precision.reduce_dtype,
            "storage_dtype": precision.storage_dtype,
        },
        "versions": {"tool": manifest.tool, **manifest.versions},
        "devices": list(manifest.devices),
        "hosts": list(manifest.hosts),
        "overhead_ratio": manifest.step_times.overhead_ratio,
    }


def _counts(table: pl.DataFrame, column: str) -> dict[str, int]:
    """Number of rows of each origin, `unknown` for null; nothing where the table does not tell."""
    if column not in table.columns:
        return {}
    counted = table.group_by(column).len().sort("len", column, descending=[True, False])
    return {origin or "unknown": count for origin, count in counted.iter_rows()}


def _mean(column: pl.Series) -> Number:
    value = column.mean()
    return float(value) if isinstance(value, int | float) else None


def _highest(column: pl.Series) -> Number:
    value = column.max()
    return float(value) if isinstance(value, int | float) else None
