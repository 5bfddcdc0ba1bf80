"""A recorded file whose collectives last their transfer alone, for tools that take a kernel's duration for its cost.

torch's profile-guided overlap scheduling does (torch 2.13, `torch/_inductor/fx_passes/profile_guided_estimation.py`):
it reads plain JSON and counts kernel rows with a `Collective name` in full, waits for other ranks included.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl

from tracekit.errors import InputError, UsageError
from tracekit.units import counted

if TYPE_CHECKING:
    from tracekit.model.run import Run
    from tracekit.read.findings import Finding

# Collectives and types as NCCL's rows have them.
_NAMES = {
    "all_gather": "_allgather_base",
    "reduce_scatter": "_reduce_scatter_base",
    "all_reduce": "allreduce",
    "all_to_all": "all_to_allv",
}
_DTYPES = {
    "float32": "Float",
    "float64": "Double",
    "float16": "Half",
    "bfloat16": "BFloat16",
    "int64": "Long",
    "int32": "Int",
    "int8": "Char",
    "uint8": "Byte",
    "bool": "Bool",
}
_LANE = "collectives, transfer only"


class Transfers(NamedTuple):
    """The document, and how many of the rank's collectives are in it and how many are not, since theirs is unknown."""

    document: dict[str, Any]
    num_known: int
    num_unknown: int

    def __str__(self) -> str:
        """What was done, in a sentence."""
        told = f"{counted(self.num_known, 'collective')} last their transfer"
        if self.num_unknown:
            told += f"; of {self.num_unknown} it is unknown, so they are named no more"
        return told


def transfers(run: Run, rank: int | None = None) -> Transfers:
    """The file of a rank (the lowest, unless told) with each collective's row as long as its transfer.

    Rows of a device are shortened where they stand. A run on CPUs has none, so kernel rows are made: name, group, types
    and sizes as NCCL's have them. A collective whose transfer is unknown keeps its row and loses its name.

    Raises:
        UsageError: the run has no such rank, or no collective of it has a known transfer.
        InputError: the file is no whole JSON document.
    """
    ranks: list[int] = run.ranks["rank"].drop_nulls().to_list()
    rank = rank if rank is not None else min(ranks, default=0)
    if rank not in ranks:
        raise UsageError(f"there is no rank {rank} in {run.name}: there are {', '.join(map(str, ranks))}")
    rows = run.collectives.filter(pl.col("rank") == rank, pl.col("dur_ns").is_not_null())
    known = rows.drop_nulls("transfer_ns")
    if known.is_empty():
        raise UsageError(
            f"the transfer of no collective of rank {rank} is known: it takes all ranks of a group to tell"
        )
    document = _read(_path(run, rank))
    events = document["traceEvents"]
    told = {row["index"]: row | {"ranks": _ranks(run, rank, row)} for row in known.iter_rows(named=True)}
    made = [_kernel(row) for index, row in told.items() if not _shorten(events, index, row)]
    for index, event in enumerate(events):
        if index not in told and isinstance(event, dict) and event.get("cat") == "kernel":
            (event.get("args") or {}).pop("Collective name", None)
    document["traceEvents"] = [*events, *made]
    return Transfers(document, known.height, rows.height - known.height)


def _ranks(run: Run, rank: int, row: dict[str, Any]) -> str | None:
    """The group as JSON: from the trace, else the ranks along its axis of the mesh; None where neither is known."""
    if row["members"] is not None:
        return f"[{row['members']}]"
    mesh = {axis.axis: axis.size for axis in run.manifest.mesh} if run.manifest else {}
    if run.world_size is not None and row["group_size"] == run.world_size:
        return json.dumps(list(range(run.world_size)))
    if row["axis"] not in mesh or math.prod(mesh.values()) != run.world_size:
        return None
    # Ranks are laid out with the last axis fastest.
    step = math.prod(size for place, size in enumerate(mesh.values()) if place > list(mesh).index(row["axis"]))
    first = rank - rank // step % mesh[row["axis"]] * step
    return json.dumps([first + place * step for place in range(mesh[row["axis"]])])


def _path(run: Run, rank: int) -> Path:
    name = run.ranks.filter(rank=rank)["file"][0]
    return next(path for path in run.files if str(path).endswith(name))


def _read(path: Path) -> dict[str, Any]:
    """The document, a bare list of events put into one."""
    from tracekit.read.decoding.content import blocks

    findings: list[Finding] = []
    try:
        document = json.loads(b"".join(blocks(path, findings)))
    except ValueError as error:
        raise InputError(f"{path}: this is no whole JSON document ({error}), so no trace can be made of it") from None
    if isinstance(document, list):
        document = {"traceEvents": document}
    if not isinstance(document, dict) or not isinstance(document.get("traceEvents"), list):
        raise InputError(f"{path}: there is no list of events in it")
    return document


def _shorten(events: list[Any], index: int, row: dict[str, Any]) -> bool:
    """Makes a device's row as long as the transfer, which ends when the row did; False where it is no such row."""
    event = events[index] if 0 <= index < len(events) else None
    if not isinstance(event, dict) or event.get("cat") != "kernel":
        return False
    event["ts"] = float(event["ts"]) + (row["dur_ns"] - row["transfer_ns"]) / 1000
    event["dur"] = row["transfer_ns"] / 1000
    event["args"] = {**_arguments(row), **(event.get("args") or {})}
    return True


def _kernel(row: dict[str, Any]) -> dict[str, Any]:
    """A kernel row for a collective of a CPU's backend."""
    return {
        "ph": "X",
        "cat": "kernel",
        "name": f"{row['kind']} (transfer)",
        "pid": row["rank"],
        "tid": _LANE,
        "ts": (row["start_ns"] + row["dur_ns"] - row["transfer_ns"]) / 1000,
        "dur": row["transfer_ns"] / 1000,
        "args": _arguments(row),
    }


def _arguments(row: dict[str, Any]) -> dict[str, Any]:
    named = {
        "Collective name": _NAMES.get(row["kind"], row["kind"]),
        "In msg nelems": row["in_numel"],
        "Out msg nelems": row["out_numel"],
        "Group size": row["group_size"],
        "dtype": _DTYPES.get(row["dtype"], row["dtype"]),
        "Process Group Name": row["group"],
        "Process Group Ranks": row["ranks"],
    }
    return {name: value for name, value in named.items() if value is not None}
