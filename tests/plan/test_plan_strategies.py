"""Plans of the other strategies, in integers to check by hand; Ψ of SMALL is 24: first 4, a 8, b 8, last 4."""

from __future__ import annotations

import polars as pl
import pytest
from fakes import SMALL, manifest_of, parameter
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tracekit.manifest import Axis, Buffer, Precision, Unit
from tracekit.plan import plan, terms, terms_by_place
from tracekit.plan.stage3_fetching import Limits, Use, fetches, persistent, visits
from tracekit.strategies import CHECKPOINTING, STRATEGIES
from tracekit.theory import strategy_stage, zero_communication_volume

REPLICAS = [Axis("dp_replicate", 2)]
TINY_MB = 33 / (1 << 20)  # bytes of a bucket: one more than 8 elements of float32
NO_SYNC = {"sync_every_micro_batch": False}


def rows(manifest, *columns):
    return plan(manifest).select(columns).rows()


def numel(manifest) -> int:
    frame = plan(manifest)
    return (frame["payload_numel"] * frame["passes"]).sum()


def ddp(strategy="ddp", **more):
    more = {"mesh": REPLICAS, "options": {"bucket_mb": TINY_MB, **more.pop("options", {})}, **more}
    return manifest_of(strategy, SMALL, **more)


def test_ddp_closes_a_bucket_once_it_holds_its_size():
    # Reverse registration: last 16 bytes, b 32: 48 reach 33; a 32, first 16: 48 again.
    assert rows(ddp(), "kind", "layer", "in_numel", "axis", "dtype") == [
        ("all_reduce", "(root)..b", 12, "dp_replicate", "float32"),
        ("all_reduce", "a..(root)", 12, "dp_replicate", "float32"),
    ]


@pytest.mark.parametrize("mb", [1e-6, TINY_MB, 25.0, None])
def test_buckets_of_ddp_change_the_count_and_never_the_volume(mb):
    assert numel(ddp(options={"bucket_mb": mb})) == 2 * 24


def test_ddp_sends_buffers_before_a_forward_that_follows_a_synchronized_one():
    buffers = [Buffer("rope", [2, 5], "float32", 10)]
    kinds = plan(ddp(buffers=buffers, micro_batches=3))["kind"].to_list()
    assert kinds == ["broadcast", "all_reduce", "all_reduce"] * 3
    assert rows(ddp(buffers=buffers, micro_batches=3, options=NO_SYNC), "kind", "micro_batch") == [
        ("broadcast", 0),
        ("all_reduce", 2),
        ("all_reduce", 2),
    ]
    assert numel(ddp(buffers=buffers, options={"broadcast_buffers": False})) == 48


def test_ddp_compiled_as_a_whole_sends_buffers_inside_the_model():
    buffers = [Buffer("rope", [2, 5], "float32", 10)]
    places = {
        scope: rows(ddp(buffers=buffers, options={"compile": scope}), "layer", "phase")[0]
        for scope in ("model", "blocks")
    }
    assert places == {"model": ("", "forward"), "blocks": (None, "forward")}


def test_a_hook_compresses_and_never_widens():
    assert plan(ddp(precision=Precision("bfloat16", "bfloat16")))["payload_bytes"].sum() == 48
    assert plan(ddp(precision=Precision("bfloat16", "float32")))["payload_bytes"].sum() == 96


def test_zero1_sends_three_psi_where_the_paper_says_two():
    manifest = ddp("zero1")
    assert numel(manifest) == 3 * 24
    sent = plan(manifest).filter(pl.col("kind") == "broadcast")
    # a to rank 0, b to rank 1, first to rank 0, last to rank 1; rank 0's are sent first.
    assert sent.select("in_numel", "phase", "layer").rows() == [(n, "optimizer", None) for n in (8, 4, 8, 4)]
    assert dict(terms(manifest).select("term", "numel").iter_rows()) == {
        "theory": 48,
        "all-reduce in place of reduce-scatter": 24,
        "gradients reduced in another type": 0,
        "parameters gathered in another type": 0,
    }


