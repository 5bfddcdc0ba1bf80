from __future__ import annotations

import polars as pl
import pytest
from fakes import SMALL, manifest_of, parameter

from tracekit.manifest import Precision
from tracekit.model.collectives.bucket_layers import with_bucket_layers
from tracekit.plan import plan, terms

BF16 = Precision("bfloat16", None)


def deepspeed(parameters=SMALL, *, ranks=2, bucket=8, **more):
    options = {"reduce_bucket_size": bucket, **more.pop("options", {})}
    return manifest_of("zero2", parameters, ranks=ranks, options=options, precision=BF16, **more)


def gradients(manifest) -> list[tuple[str, str, int]]:
    frame = plan(manifest).filter(pl.col("phase") == "backward")
    return frame.select("layer", "kind", "in_numel").rows()


def terms_of(manifest) -> dict[str, tuple[int, int]]:
    frame, expected = terms(manifest), plan(manifest)
    assert frame["numel"].sum() == (expected["payload_numel"] * expected["passes"]).sum()
    assert frame["payload_bytes"].sum() == expected["payload_bytes"].sum()
    return {name: (numel, size) for name, numel, size in frame.iter_rows()}


def test_a_bucket_is_sent_when_the_next_gradient_would_overflow_it():
    # Reverse registration: last (4), b (8), a (8), first (4); 12 hold last and b, then a and first.
    assert gradients(deepspeed(bucket=12)) == [("(root)..b", "all_reduce", 12), ("a..(root)", "all_reduce", 12)]
    assert gradients(deepspeed(bucket=8)) == [
        ("", "all_reduce", 4),
        ("b", "all_reduce", 8),
        ("a", "all_reduce", 8),
        ("", "all_reduce", 4),
    ]


def test_the_observed_order_decides_over_registration():
    manifest = deepspeed(grad_order=["a.weight", "last", "first", "b.weight"])
    assert gradients(manifest) == [("a", "all_reduce", 8), ("", "all_reduce", 8), ("b", "all_reduce", 8)]


def test_the_default_bucket_holds_a_small_model_whole():
    assert gradients(deepspeed(bucket=None)) == [("(root)..a", "all_reduce", 24)]


def test_the_step_ends_with_two_scalars_and_one_gather():
    frame = plan(deepspeed()).filter(pl.col("phase") == "optimizer")
    assert frame.select("layer", "kind", "dtype", "in_numel", "out_numel", "payload_bytes").rows() == [
        (None, "all_reduce", "uint8", 1, 1, 1),
        (None, "all_reduce", "float32", 1, 1, 4),
        (None, "all_gather", "bfloat16", 12, 24, 48),
    ]


def test_terms_name_the_all_reduce_and_the_scalars():
    assert terms_of(deepspeed()) == {
        "theory": (48, 96),
        "all-reduce in place of reduce-scatter": (24, 0),
        "overflow check": (2, 1),
        "gradient norm": (2, 4),
    }


def test_a_step_without_its_checks():
    options = {"check_grad_overflow": False, "compute_grad_norm": True}
    assert set(terms_of(deepspeed(options=options))) == {
        "theory",
        "all-reduce in place of reduce-scatter",
        "gradient norm",
    }
    assert "gradient norm" not in terms_of(deepspeed(options={"compute_grad_norm": False}))


def test_the_flat_parameters_are_padded_to_twice_the_ranks():
    manifest = deepspeed(ranks=5)
    assert plan(manifest).filter(pl.col("kind") == "all_gather")["out_numel"].to_list() == [30]
    assert terms_of(manifest)["alignment padding"] == (6, 12)


def test_micro_batches_repeat_the_gradients_alone():
    manifest = deepspeed(micro_batches=4)
    assert plan(manifest).group_by("kind").len().sort("kind").rows() == [("all_gather", 1), ("all_reduce", 18)]
    assert terms_of(manifest)["further micro-batches"] == (3 * 48, 3 * 48)


def test_an_oversized_gradient_is_cut_at_the_partitions_when_scattering():
    # Flat: first 0..4, a 4..12, b 12..20, last 20..24; with 4 ranks of 6 elements, a is 2 + 6, b is 6 + 2.
    manifest = deepspeed(ranks=4, bucket=4, options={"reduce_scatter": True})
    assert gradients(manifest) == [
        ("", "all_reduce", 4),
        ("b", "all_reduce", 6),
        ("b", "all_reduce", 2),
        ("a", "all_reduce", 8),
        ("", "all_reduce", 4),
    ]
    whole = deepspeed(ranks=4, bucket=4, options={"reduce_scatter": False})
    assert [numel for *_, numel in gradients(whole)] == [4, 8, 8, 4]


def test_each_owner_gets_its_part_when_buckets_are_not_all_reduced():
    manifest = deepspeed(ranks=4, bucket=12, options={"use_multi_rank_bucket_allreduce": False})
    # last and b: 4 of rank 3, then 6 of rank 2 and 2 more of rank 3. a and first: 2 + 4 of rank 0, 6 of rank 1.
    assert gradients(manifest) == [
        ("(root)..b", "reduce", 6),
        ("(root)..b", "reduce", 6),
        ("a..(root)", "reduce", 6),
        ("a..(root)", "reduce", 6),
    ]
    assert "all-reduce in place of reduce-scatter" not in terms_of(manifest)


def test_frozen_parameters_are_neither_reduced_nor_gathered():
    frozen = parameter("frozen", 3, requires_grad=False)
    manifest = deepspeed([*SMALL, frozen])
    assert plan(manifest).filter(pl.col("kind") == "all_gather")["out_numel"].to_list() == [24]
    assert terms_of(manifest)["frozen parameters not sent"] == (-6, -12)


