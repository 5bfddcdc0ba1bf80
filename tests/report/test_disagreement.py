"""What plan and trace disagree on is said first and by name, although totals may agree."""

from __future__ import annotations

import polars as pl
import pytest
from fakes import SMALL, collective, manifest_of, parameter, run_of, step
from msgspec.structs import replace
from planned_runs import as_planned, run_as_planned
from sentence_checker import complaints

from tracekit.analyzers.recognition import looks_like
from tracekit.manifest import Axis, ObservedStep, Precision
from tracekit.report.disagreement import agrees, disagreement, loops_own
from tracekit.report.sentences import sentences


def named(manifest, strategy, **more):
    """A run that does what the manifest's strategy plans and is called by another name."""
    return run_of(
        replace(manifest, strategy=strategy, **more), steps=[step(5, 0, 100)], collectives=as_planned(manifest)
    )


EVERY = ["ddp", "zero1", "zero2", "zero2-fsdp2", "fsdp2", "hsdp"]


def manifest_for(strategy):
    mesh = {"ddp": [Axis("dp_replicate", 2)], "zero1": [Axis("dp_replicate", 2)],
            "hsdp": [Axis("dp_replicate", 2), Axis("dp_shard", 2)]}  # fmt: skip
    more = {"mesh": mesh[strategy]} if strategy in mesh else {}
    return manifest_of(strategy, SMALL, ranks=4 if strategy == "hsdp" else 2, **more)


@pytest.mark.parametrize("strategy", EVERY)
def test_a_run_that_follows_its_plan_agrees_and_looks_like_itself(strategy):
    run = run_as_planned(manifest_for(strategy))
    assert agrees(run)
    assert disagreement(run) is None
    assert strategy in looks_like(run) or looks_like(run) == ()


@pytest.mark.parametrize(
    ("did", "called", "looks"),
    [
        ("fsdp2", "zero1", "it looks like FSDP2, FSDP1 or DeepSpeed's stage 3"),
        ("fsdp2", "ddp", "it looks like FSDP2, FSDP1 or DeepSpeed's stage 3"),
        ("zero2-fsdp2", "ddp", "it looks like FSDP2 without resharding or FSDP1 with SHARD_GRAD_OP"),
        ("ddp", "fsdp2", "it looks like DDP"),
        ("ddp", "zero2-fsdp2", "it looks like DDP"),
        ("fsdp2", "zero2-fsdp2", "it looks like FSDP2, FSDP1 or DeepSpeed's stage 3"),
    ],
)
def test_a_wrong_name_is_recognised_by_the_kinds(did, called, looks):
    # What is called sharded has a mesh that shards.
    mesh = {"mesh": [Axis("dp_shard", 2)]} if did == "ddp" else {}
    run = named(manifest_for(did), called, **mesh)
    text = str(disagreement(run))
    assert text.startswith("The plan and the trace disagree: ")
    assert looks in text
    # No reason of a plan that the trace does not follow is given for its volume.
    first, second = sentences(run)[:2]
    assert first == text
    assert "because" not in second
    assert "as the closed form says" not in second


def test_totals_that_agree_by_chance_are_no_agreement():
    """ZeRO-2 by hand: a reduce-scatter and a gather of Ψ each are 2Ψ, as an all-reduce is."""
    weight = [parameter("w", 50, 50)]
    manifest = manifest_of("ddp", weight, mesh=[Axis("dp_replicate", 2)], precision=Precision("float32", "float32"))
    psi = manifest.psi
    calls = [collective("reduce_scatter", "s", 0, 1, numel=psi, phase="backward", axis="dp_replicate"),
             collective("all_gather", "s", 2, 3, numel=psi, phase="optimizer", axis="dp_replicate")]  # fmt: skip
    run = run_of(manifest, steps=[step(5, 0, 100)], collectives=calls)
    assert run.table("ledger").filter(pl.col("term") == "unexplained")["numel"].to_list() == [0]
    texts = sentences(run)
    assert "which is the plan's total and not its parts" in texts[1]
    assert texts[0].startswith("The plan and the trace disagree: all_reduce over dp_replicate 2.00Ψ less than planned")


