"""Runs made by hand: two ranks, three steps, five layers and the root, with numbers one can check on paper.

A step lasts 1,000 µs. Each of the six units computes 50 µs forward and 50 µs backward, without gaps within a
phase. Its all-gather of 40 µs runs just before its forward, its reduce-scatter of 40 µs just after its
backward: all of them lie under a neighbour's compute but the root's two. So a rank and step have 600 µs of
compute and 480 µs of communication, 80 of them exposed.
"""

from __future__ import annotations

import polars as pl
from fakes import FakeRun, blocks_of

from tracekit.manifest import Axis, Held, Manifest, Parameter, Precision, RankInfo, StepTimes, Unit
from tracekit.model.collectives.collectives import COLLECTIVES_SCHEMA
from tracekit.read.traces import REPAIRS_SCHEMA

US = 1_000
STEP = 1_000 * US
UNITS = ["", *(f"layers.{i}" for i in range(5))]
NUMEL = 1_000
PSI = NUMEL * len(UNITS)

STEPS = {
    "rank": pl.Int32,
    "cycle": pl.Int32,
    "step": pl.Int64,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "complete": pl.Boolean,
    "reason": pl.String,
}
WORK = {
    "rank": pl.Int32,
    "call": pl.Int64,
    "cycle": pl.Int32,
    "step": pl.Int64,
    "index": pl.Int64,
    "device": pl.String,
    "lane": pl.String,
    "class": pl.String,
    "name": pl.String,
    "start_ns": pl.Int64,
    "dur_ns": pl.Int64,
    "launched_ns": pl.Int64,
    "linked_by": pl.String,
    "layer": pl.String,
    "phase": pl.String,
}
MEMORY = {
    "rank": pl.Int32,
    "cycle": pl.Int32,
    "device": pl.String,
    "ts_ns": pl.Int64,
    "delta_bytes": pl.Int64,
    "allocated_bytes": pl.Int64,
    "reserved_bytes": pl.Int64,
    "address": pl.Int64,
    "category": pl.String,
    "layer": pl.String,
    "phase": pl.String,
}
RANKS = {
    "file": pl.String,
    "rank": pl.Int32,
    "rank_from": pl.String,
    "cycle": pl.Int32,
    "host": pl.String,
    "num_events": pl.Int64,
    "first_step": pl.Int64,
    "last_step": pl.Int64,
    "complete": pl.Boolean,
}
TABLES = {
    "steps": STEPS,
    "work": WORK,
    "collectives": COLLECTIVES_SCHEMA,
    "allocations": MEMORY,
    "repairs": REPAIRS_SCHEMA,
    "ranks": RANKS,
}


def empty_run(name: str = "empty") -> FakeRun:
    """A run that recorded nothing."""
    tables = {table: pl.DataFrame(schema=schema) for table, schema in TABLES.items()}
    facts = {"psi": None, "world_size": None, "missing_ranks": [], "blocks": blocks_of([])}
    return FakeRun(name=name, paths=[], manifest=None, **facts, **tables)


def fake_run(name: str = "fsdp2", *, num_ranks: int = 2, num_steps: int = 3, base_ns: int = 10**18) -> FakeRun:
    """A run of `num_ranks` ranks and `num_steps` steps that begins at `base_ns`."""
    rows: dict[str, list[dict[str, object]]] = {table: [] for table in TABLES}
    for rank in range(num_ranks):
        rows["ranks"].append(_rank_row(rank, num_steps))
        for step in range(num_steps):
            _step(rows, rank, step, base_ns + step * STEP)
    tables = {table: pl.DataFrame(rows[table], schema=schema) for table, schema in TABLES.items()}
    blocks = blocks_of(rows["allocations"])
    facts = {"psi": PSI, "world_size": num_ranks, "missing_ranks": [], "blocks": blocks}
    return FakeRun(name=name, paths=[], manifest=manifest(num_ranks), **facts, **tables)