def test_parameters_that_got_no_gradient_are_gathered_all_the_same():
    manifest = deepspeed(grad_order=["last", "b.weight", "a.weight"])
    assert terms_of(manifest)["parameters without a gradient"] == (-4, -8)


def test_a_single_rank_reduces_and_does_not_gather():
    manifest = deepspeed(ranks=1)
    assert plan(manifest)["kind"].unique().to_list() == ["all_reduce"]
    assert terms_of(manifest)["a single rank gathers nothing"] == (-24, -48)


def test_full_precision_needs_no_overflow_check():
    manifest = manifest_of("zero2", SMALL, precision=Precision())
    assert plan(manifest)["dtype"].unique().to_list() == ["float32"]
    assert "overflow check" not in terms_of(manifest)


def test_gradients_may_travel_wider_than_parameters():
    manifest = manifest_of("zero2", SMALL, precision=Precision("bfloat16", "float32"))
    assert terms_of(manifest)["gradients reduced in another type"] == (0, 48)


# Buckets of whole gradients, and some in two parts: gradients of 8 lie across the border of the ranks' halves.
@pytest.mark.parametrize(("bucket", "calls"), [(12, 2), (6, 4)])
def test_the_plan_spells_buckets_as_the_model_finds_them_in_a_trace(bucket, calls):
    manifest = deepspeed(bucket=bucket, grad_order=["last", "b.weight", "a.weight", "first"])
    sent = plan(manifest).filter(pl.col("phase") == "backward")
    assert sent.height == calls
    here = [pl.lit(value).alias(name) for name, value in (("rank", 0), ("cycle", 0), ("step", 5))]
    unknown = [pl.lit(None, pl.String).alias(name) for name in ("layer", "layer_from")]
    seen = sent.select("kind", "in_numel", "dtype", *unknown, pl.lit("other").alias("phase"))
    found = with_bucket_layers(
        seen.with_row_index("row").with_columns(*here, pl.col("row").cast(pl.Int64).alias("issued_ns")), manifest
    )
    assert found.select("layer", "phase").rows() == sent.select("layer", "phase").rows()


ODD = [parameter("first", 5), parameter("a.w", 7, layer="a"), parameter("b.w", 3, layer="b"), parameter("last", 8)]
PADDED = ["last", "b.w", "a.w", "first"]


# Three ranks pad 8, 3, 7 and 5 elements to 9, 3, 9 and 6; the sums of two passes are followed as well as those of one.
@pytest.mark.parametrize(
    ("ranks", "sent", "layers"),
    [
        (3, [12, 15], ["(root)..b", "a..(root)"]),
        (3, [9, 3, 9, 6], ["", "b", "a", ""]),
        (3, [27, 12, 15], ["(root)..a", "(root)..b", "a..(root)"]),
        (1, [11, 12], ["(root)..b", "a..(root)"]),
        # Parts that are no whole gradients, and a pass that is cut short.
        (2, [8, 4, 4, 8], [None] * 4),
        (3, [12, 9], [None] * 2),
        (3, [11, 12], ["(root)..b", "a..(root)"]),
    ],
)
def test_reduce_scatters_of_padded_gradients_are_buckets_and_others_are_not(ranks, sent, layers):
    manifest = manifest_of("zero3-deepspeed", ODD, ranks=ranks, grad_order=PADDED)
    columns = {"row": range(len(sent)), "in_numel": sent, "out_numel": [numel // ranks for numel in sent]}
    same = {"rank": 0, "cycle": 0, "step": 5, "kind": "reduce_scatter", "phase": "backward", "dtype": "bfloat16"}
    unknown = [pl.lit(None, pl.String).alias(name) for name in ("layer", "layer_from")]
    seen = pl.DataFrame(columns).with_columns(pl.col("row").alias("issued_ns"), pl.col("row").cast(pl.UInt32))
    seen = seen.with_columns(*(pl.lit(value).alias(name) for name, value in same.items()), *unknown)
    assert with_bucket_layers(seen, manifest)["layer"].to_list() == layers


METRIC = ("all_reduce", 5, "other")


# The gradients of ODD in two buckets, and what the loop sends beside them.
@pytest.mark.parametrize(
    ("kind", "buckets", "strategy"),
    [("all_reduce", [11, 12], "ddp"), ("reduce_scatter", [12, 15], "zero3-deepspeed"), ("reduce", [11, 12], "zero2")],
)
@pytest.mark.parametrize("metrics", [[METRIC], [("all_reduce", 3, "optimizer")] * 2, [("reduce", 5, "other")]])
def test_metrics_of_the_loop_take_no_layer_from_the_buckets(kind, buckets, strategy, metrics):
    manifest = manifest_of(strategy, ODD, ranks=3, grad_order=PADDED)
    sent = [*((kind, numel, "backward") for numel in buckets), *metrics]
    rows = [
        {"row": row, "rank": 0, "cycle": 0, "step": 5, "issued_ns": row, "dtype": "float32", "kind": kind}
        | {"in_numel": numel, "out_numel": numel // 3 if kind == "reduce_scatter" else numel, "phase": phase}
        for row, (kind, numel, phase) in enumerate(sent)
    ]
    unknown = [pl.lit(None, pl.String).alias(name) for name in ("layer", "layer_from")]
    seen = pl.DataFrame(rows).with_columns(pl.col("row").cast(pl.UInt32), *unknown)
    found = with_bucket_layers(seen, manifest)
    assert found["layer"].to_list() == ["(root)..b", "a..(root)", *[None] * len(metrics)]
    assert found["phase"].to_list() == [phase for _, _, phase in sent]