def test_bytes_that_differ_are_told_where_elements_agree():
    manifest = manifest_for("fsdp2")
    run = run_as_planned(manifest)
    half = pl.when(pl.col("kind") == "reduce_scatter").then(pl.col("payload_bytes") // 2).otherwise("payload_bytes")
    run.collectives = run.collectives.with_columns(half.alias("payload_bytes"))
    text = str(disagreement(run))
    assert text.startswith("The elements are as planned, the bytes are not: reduce_scatter ")
    assert "less a step" in text
    assert agrees(run)
    assert sentences(run)[0] == text


@pytest.mark.parametrize(
    ("kind", "dtype", "told"),
    [
        ("reduce_scatter", "bfloat16", "less (sent as bfloat16 and not as float32) a step"),
        ("reduce_scatter", "float16", "less (sent as float16 and not as float32) a step"),
        ("all_gather", "float32", "more (sent as float32 and not as bfloat16) a step"),
        ("all_gather", "float64", "more (sent as float64 and not as bfloat16) a step"),
    ],
)
def test_the_type_in_which_bytes_differ_is_named(kind, dtype, told):
    run = run_as_planned(manifest_for("fsdp2"))
    its = pl.col("kind") == kind
    held = pl.col("payload_numel") * {"bfloat16": 2, "float16": 2, "float32": 4, "float64": 8}[dtype]
    run.collectives = run.collectives.with_columns(
        pl.when(its).then(pl.lit(dtype)).otherwise("dtype").alias("dtype"),
        pl.when(its).then(held).otherwise("payload_bytes").alias("payload_bytes"),
    )
    assert told in str(disagreement(run))
    assert complaints(run, sentences(run)) == []


def gathered_again(manifest, layers):
    calls = as_planned(manifest)
    again = [row for row in calls if row["kind"] == "all_gather" and row["layer"] in layers]
    return run_of(manifest, steps=[step(5, 0, 100)], collectives=[*calls, *again])


def test_units_that_are_gathered_too_often_are_named_with_a_likely_cause():
    manifest = manifest_for("fsdp2")
    text = str(disagreement(gathered_again(manifest, ["a"])))
    assert "Gathered a 4 times, planned 2: a second forward in the step, such as an evaluation" in text
    seen = replace(manifest, observed=[ObservedStep(step=5, micro_batches=1, other_forwards=1)])
    text = str(disagreement(gathered_again(seen, ["a", ""])))
    assert (
        "Gathered a 4 times, planned 2; (root) 2 times, planned 1: the recorder saw forwards without a backward" in text
    )


def test_the_loops_own_collectives_are_counted_by_kind():
    more = [collective("all_reduce", "s", 50 + n, 51 + n, numel=5, phase="other") for n in range(3)]
    run = run_as_planned(manifest_for("fsdp2"), *more, collective("broadcast", "s", 60, 61, numel=1, phase="other"))
    assert loops_own(run) == (
        "Beside the strategy the loop itself sends short collectives outside of forward and backward, a step: "
        "all_reduce 3, broadcast 1 (metrics, losses, norms)."
    )
    assert agrees(run)
    assert loops_own(run_as_planned(manifest_for("fsdp2"))) is None


def test_without_a_manifest_the_looks_are_told_and_nothing_is_compared():
    run = run_of(steps=[step(5, 0, 100)], collectives=as_planned(manifest_for("ddp")))
    assert disagreement(run) is None
    assert any(text.endswith("By its collectives this looks like DDP.") for text in sentences(run))


def test_a_recording_without_a_strategy_says_why_and_what_it_looks_like():
    manifest = replace(manifest_for("ddp"), strategy="unknown", unknown_because="no wrapper was found")
    run = run_of(manifest, steps=[step(5, 0, 100)], collectives=as_planned(manifest_for("ddp")))
    assert "No strategy is named, for no wrapper was found. By its collectives this looks like DDP." in sentences(run)


BLOCKS = tuple(parameter(f"layers.{n}.w", 4, 2, layer=f"layers.{n}") for n in range(5))


@pytest.mark.parametrize(
    ("kind", "layers", "times", "told"),
    [
        ("all_gather", [0, 1, 2, 3], 2, "Gathered layers.0 to layers.3 4 times, planned 2: a second forward in the"),
        ("all_gather", [0, 1, 3], 2, "Gathered layers.0 to layers.1 4 times, planned 2; layers.3 4 times, planned 2: "),
        ("all_gather", [2], 3, "Gathered layers.2 6 times, planned 2: "),
        ("reduce_scatter", [1, 2], 2, "Reduced layers.1 to layers.2 2 times, planned 1: "),
        ("reduce_scatter", [4], 0, "Reduced layers.4 0 times, planned 1: units that did not run in the step"),
        ("all_gather", [0, 1, 2, 3, 4], 0, "Gathered layers.0 to layers.4 0 times, planned 2: "),
    ],
)
def test_neighbouring_units_with_one_count_are_one_entry(kind, layers, times, told):
    names = [f"layers.{n}" for n in layers]
    manifest = manifest_of("fsdp2", BLOCKS, units=[*(f"layers.{n}" for n in range(5)), ""])
    calls = [
        row
        for row in as_planned(manifest)
        for _ in range(times if row["kind"] == kind and row["layer"] in names else 1)
    ]
    run = run_of(manifest, steps=[step(5, 0, 100)], collectives=calls)
    assert told in str(disagreement(run))
    assert complaints(run, sentences(run)) == []


@pytest.mark.parametrize(
    ("planned", "observed", "why"),
    [
        (
            1,
            (2, 0),
            "the recorder saw 2 forwards with a backward in a step where the plan has 1: tell it micro_batches",
        ),
        (1, (1, 1), "the recorder saw forwards without a backward in the step"),
        (
            1,
            None,
            "a second forward in the step, such as an evaluation, or micro-batches that the recorder was not told",
        ),
        (2, (1, 0), "the recorder saw 1 forward with a backward in a step where the plan has 2"),
        (2, (3, 1), "the recorder saw 3 forwards with a backward in a step where the plan has 2"),
    ],
)
def test_what_the_recorder_saw_is_the_cause(planned, observed, why):
    seen = [] if observed is None else [ObservedStep(5, *observed)]
    manifest = replace(manifest_for("fsdp2"), micro_batches=planned, observed=seen)
    more = replace(manifest, micro_batches=planned + 1)
    run = run_of(manifest, steps=[step(5, 0, 100)], collectives=as_planned(more))
    assert why in str(disagreement(run))
    assert complaints(run, sentences(run)) == []
