"""Runs made of the rows that a test writes down, and manifests made of a few numbers."""

from __future__ import annotations

from types import SimpleNamespace

import polars as pl

from tracekit.manifest import Axis, Held, Manifest, Parameter, Precision, RankInfo, Unit
from tracekit.model.collectives.collectives import COLLECTIVES_SCHEMA
from tracekit.model.device_time import compute_cover
from tracekit.model.devices.work import WORK_SCHEMA
from tracekit.model.memory.allocations import ALLOCATIONS_SCHEMA
from tracekit.model.memory.blocks import BLOCKS_SCHEMA
from tracekit.model.run import Run
from tracekit.model.steps import STEPS_SCHEMA
from tracekit.read.traces import REPAIRS_SCHEMA

US = 1_000
SCHEMAS = {
    "steps": STEPS_SCHEMA,
    "work": WORK_SCHEMA,
    "collectives": COLLECTIVES_SCHEMA,
    "allocations": ALLOCATIONS_SCHEMA,
    "repairs": REPAIRS_SCHEMA,
    "ranks": {"rank": pl.Int32, "host": pl.String, "num_events": pl.Int64},
}
PLACE = {"rank": 0, "cycle": 0, "device": "cuda:0"}


class FakeRun(SimpleNamespace):
    """The tables and facts of a run, as given, with what a run computes of its tables."""

    table = Run.table

    def __init__(self, **given) -> None:
        super().__init__(_tables={}, **given)

    @property
    def compute_cover(self):
        """As of a run."""
        return compute_cover(self.work)


def run_of(manifest=None, **tables) -> FakeRun:
    """A run with these rows in its tables; rank 0, cycle 0 and cuda:0 unless a row says otherwise."""
    frames = {
        name: pl.DataFrame([{**PLACE, **row} for row in tables.get(name, [])], schema=schema)
        for name, schema in SCHEMAS.items()
    }
    frames |= _numbered(frames["work"], frames["collectives"])
    frames["blocks"] = blocks_of(tables.get("allocations", []))
    facts = {"psi": manifest.psi, "world_size": manifest.world_size} if manifest else {"psi": None, "world_size": None}
    return FakeRun(name="fake", paths=[], manifest=manifest, missing_ranks=[], **facts, **frames)


def blocks_of(allocations) -> pl.DataFrame:
    """The blocks of these rows: a free ends the first open block of its device, category and size."""
    blocks: list[dict[str, object]] = []
    for row in ({**PLACE, **row} for row in allocations):
        key = {name: row[name] for name in ("rank", "cycle", "device", "category")} | {"bytes": abs(row["delta_bytes"])}
        if row["delta_bytes"] > 0:
            more = {name: row.get(name) for name in ("layer", "phase", "operator")}
            blocks.append({**key, **more, "start_ns": row["ts_ns"], "end_ns": None})
            continue
        ended = next((b for b in blocks if b["end_ns"] is None and key.items() <= b.items()), None)
        if ended is not None:
            ended |= {"end_ns": row["ts_ns"], "end_from": "recorded"}
    return pl.DataFrame(blocks, schema=BLOCKS_SCHEMA)


def _numbered(work, collectives) -> dict[str, pl.DataFrame]:
    """Work with an index a row and a piece for each collective that ran, and collectives with the index of theirs."""
    place = ["rank", "cycle", "device", "lane", "start_ns", "dur_ns"]
    ran = collectives.drop_nulls("dur_ns").join(work, on=place, how="anti", nulls_equal=True)
    own = ran.select(*place, "step", "layer", "phase", pl.lit("comm").alias("class"), pl.lit("nccl").alias("name"))
    work = pl.concat([work, own], how="diagonal")
    numbered = work.with_columns(pl.int_range(pl.len(), dtype=pl.Int64).alias("index"))
    nth = pl.int_range(pl.len()).over(place).alias("nth")
    comm = numbered.filter(pl.col("class") == "comm").with_columns(nth)
    found = comm.select(*place, "nth", pl.col("index").alias("found"))
    told = collectives.with_columns(nth).join(found, on=[*place, "nth"], how="left", maintain_order="left")
    indexed = told.with_columns(pl.coalesce("found", pl.lit(-1) - pl.int_range(pl.len())).alias("index"))
    return {"work": numbered, "collectives": indexed.drop("found", "nth")}


