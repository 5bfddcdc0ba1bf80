"""Plans where units have no backward, because all up to them is frozen, or where groups have one rank."""

from __future__ import annotations

import polars as pl
import pytest
from fakes import manifest_of, parameter

from tracekit.layer_names import units_with_backward
from tracekit.manifest import Axis
from tracekit.plan import plan, terms
from tracekit.strategies import STRATEGIES
from tracekit.theory import strategy_stage, zero_communication_volume

BLOCKS = ("a", "b", "c")


def model(*frozen: str):
    """An embedding, three blocks and an output, each of 4 × 2 elements; those that are named are frozen."""
    layers = {"emb": "", **{name: name for name in BLOCKS}, "out": ""}
    return [
        parameter(f"{name}.weight", 4, 2, layer=layer, requires_grad=name not in frozen)
        for name, layer in layers.items()
    ]


def planned(strategy, *frozen, **more):
    return manifest_of(strategy, model(*frozen), units=(*BLOCKS, ""), **more)


def again(manifest) -> list[str]:
    """Units gathered in backward, in order."""
    return plan(manifest).filter(kind="all_gather", phase="backward")["layer"].to_list()


@pytest.mark.parametrize(
    ("frozen", "entered"),
    [
        ((), ["", "a", "b", "c"]),
        (("emb",), ["", "a", "b", "c"]),
        (("emb", "a"), ["", "b", "c"]),
        (("emb", "a", "c"), ["", "b", "c"]),
        (("a", "b", "c"), ["", "a", "b", "c"]),
        (("emb", "a", "b", "c"), [""]),
        (("emb", *BLOCKS, "out"), [""]),
    ],
)
def test_units_after_the_first_that_is_trained_have_a_backward(frozen, entered):
    assert units_with_backward(model(*frozen)) == entered


def test_a_flat_parameter_is_trained_with_any_of_its_parts():
    # The embedding shares its tensor with the output.
    assert units_with_backward(model("emb", "a", "b"), flat=True) == ["", "a", "b", "c"]
    assert units_with_backward(model("emb", "out", "a", "b"), flat=True) == ["", "c"]


@pytest.mark.parametrize(
    ("frozen", "options", "expected"),
    [
        ((), {}, ["c", "b", "a"]),
        # b is what c gathers ahead.
        (("emb", "a", "b"), {}, ["c", "b"]),
        (("emb", *BLOCKS), {}, ["c"]),
        (("emb", "a", "b"), {"backward_prefetch": 2}, ["c", "b", "a"]),
        (("emb", *BLOCKS), {"backward_prefetch": 2}, ["c"]),
        (("emb", "b"), {}, ["c", "b", "a"]),
    ],
)
def test_fsdp2_gathers_a_unit_without_a_backward_by_prefetch_alone(frozen, options, expected):
    manifest = planned("fsdp2", *frozen, options=options)
    assert again(manifest) == expected
    missing = dict(terms(manifest).select("term", "numel").iter_rows()).get(
        "units without a backward not gathered again"
    )
    assert missing == (-8 * (3 - len(expected)) or None)


def test_fsdp1_gathers_it_not_at_all():
    assert again(planned("fsdp1", "emb", "a", "b")) == ["c", "b", "a"]
    assert again(planned("fsdp1", "emb", "out", "a", "b")) == ["c"]
    assert again(planned("fsdp1", "emb", "out", *BLOCKS)) == []
    assert again(planned("zero2-fsdp1", "emb", "out", "a")) == []


@pytest.mark.parametrize("strategy", ["fsdp1", "zero2-fsdp1"])
def test_fsdp1_on_one_rank_all_reduces_over_itself(strategy):
    manifest = planned(strategy, "b", ranks=1, micro_batches=2, options={"clip_grad_norm": 1.0})
    calls = plan(manifest).select("kind", "layer", "group_size", "in_numel", "out_numel").rows()
    each = [("all_reduce", "c", 1, 8, 8), ("all_reduce", "a", 1, 8, 8), ("all_reduce", "", 1, 16, 16)]
    assert calls == 2 * each
    theory = terms(manifest).filter(term="theory")["numel"].item()
    assert theory == zero_communication_volume(manifest.psi, strategy_stage(strategy))


@pytest.mark.parametrize("shards", [1, 2])
def test_one_replica_is_all_reduced_all_the_same(shards):
    mesh = [Axis("dp_replicate", 1), Axis("dp_shard", shards)]
    calls = plan(planned("hsdp", ranks=shards, mesh=mesh)).filter(axis="dp_replicate")
    assert calls.select("kind", "group_size", "in_numel").rows() == [
        ("all_reduce", 1, numel // shards) for numel in (8, 8, 8, 16)
    ]


def test_fsdp2_on_one_rank_sends_nothing():
    assert plan(planned("fsdp2", ranks=1)).is_empty()


def test_activations_have_no_gradient_before_the_first_trained_parameter():
    names = ("attention.wq", "attention.wk", "attention.wo", "feed_forward.w1")
    block = [parameter(f"layers.0.{name}.weight", 8, 8, layer="layers.0") for name in names]
    frozen = [parameter("emb.weight", 8, 8, requires_grad=False), *block]
    options, mesh = {"batch_size": 1, "seq_len": 1}, [Axis("dp_shard", 2), Axis("tp", 2)]
    for parameters, sent in ((frozen, 1), ([parameter("emb.weight", 8, 8), *block], 3)):
        manifest = manifest_of("fsdp2-tp", parameters, ranks=4, mesh=mesh, units=("layers.0", ""), options=options)
        assert plan(manifest).filter(pl.col("axis") == "tp", pl.col("phase") == "backward").height == sent


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("frozen", [("emb", "a"), ("emb", *BLOCKS), ("emb", "a", "out"), ("b", "out")])
@pytest.mark.parametrize("ranks", [1, 2])
def test_terms_still_begin_with_the_closed_form(strategy, frozen, ranks):
    manifest = planned(strategy, *frozen, ranks=ranks)
    theory = terms(manifest).filter(term="theory")["numel"].item()
    assert theory == zero_communication_volume(manifest.psi, strategy_stage(strategy))