def fsdp1(strategy="fsdp1", parameters=SMALL, **more):
    return manifest_of(strategy, parameters, **more)


def test_fsdp1_keeps_the_root_and_gathers_flat_parameters():
    # The root's two parameters of 4 start at 16 bytes each: 8 elements of bf16, so that they end at 12.
    assert rows(fsdp1(), "kind", "layer", "phase", "out_numel") == [
        ("all_gather", "", "forward", 12),
        ("all_gather", "a", "forward", 8),
        ("all_gather", "b", "forward", 8),
        ("all_gather", "b", "backward", 8),
        ("all_gather", "a", "backward", 8),
        ("reduce_scatter", "b", "backward", 4),
        ("reduce_scatter", "a", "backward", 4),
        ("reduce_scatter", "", "backward", 6),
    ]


def test_fsdp1_starts_each_parameter_at_16_bytes_and_pads_to_the_ranks():
    # bf16: multiples of 8 elements. 3 then 5: the second starts at 8 and ends at 13; 15 on 3 ranks.
    odd = [parameter("a.x", 3, layer="a"), parameter("a.y", 5, layer="a")]
    manifest = fsdp1(parameters=odd, units=("a", ""), ranks=3)
    assert rows(manifest, "kind", "in_numel", "out_numel") == [
        ("all_gather", 5, 15),
        ("all_gather", 5, 15),
        ("reduce_scatter", 15, 5),
    ]
    assert terms(manifest).filter(pl.col("term") == "alignment padding")["numel"].to_list() == [3 * 7]


def test_fsdp1_reduces_frozen_parameters_among_trained_ones():
    pair = [parameter("a.x", 8, layer="a"), parameter("a.y", 8, layer="a", requires_grad=False)]
    assert rows(fsdp1(parameters=pair, units=("a", "")), "kind", "payload_numel")[-1] == ("reduce_scatter", 16)
    alone = [replace(entry, requires_grad=False) for entry in pair]
    assert "reduce_scatter" not in plan(fsdp1(parameters=alone, units=("a", "")))["kind"].to_list()


def test_shard_grad_op_without_sync_keeps_units_for_later_micro_batches():
    manifest = fsdp1("zero2-fsdp1", micro_batches=3, options=NO_SYNC)
    assert plan(manifest).group_by("kind").len().sort("kind").rows() == [("all_gather", 3), ("reduce_scatter", 3)]
    assert plan(replace(manifest, strategy="fsdp1"))["kind"].to_list().count("all_gather") == 3 * 5


def test_61_blocks_are_gathered_twice_and_the_root_once():
    blocks = [parameter(f"layers.{i}.w", 4, layer=f"layers.{i}") for i in range(4)]
    names = (*(f"layers.{i}" for i in range(4)), "")
    for strategy in ("fsdp1", "fsdp2"):
        frame = plan(manifest_of(strategy, [*blocks, parameter("root", 4)], units=names))
        counts = frame.group_by("kind", "phase", maintain_order=True).len().rows()
        assert counts == [
            ("all_gather", "forward", 5),
            ("all_gather", "backward", 4),
            ("reduce_scatter", "backward", 5),
        ]
        assert numel(manifest_of(strategy, [*blocks, parameter("root", 4)], units=names)) == 3 * 20 - 4


def test_63_bf16_gathers_and_fp32_reductions_are_8_bytes_a_parameter():
    frame = plan(manifest_of("fsdp2", SMALL, reshard=True))
    assert frame["payload_bytes"].sum() == 8 * 24


def test_65_three_shapes_of_accumulation_over_four_micro_batches():
    mesh = [Axis("dp_replicate", 2), Axis("dp_shard", 2)]
    base = manifest_of("hsdp", SMALL, ranks=4, mesh=mesh, micro_batches=4)
    last_all_reduce = {"all_reduce_every_micro_batch": False}
    for options, scatters, reduces in (({}, 12, 12), (last_all_reduce, 12, 3), (NO_SYNC, 3, 3)):
        kinds = plan(replace(base, options=options))["kind"].to_list()
        assert [kinds.count(kind) for kind in ("all_gather", "reduce_scatter", "all_reduce")] == [20, scatters, reduces]