def manifest(num_ranks: int = 2) -> Manifest:
    """ZeRO-2 by FSDP2, which gathers once and reduce-scatters once: 2Ψ, all of it in the run."""
    return Manifest(
        format=1,
        strategy="zero2-fsdp2",
        world_size=num_ranks,
        psi=PSI,
        psi_train=PSI,
        tool="tracekit 0.1.0",
        mesh=[Axis("dp_shard", num_ranks)],
        backend="gloo",
        versions={"python": "3.11", "torch": "2.13.0", "cuda": None},
        precision=Precision("float32", "float32", None, "float32"),
        parameters=[Parameter(f"{unit}.weight".lstrip("."), [NUMEL], "float32", NUMEL, layer=unit) for unit in UNITS],
        units=[Unit(unit, reshard_after_forward=False) for unit in UNITS],
        hosts=["host0"],
        devices=["cpu"],
        step_times=StepTimes([STEP], [STEP], 1.0),
        ranks=[RankInfo(rank, "host0", "cpu", held_bytes=Held(4 * PSI, 0, 8 * PSI, 0)) for rank in range(num_ranks)],
    )


def _rank_row(rank: int, num_steps: int) -> dict[str, object]:
    return {
        "file": f"rank{rank}.json.gz",
        "rank": rank,
        "rank_from": "distributedInfo",
        "cycle": 0,
        "host": "host0",
        "num_events": 100,
        "first_step": 0,
        "last_step": num_steps - 1,
        "complete": True,
    }


def _step(rows: dict[str, list[dict[str, object]]], rank: int, step: int, at: int) -> None:
    here: dict[str, object] = {"rank": rank, "cycle": 0, "step": step}
    rows["steps"].append({**here, "start_ns": at, "end_ns": at + STEP, "complete": True})
    for i, layer in enumerate(UNITS):
        forward = at + (50 + 50 * i) * US
        backward = at + (950 - 50 * i - 50) * US
        last = step == 2 and i == 0
        _compute(rows, here, "aten::mm", layer, "forward", forward)
        _compute(rows, here, "aten::mm", layer, "backward", backward)
        _collective(rows, here, "all_gather", layer, "forward", forward - 40 * US)
        _collective(rows, here, "reduce_scatter", layer, "backward", backward + 50 * US, cut=last)
        _memory(rows, here, forward, 4_000, 8_000 + 4_000 * (i + 1), layer, "forward")
        _memory(rows, here, backward + 50 * US, -4_000, 8_000 + 4_000 * i, layer, "backward")


def _compute(rows, here, name, layer, phase, start) -> None:
    rows["work"].append(
        {
            **here,
            "index": len(rows["work"]),
            "device": "cpu",
            "lane": "thread 1",
            "class": "compute",
            "name": name,
            "start_ns": start,
            "dur_ns": 50 * US,
            "layer": layer,
            "phase": phase,
        }
    )


def _collective(rows, here, kind, layer, phase, start, *, cut: bool = False) -> None:
    index = len(rows["work"])
    place = {
        "index": index,
        "device": "cpu",
        "lane": "gloo",
        "layer": layer,
        "phase": phase,
        "start_ns": start,
    }
    rows["work"].append({**here, **place, "class": "comm", "name": f"gloo:{kind}", "dur_ns": 40 * US})
    rows["collectives"].append(
        {
            **here,
            **place,
            "kind": kind,
            "backend_kind": kind,
            "group_size": 2,
            "axis": "dp_shard",
            "dtype": "float32",
            "in_numel": NUMEL if kind == "reduce_scatter" else NUMEL // 2,
            "out_numel": NUMEL if kind == "all_gather" else NUMEL // 2,
            "payload_numel": NUMEL,
            "payload_bytes": None if cut else 4 * NUMEL,
            "passes": 1,
            "wire_bytes": None if cut else 2 * NUMEL,
            "dur_ns": 40 * US,
            "kind_from": "op",
            "bytes_from": None if cut else "shapes",
        }
    )


def _memory(rows, here, ts, delta, allocated, layer, phase) -> None:
    rows["allocations"].append(
        {
            **{key: here[key] for key in ("rank", "cycle")},
            "device": "cpu",
            "ts_ns": ts,
            "delta_bytes": delta,
            "allocated_bytes": allocated,
            "category": "gathered parameters",
            "layer": layer,
            "phase": phase,
        }
    )
