"""Plans of what a recorder finds on a model: types and placements of its own, gradients that are None, replicas."""

from __future__ import annotations

import polars as pl
import pytest
from fakes import SMALL, manifest_of, parameter
from msgspec.structs import replace

from tracekit.layer_names import gradient_order
from tracekit.manifest import Axis, Precision, Unit
from tracekit.plan import memory, plan, terms
from tracekit.theory import strategy_stage, zero_communication_volume

WHOLE = Precision("float32", "float32")
REPLICAS = [Axis("dp_replicate", 2)]


def closed_form_is_kept(manifest) -> bool:
    theory = terms(manifest).filter(term="theory")["numel"].item()
    return theory == zero_communication_volume(manifest.psi, strategy_stage(manifest.strategy))


@pytest.mark.parametrize("strategy", ["fsdp2", "zero2-fsdp2", "fsdp1"])
@pytest.mark.parametrize("unit", ["", "a"])
def test_a_unit_travels_in_its_own_types(strategy, unit):
    manifest = manifest_of(strategy, SMALL)
    units = [replace(one, precision=WHOLE if one.name == unit else None) for one in manifest.units]
    frame = plan(replace(manifest, units=units))
    types = frame.group_by("layer", "kind").agg(pl.col("dtype").unique()).explode("dtype")
    found = {(layer, kind): dtype for layer, kind, dtype in types.iter_rows()}
    assert found == {
        (layer, kind): "float32" if layer == unit else dtype
        for layer in ("", "a", "b")
        for kind, dtype in (("all_gather", "bfloat16"), ("reduce_scatter", "float32"))
    }


@pytest.mark.parametrize(
    ("shape", "placement", "ranks", "sent", "held"),
    [
        ((5, 4), "Shard(1)", 4, 20, 5),
        ((5, 4), "Shard(0)", 4, 32, 8),
        ((5, 4), "StridedShard(0, 2)", 4, 32, 8),
        ((5, 4), None, 2, 24, 12),
        ((3, 5, 6), "Shard(2)", 3, 90, 30),
        ((3, 4), "Shard(1)", 2, 12, 6),
    ],
)
def test_only_dim_0_is_padded(shape, placement, ranks, sent, held):
    placements = {"dp_shard": placement} if placement else {}
    manifest = manifest_of("fsdp2", [parameter("a.w", *shape, layer="a", placements=placements)], ranks=ranks)
    assert plan(manifest)["payload_numel"].to_list() == [sent] * 3
    assert memory(manifest)["held_bytes"][0] == 4 * held
    assert closed_form_is_kept(manifest)


@pytest.mark.parametrize(
    ("without", "reduced", "gathered"),
    [
        ((), {"": 8, "a": 8, "b": 8}, ["", "a", "b", "b", "a"]),
        # A parameter of the root that no loss reaches.
        (("last",), {"": 4, "a": 8, "b": 8}, ["", "a", "b", "b", "a"]),
        # A unit that did not run.
        (("b.weight",), {"": 8, "a": 8}, ["", "a", "a"]),
        (("a.weight", "b.weight"), {"": 8}, [""]),
    ],
)
def test_fsdp2_reduces_no_gradient_that_is_none(without, reduced, gathered):
    ready = [entry.name for entry in SMALL[::-1] if entry.name not in without]
    manifest = manifest_of("fsdp2", SMALL, grad_order=ready)
    frame = plan(manifest)
    sent = frame.filter(kind="reduce_scatter").select("layer", "payload_numel").rows()
    assert dict(sent) == reduced
    assert frame.filter(kind="all_gather")["layer"].to_list() == gathered
    assert closed_form_is_kept(manifest)
    # Adam has no state for them: two moments of half the elements in fp32, and a counter of 4 bytes.
    left = [entry for entry in SMALL if entry.name in ready]
    state = memory(manifest).filter(component="optimizer_state")["held_bytes"].item()
    assert state == sum(8 * entry.numel // 2 + 4 for entry in left)


READY = ["last", "a.weight", "first"]


@pytest.mark.parametrize(
    ("options", "order", "extra"),
    [
        ({}, READY, 0),
        ({"find_unused_parameters": True}, ["last", "b.weight", "a.weight", "first"], 1),
        ({"static_graph": True}, [*READY, "b.weight"], 0),
        ({"static_graph": True, "find_unused_parameters": True}, [*READY, "b.weight"], 0),
    ],
)
@pytest.mark.parametrize("strategy", ["ddp", "zero1"])
def test_ddp_sends_unused_gradients_where_it_looks_for_them_or_knows_the_graph(strategy, options, order, extra):
    manifest = manifest_of(strategy, SMALL, mesh=REPLICAS, grad_order=READY, options=options, micro_batches=2)
    assert gradient_order(manifest) == order
    backward = plan(manifest).filter(phase="backward", micro_batch=1)
    numels = {entry.name: entry.numel for entry in SMALL}
    assert backward.filter(dtype="float32")["payload_numel"].sum() == sum(numels[name] for name in order)
    # One int32 for each parameter, in the order of registration.
    assert backward.filter(dtype="int32").select("kind", "payload_numel").rows() == [("all_reduce", 4)] * extra
    assert closed_form_is_kept(manifest)


def test_the_order_of_others_is_what_was_seen():
    options = {"find_unused_parameters": True}
    assert gradient_order(manifest_of("zero2", SMALL, grad_order=READY, options=options)) == READY
    assert gradient_order(manifest_of("ddp", SMALL, mesh=REPLICAS)) is None


@pytest.mark.parametrize("strategy", ["fsdp1", "zero2-fsdp1"])
def test_hybrid_sharding_all_reduces_its_shards_over_the_replicas(strategy):
    mesh = [Axis("dp_replicate", 3), Axis("dp_shard", 2)]
    manifest = manifest_of(strategy, SMALL, ranks=6, mesh=mesh, micro_batches=2)
    frame = plan(manifest)
    assert frame.filter(axis="dp_shard").equals(plan(manifest_of(strategy, SMALL, micro_batches=2)))
    over = frame.filter(axis="dp_replicate").select("layer", "kind", "group_size", "in_numel", "dtype").rows()
    assert over == 2 * [(layer, "all_reduce", 3, numel, "float32") for layer, numel in (("b", 4), ("a", 4), ("", 6))]
    assert closed_form_is_kept(manifest)


def test_units_without_types_have_those_of_the_run():
    manifest = manifest_of("fsdp2", SMALL)
    assert plan(manifest).equals(plan(replace(manifest, units=[Unit(one.name) for one in manifest.units])))