def test_68_uneven_rows_are_gathered_with_their_padding():
    for row_count, gathered in ((10, 12), (1001, 1004)):
        manifest = manifest_of("fsdp2", [parameter("w", row_count, 3)], ranks=4, units=("",))
        assert rows(manifest, "kind", "payload_numel")[0] == ("all_gather", gathered * 3)


def test_hsdp_all_reduces_the_shards_it_has_reduced():
    mesh = [Axis("dp_replicate", 3), Axis("dp_shard", 2)]
    manifest = manifest_of("hsdp", SMALL, ranks=6, mesh=mesh)
    reduced = plan(manifest).filter(pl.col("axis") == "dp_replicate")
    assert reduced.select("layer", "in_numel", "group_size", "dtype").rows() == [
        (layer, 4, 3, "float32") for layer in ("b", "a", "")
    ]
    assert terms(manifest).filter(pl.col("term") == "replicate-axis all-reduce")["numel"].to_list() == [2 * 12]


BLOCK = [
    parameter("layers.0.norm.weight", 8, layer="layers.0"),
    parameter("layers.0.attention.wq.weight", 8, 8, layer="layers.0"),
    parameter("layers.0.attention.wo.weight", 8, 8, layer="layers.0"),
]


def tensor_parallel(**options):
    mesh = [Axis("dp_shard", 2), Axis("tp", 4)]
    options = {"batch_size": 2, "seq_len": 3, **options}
    return manifest_of("fsdp2-tp", BLOCK, ranks=8, mesh=mesh, units=("layers.0", ""), options=options)


def test_tensor_parallelism_gathers_its_own_part_and_all_reduces_activations():
    # Each matrix is 16 elements a rank on 4 ranks, the norm 8 whole. Activations: 2 × 3 tokens of 8.
    assert rows(tensor_parallel(), "kind", "axis", "phase", "in_numel", "out_numel") == [
        ("all_gather", "dp_shard", "forward", 20, 40),
        ("all_reduce", "tp", "forward", 48, 48),
        ("all_gather", "dp_shard", "backward", 20, 40),
        ("all_reduce", "tp", "backward", 48, 48),
        ("reduce_scatter", "dp_shard", "backward", 40, 20),
    ]
    found = dict(terms(tensor_parallel()).select("term", "numel").iter_rows())
    assert found["parameters split over tp"] == -3 * 96
    assert found["tensor-parallel activations"] == 2 * 2 * 48


def test_clipping_sums_one_norm_a_parameter_over_each_axis_that_splits_it():
    norms = plan(tensor_parallel(clip_grad_norm=1.0)).filter(pl.col("phase") == "optimizer")
    assert norms.select("axis", "in_numel").rows() == [("dp_shard", 1), ("dp_shard", 2), ("tp", 2)]


@pytest.mark.parametrize(
    ("torch", "numel"),
    [("2.6.0+cu124", 1), ("2.9.1", 1), ("2.10.0", 2), ("2.13.0+cpu", 2), ("3.0.0a0+git1", 2), (None, 2), ("main", 2)],
)
def test_before_torch_2_10_the_norm_of_a_mesh_is_one_element(torch, numel):
    manifest = tensor_parallel(clip_grad_norm=1.0)
    manifest.versions["torch"] = torch
    norms = plan(manifest).filter(pl.col("phase") == "optimizer")
    assert norms.select("axis", "in_numel").rows() == [("dp_shard", 1), ("dp_shard", numel), ("tp", numel)]


def test_the_graph_saves_what_it_gathered():
    manifest = manifest_of("fsdp2-graph", SMALL)
    assert plan(manifest).group_by("kind", "phase", maintain_order=True).len().rows() == [
        ("all_gather", "forward", 4),
        ("reduce_scatter", "backward", 4),
    ]
    tied = [*SMALL, parameter("output", 2, 2, tied_to="first")]
    assert numel(manifest_of("fsdp2-graph", tied)) == 48 + 8


