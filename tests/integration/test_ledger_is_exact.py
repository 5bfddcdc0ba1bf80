"""Nothing of a recorded step is left unexplained: every strategy and option, in every step, layer, kind, axis and type.

The runs are those that test_runners makes, where it makes them with the same options; a session records each once.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import polars as pl
import pytest
from recorded_runs import FOUR_RANKS

import tracekit
from tracekit.analyzers.expectation import expectation
from tracekit.analyzers.ledger import ledger
from tracekit.plan import memory, plan
from tracekit.plan.schema import PLACES
from tracekit.strategies import STRATEGIES
from tracekit.theory import strategy_stage, zero_communication_volume

pytestmark = pytest.mark.integration

NO_SYNC = ("--micro-batches", "2", "--no-sync-every-micro-batch")
FROZEN = ("--freeze", r"layers\.0")
PREFIX = ("--freeze", "tok", "--freeze", r"layers\.[01]")
ODD = ("--model", "odd", "--tie-embeddings")
CLIP = ("--clip-grad-norm", "0.1")
OPTIONS = [
    ("ddp", ("--micro-batches", "3", "--no-sync-every-micro-batch", "--no-broadcast-buffers", "--tie-embeddings")),
    (
        "ddp",
        (
            "--micro-batches",
            "2",
            "--bucket-mb",
            "0.002",
            *FROZEN,
            "--reduce-dtype",
            "bfloat16",
            "--activation-checkpointing",
            *CLIP,
        ),
    ),
    ("ddp", ("--compile", "model")),
    ("ddp", ("--compile", "blocks")),
    ("ddp", ODD),
    ("zero1", (*NO_SYNC, *ODD, *CLIP)),
    ("zero1", ("--micro-batches", "2", *FROZEN)),
    ("zero1-deepspeed", ("--micro-batches", "2")),
    ("zero1-deepspeed", ("--micro-batches", "2", "--grad-accum-dtype", "float32")),
    ("zero1-deepspeed", (*ODD, *CLIP, "--freeze", "wq")),
    ("zero2", ("--grad-path", "reduce-to-owner", "--micro-batches", "2", "--bucket-numel", "1000000", *CLIP, *FROZEN)),
    ("zero2", ("--grad-path", "plain-all-reduce", "--model", "odd", "--reduce-dtype", "float32")),
    ("zero2", ("--grad-path", "reduce-to-owner")),
    ("zero2", ("--bucket-numel", "600", "--micro-batches", "2", "--grad-accum-dtype", "float32")),
    ("zero3-deepspeed", ("--persistence-numel", "0", "--micro-batches", "2")),
    ("zero3-deepspeed", ("--persistence-numel", "256")),
    ("zero3-deepspeed", ("--max-reuse-numel", "1000000000", *ODD, *CLIP)),
    ("zero3-deepspeed", (*FROZEN, "--activation-checkpointing", "--bucket-numel", "900")),
    ("zero3-deepspeed", ("--activation-checkpointing", "--prefetch-numel", "600")),
    ("zero3-deepspeed", ("--activation-checkpointing", "selective-op")),
    ("zero3-deepspeed", (*FROZEN, "--activation-checkpointing", "--prefetch-numel", "600")),
    ("zero3-deepspeed", ("--tie-embeddings", "--prefetch-numel", "600", "--micro-batches", "2")),
    ("zero3-deepspeed", ("--tie-embeddings", "--activation-checkpointing", "--max-reuse-numel", "3000")),
    ("zero3-deepspeed", (*PREFIX, "--layers", "3")),
    ("zero3-deepspeed", (*PREFIX, "--layers", "4", "--activation-checkpointing", "--prefetch-numel", "2000")),
    ("zero3-deepspeed", ("--freeze", "tok", "--freeze", "layers", "--activation-checkpointing")),
    ("zero3-deepspeed", ("--persistence-numel", "300", "--model-persistence-numel", "900")),
    ("zero3-deepspeed", ("--model", "odd", "--layers", "3", "--bucket-numel", "3000", "--persistence-numel", "600")),
    ("fsdp1", (*ODD, *NO_SYNC, "--clip-grad-norm", "0.5", "--forward-prefetch", "1")),
    ("fsdp1", ("--compile", "blocks")),
    ("fsdp1", ("--compile", "model")),
    ("fsdp1", ("--micro-batches", "2", *FROZEN, "--activation-checkpointing")),
    ("zero2-fsdp1", (*NO_SYNC, "--freeze", "wq")),
    ("fsdp2", (*NO_SYNC, *FROZEN, *CLIP, "--param-dtype", "float32", "--reduce-dtype", "bfloat16")),
    (
        "fsdp2",
        (
            "--reshard",
            "layers.0=false",
            "--reshard",
            "root=true",
            "--activation-checkpointing",
            "--async-unshard",
            *ODD,
        ),
    ),
    ("fsdp2", ("--reshard-after-forward", "2", "--forward-prefetch", "1")),
    ("fsdp2", ("--layers", "4", "--forward-prefetch", "2", "--backward-prefetch", "2")),
    ("fsdp2", ("--micro-batches", "3", "--reshard-after-forward", "false")),
    ("fsdp2", ("--compile", "blocks")),
    ("fsdp2", ("--compile", "model")),
    ("zero2-fsdp2", ("--micro-batches", "2", *ODD)),
    ("hsdp", ("--micro-batches", "2", "--no-all-reduce-every-micro-batch")),
    ("hsdp", (*NO_SYNC, *ODD, *CLIP)),
    ("fsdp2-tp", (*CLIP, "--freeze", "tok_emb")),
    ("fsdp2-tp", ("--micro-batches", "2", "--activation-checkpointing", "--reshard-after-forward", "true")),
    # What comes before all that is trained has no backward: it is gathered there by prefetch alone.
    ("fsdp2", (*PREFIX, "--layers", "4", "--activation-checkpointing")),
    ("fsdp2", ("--model", "odd", "--freeze", "tok", "--freeze", "layers", "--layers", "4")),
    ("fsdp2", (*PREFIX, "--layers", "5", "--backward-prefetch", "2", "--micro-batches", "2", *CLIP)),
    ("hsdp", ("--tie-embeddings", "--freeze", "layers", "--freeze", "tok")),
    ("fsdp2-tp", (*PREFIX, "--layers", "3", "--freeze", r"layers\.2.*norm", "--activation-checkpointing")),
    ("fsdp1", (*PREFIX, "--layers", "4", "--freeze", "norm", "--freeze", "output", "--micro-batches", "2")),
    # Groups of one.
    ("hsdp", ("--dp-replicate", "1", "--micro-batches", "2", "--no-all-reduce-every-micro-batch", *CLIP)),
    ("fsdp1", ("--micro-batches", "2", *CLIP)),
    ("zero2-fsdp1", NO_SYNC),
    ("fsdp2-tp", ("--tp", "1", *CLIP)),
    ("fsdp2-graph", ("--tie-embeddings", *FROZEN, *CLIP)),
    ("fsdp2-graph", ("--micro-batches", "2", "--model", "odd")),
]
# Groups of two of four ranks, and groups of one.
RANKS = {
    ("fsdp2", ("--reshard-after-forward", "2", "--forward-prefetch", "1")): 4,
    ("hsdp", ("--dp-replicate", "1", "--micro-batches", "2", "--no-all-reduce-every-micro-batch", *CLIP)): 2,
    ("fsdp1", ("--micro-batches", "2", *CLIP)): 1,
    ("zero2-fsdp1", NO_SYNC): 1,
    ("fsdp2-tp", ("--tp", "1", *CLIP)): 2,
    # Partitions of four ranks are padded.
    ("zero3-deepspeed", ("--model", "odd", "--layers", "3", "--bucket-numel", "3000", "--persistence-numel", "600")): 4,
}
CASES = [*((strategy, ()) for strategy in STRATEGIES), *OPTIONS]


def opened(recorded, strategy, args):
    return tracekit.open(recorded(strategy, *args, ranks=RANKS.get((strategy, args))).path, cache=False)


def unexplained(run, expected=None):
    """What is left in each step and rank, by layer, phase, kind, axis and type: elements and bytes that are not 0."""
    rest = ledger(run, by=PLACES, expected=expected).filter(pl.col("term") == "unexplained")
    assert rest.height
    sizes = ("numel", "payload_bytes", "backend_numel")
    return rest.filter(pl.any_horizontal((pl.col(size) != 0) | pl.col(size).is_null() for size in sizes))


def named(case):
    strategy, args = case
    return " ".join((strategy, *(arg.strip("-") for arg in args)))


@pytest.mark.parametrize("case", CASES, ids=named)
def test_every_byte_is_explained(recorded, case):
    run = opened(recorded, *case)
    assert run.manifest.world_size == (RANKS.get(case) or (4 if case[0] in FOUR_RANKS else 2))
    assert unexplained(run).is_empty(), unexplained(run)
    whole = ledger(run)
    steps = run.steps.filter("complete").height
    assert steps == 2 * run.manifest.world_size
    rest = whole.filter(pl.col("term") == "unexplained")
    assert rest.select("numel", "payload_bytes", "backend_numel", "coverage").unique().rows() == [(0, 0, 0, 1.0)]
    assert rest.height == steps
    theory = whole.filter(pl.col("term") == "theory")["numel"].unique().to_list()
    assert theory == [zero_communication_volume(run.psi, strategy_stage(case[0]))]


@pytest.mark.parametrize("case", CASES, ids=named)
def test_what_a_rank_holds_is_what_was_planned(recorded, case):
    run = opened(recorded, *case)
    for rank in run.manifest.ranks:
        planned = dict(memory(run.manifest, rank.rank).select("component", "held_bytes").iter_rows())
        held = msgspec.to_builtins(rank.held_bytes)
        assert {name: planned[name] for name in held} == held


def a_unit_more(manifest):
    extra = manifest.parameters[1]
    layer = msgspec.structs.replace(extra, name="extra.weight", layer="extra")
    units = [*manifest.units[:1], msgspec.structs.replace(manifest.units[0], name="extra"), *manifest.units[1:]]
    ready = manifest.grad_order and [*manifest.grad_order, layer.name]
    return msgspec.structs.replace(manifest, parameters=[*manifest.parameters, layer], units=units, grad_order=ready)


def another_type(manifest):
    precision = msgspec.structs.replace(manifest.precision, reduce_dtype="float16", param_dtype="float64")
    stored = [msgspec.structs.replace(parameter, dtype="float64") for parameter in manifest.parameters]
    return msgspec.structs.replace(manifest, precision=precision, parameters=stored)


def a_micro_batch_less(manifest):
    return msgspec.structs.replace(manifest, micro_batches=manifest.micro_batches - 1)


@pytest.mark.parametrize("wrong", [a_unit_more, another_type])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_wrong_plan_is_caught(recorded, strategy, wrong):
    run = opened(recorded, strategy, ())
    manifest = wrong(run.manifest)
    assert not plan(manifest).equals(plan(run.manifest))
    assert not unexplained(run, expectation(run, params=manifest)).is_empty()


@pytest.mark.parametrize("case", [case for case in OPTIONS if "--micro-batches" in case[1]], ids=named)
def test_a_dropped_micro_batch_is_caught(recorded, case):
    run = opened(recorded, *case)
    manifest = a_micro_batch_less(run.manifest)
    if plan(manifest).drop("micro_batch").equals(plan(run.manifest).drop("micro_batch")):
        pytest.skip("reduced once a step, whatever the number of micro-batches")
    assert not unexplained(run, expectation(run, params=manifest)).is_empty()


def test_the_ledger_prints_and_holds_a_foreign_trace_against_a_plan(recorded, tmp_path, capfd):
    from tracekit import cli

    folder = recorded("fsdp2").path
    trace = tmp_path / "rank0.json.gz"
    trace.write_bytes((folder / "rank0.json.gz").read_bytes())
    saved = tmp_path / "plan.json"
    asked = ["plan", "--strategy", "fsdp2", "--params-from", str(folder / "manifest.json"), "--mesh", "dp_shard=2"]
    assert cli.run([*asked, "--format", "json", "-o", str(saved)]) == 0
    bare = ["ledger", str(trace), "--format", "csv", "--no-cache"]
    assert cli.run(bare) == 0
    out, err = capfd.readouterr()
    assert "unknown is what the run should send: give --strategy and --params, or --plan" in err
    assert [line.split(",")[2] for line in out.splitlines()[1:3]] == ["measured", "unexplained"]
    assert cli.run([*bare, "--plan", str(saved), "--sum", "--strategy", "fsdp2", "--params", "7248"]) == 0
    rows = [line.split(",") for line in capfd.readouterr().out.splitlines()[1:]]
    assert [(row[2], row[3], row[5]) for row in rows if row[2] in ("theory", "unexplained")] == [
        ("theory", str(2 * 3 * 7248), "0"),
        ("unexplained", "0", "0"),
    ]
    assert cli.run([*bare, "--strategy", "fsdp2", "--params", str(folder / "manifest.json")]) == 0
    rows = [line.split(",") for line in capfd.readouterr().out.splitlines()[1:]]
    assert {(row[3], row[5]) for row in rows if row[2] == "unexplained"} == {("0", "0")}
    assert Path(saved).is_file()