def work(kind, lane, start_us, end_us, *, step=5, **more) -> dict[str, object]:
    """A piece of work from start to end, in µs."""
    span = {"start_ns": start_us * US, "dur_ns": (end_us - start_us) * US}
    return {"class": kind, "lane": lane, "name": f"{kind} on {lane}", "step": step, **span, **more}


def collective(kind, lane, start_us, end_us, *, numel=None, step=5, **more) -> dict[str, object]:
    """A collective of `numel` float32 elements over a group of 2."""
    span = {"start_ns": start_us * US, "dur_ns": (end_us - start_us) * US}
    sizes = {}
    if numel is not None:
        passes = 2 if kind == "all_reduce" else 1
        ins, outs = {
            "all_gather": (numel // 2, numel),
            "reduce_scatter": (numel, numel // 2),
        }.get(kind, (numel, numel))
        sizes = {"in_numel": ins, "out_numel": outs, "payload_numel": numel, "payload_bytes": 4 * numel}
        sizes |= {"wire_bytes": 2 * passes * numel, "passes": passes, "dtype": "float32"}
    return {"kind": kind, "backend_kind": kind, "lane": lane, "step": step, **span, **sizes, **more}


def step(number, start_us, end_us, **more) -> dict[str, object]:
    """A complete step of rank 0."""
    return {"step": number, "start_ns": start_us * US, "end_ns": end_us * US, "complete": True, **more}


def common_fixture(*more) -> FakeRun:
    """A GEMM on stream 7 from 1010 to 1110 µs, an all-gather on stream 20 from 1060 to 1160, in step 5."""
    rows = [("compute", "stream 7", 1010, 1110), ("comm", "stream 20", 1060, 1160), *more]
    return run_of(
        steps=[step(5, 1000, 1200)],
        work=[work(*row) for row in rows],
        collectives=[collective("all_gather", *row[1:]) for row in rows if row[0] == "comm"],
    )


def parameter(name, *shape, layer="", **more) -> Parameter:
    """A float32 parameter."""
    numel = 1
    for size in shape:
        numel *= size
    return Parameter(name=name, shape=list(shape), dtype=more.pop("dtype", "float32"), numel=numel, layer=layer, **more)


def manifest_of(strategy, parameters, *, ranks=2, units=("a", "b", ""), reshard=None, **more) -> Manifest:
    """A manifest of `ranks` ranks that gathers in bf16 and reduces in fp32."""
    own = [entry for entry in parameters if entry.tied_to is None]
    held = Held(parameters=100, gradients=0, optimizer_state=200, buffers=10)
    values = {
        "format": 1,
        "strategy": strategy,
        "world_size": ranks,
        "psi": sum(entry.numel for entry in own),
        "psi_train": sum(entry.numel for entry in own if entry.requires_grad),
        "mesh": [Axis("dp_shard", ranks)],
        "precision": Precision("bfloat16", "float32"),
        "parameters": list(parameters),
        "units": [Unit(name, reshard) for name in units],
        "ranks": [RankInfo(rank=rank, device="cpu", held_bytes=held) for rank in range(ranks)],
    }
    return Manifest(**{**values, **more})


# Ψ = 24: units a and b of 8 elements, and 8 in the root.
SMALL = (
    parameter("first", 2, 2),
    parameter("a.weight", 4, 2, layer="a"),
    parameter("b.weight", 2, 4, layer="b"),
    parameter("last", 2, 2),
)