def deepspeed(strategy, **more):
    options = {"reduce_bucket_size": 8, **more.pop("options", {})}
    return manifest_of(strategy, SMALL, options=options, precision=Precision("bfloat16", None), **more)


def test_57_accumulation_multiplies_the_gradients_of_stage_2_alone():
    for strategy, gradients in (("zero1-deepspeed", 24), ("zero2", 4 * 24)):
        frame = plan(deepspeed(strategy, micro_batches=4))
        assert frame.filter(pl.col("phase") == "backward")["payload_numel"].sum() == gradients
        assert frame.filter(pl.col("kind") == "all_gather")["payload_numel"].to_list() == [24]


def test_bf16_gradients_that_add_up_in_fp32_are_reduced_at_once():
    manifest = deepspeed("zero1-deepspeed", micro_batches=2, options={"grad_accum_dtype": "float32"})
    assert rows(manifest, "kind", "payload_numel") == [("all_reduce", 24), ("all_gather", 24)]


MODEL = [
    parameter("emb.weight", 10),
    parameter("layers.0.w.weight", 20, layer="layers.0"),
    parameter("layers.1.w.weight", 20, layer="layers.1"),
    parameter("out.weight", 10),
]


def uses(parameters):
    return [Use(one.name.rpartition(".")[0], one) for one in parameters]


def gathers(**limits):
    limits = Limits(**{"prefetch": 0, "reuse": 0, "live": 10**9, "persistence": 0, **limits})
    return [(f.module, f.phase, [p.name for p in f.parameters]) for f in fetches(visits(uses(MODEL)), limits)]


def test_stage_3_gathers_each_module_in_forward_and_backward():
    names = ["emb", "layers.0.w", "layers.1.w", "out"]
    expected = [(name, "forward", [f"{name}.weight"]) for name in names]
    assert gathers() == [*expected, *((name, "backward", what) for name, _, what in reversed(expected))]


def test_stage_3_keeps_what_is_used_again_soon():
    # From out in forward to out in backward nothing lies between.
    assert [fetch[0] for fetch in gathers(reuse=1)] == [
        "emb", "layers.0.w", "layers.1.w", "out", "layers.1.w", "layers.0.w", "emb"
    ]  # fmt: skip
    assert len(gathers(reuse=10**9)) == 4


def test_stage_3_gathers_what_it_recomputes_but_for_the_last_module():
    block = [parameter(f"layers.0.{name}.weight", 10, layer="layers.0") for name in ("q", "k", "v")]
    order = visits(uses([*MODEL[:1], *block, *MODEL[3:]]), ["layers.0"])
    made = fetches(order, Limits(prefetch=0, reuse=0, live=10**9, persistence=0))
    backward = [fetch.module.rpartition(".")[2] for fetch in made if fetch.phase == "backward"]
    # v is entered first and stays until its own backward; q and k are gathered again before they are left.
    assert backward == ["out", "v", "q", "k", "k", "q", "emb"]


def test_stage_3_enters_a_block_and_its_wrapper_and_recomputes_the_block_alone():
    block = [parameter(f"layers.0.{name}.weight", 10, layer="layers.0") for name in ("q", "k")]
    order = visits(uses([*MODEL[:1], *block, *MODEL[3:]]), ["layers.0"])
    entered = {phase: [visit.module for visit in order if visit.phase == phase] for phase in ("forward", "backward")}
    around, first, last = ["layers.0", "layers.0"], "layers.0.q", "layers.0.k"
    assert entered["forward"] == ["", "emb", *around, first, last, "out"]
    assert entered["backward"] == ["", "out", *around, last, "layers.0", first, last, first, "emb"]
    # Each module that is entered gathers ahead, while its own parameters are not there yet, be it a wrapper.
    made = fetches(order, Limits(prefetch=5, reuse=0, live=10**9, persistence=0))
    assert [(fetch.module, [one.name for one in fetch.parameters]) for fetch in made if fetch.phase == "forward"] == [
        ("", ["emb.weight"]),
        ("emb", ["layers.0.q.weight"]),
        ("layers.0", ["layers.0.k.weight"]),
        ("layers.0", ["out.weight"]),
        ("layers.0.q", ["emb.weight"]),
    ]


