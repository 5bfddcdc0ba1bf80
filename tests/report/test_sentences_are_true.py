"""Sentences on volume, checked by a second count: of sample runs, of runs by their plan and of runs beside it."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from fakes import SMALL, collective, manifest_of, parameter, run_of, step
from planned_runs import as_planned, run_as_planned
from sentence_checker import complaints

import tracekit
from tracekit.analyzers.recognition import looks_like
from tracekit.manifest import Axis, Precision
from tracekit.report.sentences import sentences
from tracekit.strategies import STRATEGIES

pytestmark = pytest.mark.slow

SAMPLES = sorted(path.parent for path in (Path(__file__).parents[2] / "traces").glob("*/manifest.json"))
FROZEN = (parameter("f", 4, 4, requires_grad=False), *SMALL)
MODELS = {
    "small": SMALL,
    "odd": (parameter("root", 3, 2), parameter("a.w", 5, 2, layer="a"), parameter("b.w", 7, layer="b")),
    "frozen": FROZEN,
    "tied": (*SMALL, parameter("again", 2, 2, tied_to="first")),
}
MESHES = {
    "ddp": [Axis("dp_replicate", 2)],
    "zero1": [Axis("dp_replicate", 2)],
    "hsdp": [Axis("dp_replicate", 2), Axis("dp_shard", 2)],
}
NAMES = ["ddp", "zero1", "zero1-deepspeed", "zero2", "zero2-fsdp2", "zero3-deepspeed", "fsdp2", "hsdp"]


def manifest_for(strategy, model="small", **more):
    mesh = {"mesh": MESHES[strategy]} if strategy in MESHES else {}
    deepspeed = {"precision": Precision("bfloat16", None)} if STRATEGIES[strategy].framework == "DeepSpeed" else {}
    ranks = 4 if strategy == "hsdp" else 2
    order = [p.name for p in MODELS[model] if p.requires_grad and p.tied_to is None][::-1]
    values = {"ranks": ranks, "grad_order": order, **mesh, **deepspeed, **more}
    return manifest_of(strategy, MODELS[model], **values)


@pytest.mark.parametrize("folder", SAMPLES, ids=lambda path: path.name)
def test_of_a_sample_run_all_is_true(folder):
    run = tracekit.open(folder)
    told = sentences(run)
    assert any("Ψ a step" in text for text in told)
    assert complaints(run, told) == []


@pytest.mark.parametrize("folder", SAMPLES, ids=lambda path: path.name)
def test_of_a_sample_run_without_its_manifest_all_is_true(folder):
    run = tracekit.open(folder)
    foreign = run_of()
    for table in ("steps", "work", "collectives", "allocations", "repairs", "ranks"):
        setattr(foreign, table, getattr(run, table))
    assert complaints(foreign, sentences(foreign)) == []


@pytest.mark.parametrize("folder", SAMPLES, ids=lambda path: path.name)
def test_a_sample_run_is_recognised_without_its_manifest(folder, tmp_path):
    for file in folder.glob("*.json.gz"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    looks = looks_like(tracekit.open(tmp_path, cache=False))
    assert looks == {
        "fsdp1": ("fsdp2", "fsdp1", "zero3-deepspeed"),
        "fsdp2": ("fsdp2",),
        "zero2": ("zero1-deepspeed", "zero2"),
        "zero3-deepspeed": ("fsdp2", "fsdp1", "zero3-deepspeed"),
    }.get(folder.name, (folder.name,))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("strategy", NAMES)
@pytest.mark.parametrize("micro_batches", [1, 2])
def test_of_a_run_by_its_plan_all_is_true(strategy, model, micro_batches):
    run = run_as_planned(manifest_for(strategy, model, micro_batches=micro_batches))
    assert complaints(run, sentences(run)) == []


@pytest.mark.parametrize("called", NAMES)
@pytest.mark.parametrize("did", NAMES)
def test_of_a_run_by_another_name_all_is_true(did, called):
    manifest = manifest_for(did)
    wrong = manifest_for(called, ranks=manifest.world_size, mesh=manifest.mesh)
    run = run_of(wrong, steps=[step(5, 0, 100)], collectives=as_planned(manifest))
    assert complaints(run, sentences(run)) == []


MORE = [
    [collective("all_reduce", "s", 50, 51, numel=5, phase="other")],
    [collective("all_reduce", "s", 50, 51, numel=5000, phase="other", axis="dp_shard")],
    [collective("all_gather", "s", 50, 51, numel=8, phase="backward", layer="a", axis="dp_shard", dtype="bfloat16")],
    [collective("broadcast", "s", 50, 51, numel=8, phase="forward")] * 3,
    [collective("all_reduce", "s", 50, 51)],
]


@pytest.mark.parametrize("more", MORE)
@pytest.mark.parametrize("strategy", NAMES)
def test_of_a_run_with_more_than_its_plan_all_is_true(strategy, more):
    run = run_as_planned(manifest_for(strategy), *more)
    assert complaints(run, sentences(run)) == []


@pytest.mark.parametrize("kind", ["all_gather", "all_reduce", "reduce_scatter", "broadcast"])
@pytest.mark.parametrize("strategy", NAMES)
def test_of_a_run_with_less_than_its_plan_all_is_true(strategy, kind):
    run = run_as_planned(manifest_for(strategy))
    run.collectives = run.collectives.filter(pl.col("kind") != kind)
    assert complaints(run, sentences(run)) == []


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("FSDP2 moved 2.67Ψ a step, 0.33Ψ less than 3Ψ because the root unit is not gathered again; 0 % of it.", None),
        ("FSDP2 moved 2.50Ψ a step, 0.33Ψ less than 3Ψ because the root unit is not gathered again; x.", "2.667Ψ"),
        ("FSDP2 moved 2.67Ψ a step, 0.33Ψ less than 3Ψ because buffers are broadcast before forward; x.", "not so"),
        ("FSDP2 moved 2.67Ψ a step, as the closed form says; x.", "closed form"),
        ("FSDP2 moved 2.67Ψ a step, 0.33Ψ less than 3Ψ because the moon is full; x.", "no rule"),
        ("FSDP2 moved 2.67Ψ a step, whatever that is; x.", "no rule"),
        (
            "FSDP2 moved 2.67Ψ a step, 0.33Ψ less than 3Ψ because a group of one rank has nobody to send to; x.",
            "not so",
        ),
        ("The plan and the trace disagree: all_gather over dp_shard 1.00Ψ more than planned.", "off"),
        ("The plan and the trace disagree: x; it looks like DDP.", "other kinds"),
        ("Gathered a 7 times, planned 2: a second forward?", "not gathered 7 times"),
        ("Beside the strategy the loop itself sends, a step: all_reduce 3 (metrics).", "0 in all"),
        ("Sizes are known for 3 of 4 collectives.", "are known"),
        ("gloo ran reduce_scatter as all_reduce.", "was not run"),
    ],
)
def test_what_is_not_so_is_found(text, wrong):
    found = complaints(run_as_planned(manifest_of("fsdp2", SMALL)), [text])
    assert (wrong is None and found == []) or (wrong is not None and wrong in " ".join(found))