def test_stage_3_frees_frozen_parameters_with_the_module_that_recomputed_them():
    names = ("q", "k", "v")
    block = [parameter(f"layers.0.{name}.weight", 10, layer="layers.0", requires_grad=name != "q") for name in names]
    order = visits(uses([*MODEL[:1], *block, *MODEL[3:]]), ["layers.0"])
    # Everything but q stays, for its later use; q is gathered again for its own backward.
    made = fetches(order, Limits(prefetch=0, reuse=10**9, live=10**9, persistence=0))
    backward = [fetch.module for fetch in made if fetch.phase == "backward"]
    assert backward == ["layers.0.q"]


def test_stage_3_gathers_a_tied_parameter_at_each_of_its_modules():
    tied = parameter("out.weight", 10, tied_to="emb.weight")
    manifest = manifest_of("zero3-deepspeed", [*MODEL[:3], tied], units=("layers.0", "layers.1", ""))
    none = {"stage3_param_persistence_threshold": 0, "stage3_prefetch_bucket_size": 0, "stage3_max_reuse_distance": 0}
    manifest = replace(manifest, options=none)
    gathered = plan(manifest).filter(kind="all_gather").select("layer", "phase", "payload_numel").rows()
    # From out in forward to out in backward nothing lies between, but no reuse is looked for.
    root, blocks = ("", 10), [("layers.0", 20), ("layers.1", 20)]
    forward, backward = [root, *blocks, root], [root, *blocks[::-1], root]
    ways = [("forward", forward), ("backward", backward)]
    assert gathered == [(layer, phase, numel) for phase, calls in ways for layer, numel in calls]
    assert dict(terms(manifest).select("term", "numel").iter_rows())["parameters gathered more than twice"] == 20


def test_stage_3_enters_no_backward_of_what_comes_before_all_that_is_trained():
    frozen = [replace(one, requires_grad=False) for one in MODEL[:2]]
    block = [parameter(f"layers.1.{name}.weight", 10, layer="layers.1", requires_grad=name != "q") for name in "qkv"]
    for recomputed, entered in (((), ["out", "v", "k"]), (["layers.0", "layers.1"], ["out", "v", "q", "k", "k"])):
        order = visits(uses([*frozen, *block, *MODEL[3:]]), recomputed)
        made = fetches(order, Limits(prefetch=0, reuse=0, live=10**9, persistence=0))
        # What is recomputed takes the frozen part of its block again, but not the blocks before.
        assert [fetch.module[-3:].strip(".1") for fetch in made if fetch.phase == "backward"] == entered


@pytest.mark.parametrize(
    ("persistence", "most", "kept"),
    [
        (10, 100, ["emb", "out"]),
        (10, 10, ["emb"]),
        (10, 9, []),
        (20, 30, 2),
        (20, 40, ["emb", "layers.0.w", "out"]),
        (20, 59, 3),
        (20, 60, 4),
    ],
)
def test_stage_3_keeps_the_first_small_parameters_that_fit(persistence, most, kept):
    limits = Limits(prefetch=0, reuse=0, live=10**9, persistence=persistence, most_persistent=most)
    found = [one.name.removesuffix(".weight") for one in persistent(MODEL, limits)]
    assert found == (["emb", "layers.0.w", "layers.1.w", "out"][:kept] if isinstance(kept, int) else kept)


def test_stage_3_counts_recomputation_beyond_the_theory():
    options = {"stage3_prefetch_bucket_size": 0, "stage3_max_reuse_distance": 0, "activation_checkpointing": True}
    options["stage3_param_persistence_threshold"] = 0
    block = [parameter(f"layers.0.{name}.weight", 10, layer="layers.0") for name in ("q", "k", "v")]
    manifest = manifest_of("zero3-deepspeed", [*MODEL[:1], *block], units=("layers.0", ""), options=options)
    found = terms(replace(manifest, precision=Precision("bfloat16", None)))
    assert ("parameters gathered more than twice", 20) in found.select("term", "numel").rows()


def test_stage_3_gathers_ahead_up_to_the_bucket():
    # On entering the model: emb 10 and the first layer 20 reach 25.
    assert gathers(prefetch=25)[0] == ("", "forward", ["emb.weight", "layers.0.w.weight"])


def test_stage_3_never_gathers_small_parameters_but_after_the_step():
    options = {
        "stage3_param_persistence_threshold": 15,
        "stage3_prefetch_bucket_size": 0,
        "stage3_max_reuse_distance": 0,
    }
    manifest = manifest_of("zero3-deepspeed", MODEL, units=("layers.0", "layers.1", ""), options=options)
    manifest = replace(manifest, precision=Precision("bfloat16", None))
    assert rows(manifest, "kind", "layer", "phase", "payload_numel") == [
        ("all_gather", "layers.0", "forward", 20),
        ("all_gather", "layers.1", "forward", 20),
        ("all_gather", "layers.1", "backward", 20),
        ("all_gather", "layers.0", "backward", 20),
        ("reduce_scatter", "(root)..layers.0", "backward", 60),
        ("all_reduce", None, "optimizer", 1),
        ("all_gather", None, "optimizer", 10),
        ("all_gather", None, "optimizer", 10),
    ]


SHAPES = st.lists(
    st.tuples(st.integers(1, 9), st.integers(1, 5), st.booleans(), st.sampled_from(["a", "b", ""])), max_size=5
)
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "sync_every_micro_batch": st.booleans(),
        "all_reduce_every_micro_batch": st.booleans(),
        "clip_grad_norm": st.just(1.0),
        "reduce_bucket_size": st.integers(1, 40),
        "reduce_scatter": st.booleans(),
        "use_multi_rank_bucket_allreduce": st.booleans(),
        "bucket_mb": st.sampled_from([TINY_MB, 1.0]),
        "stage3_prefetch_bucket_size": st.integers(0, 40),
        "stage3_max_reuse_distance": st.sampled_from([0, 10, 10**9]),
        "stage3_param_persistence_threshold": st.integers(0, 20),
        "activation_checkpointing": st.booleans() | st.sampled_from(CHECKPOINTING),
        "grad_accum_dtype": st.sampled_from(["float32", "bfloat16"]),
    },
)


@pytest.mark.parametrize("strategy", STRATEGIES)
@given(
    shapes=SHAPES,
    options=OPTIONS,
    micro_batches=st.integers(1, 3),
    ranks=st.integers(1, 5),
    reshard=st.sampled_from([None, True, False]),
    dtypes=st.sampled_from([(None, None), ("bfloat16", "float32"), ("bfloat16", None), ("float32", "bfloat16")]),
)
def test_terms_lead_from_the_closed_form_to_the_plan_whatever_the_options(
    strategy, shapes, options, micro_batches, ranks, reshard, dtypes
):
    parameters = [
        parameter(f"{layer or 'root'}.p{i}.weight", rows, columns, layer=layer, requires_grad=trained)
        for i, (rows, columns, trained, layer) in enumerate(shapes)
    ]
    mesh = [Axis("dp_replicate", 2), Axis("dp_shard", ranks)] if strategy == "hsdp" else [Axis("dp_shard", ranks)]
    manifest = manifest_of(
        strategy, parameters, ranks=ranks, mesh=mesh, options=options, micro_batches=micro_batches, reshard=reshard
    )
    manifest = replace(manifest, precision=Precision(*dtypes), units=[Unit(n, reshard) for n in ("a", "b", "")])
    frame, expected = terms_by_place(manifest), plan(manifest)
    assert frame["numel"].sum() == (expected["payload_numel"] * expected["passes"]).sum()
    assert frame["payload_bytes"].sum() == expected["payload_bytes"].sum()
    theory = frame.filter(pl.col("term") == "theory")["numel"].sum()
    assert theory == zero_communication_volume(manifest.psi, strategy_stage(strategy))
