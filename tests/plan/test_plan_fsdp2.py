from __future__ import annotations

import polars as pl
import pytest
from fakes import SMALL, manifest_of, parameter
from msgspec.structs import replace

from tracekit.manifest import Precision, Unit
from tracekit.plan import PLAN_SCHEMA, TERMS_SCHEMA, plan, terms, terms_by_place


def volume_of(manifest) -> tuple[int, int]:
    frame = plan(manifest)
    return (frame["payload_numel"] * frame["passes"]).sum(), frame["payload_bytes"].sum()


def terms_of(manifest) -> dict[str, tuple[int, int]]:
    frame = terms(manifest)
    assert (frame["numel"].sum(), frame["payload_bytes"].sum()) == volume_of(manifest)
    return {name: (numel, size) for name, numel, size in frame.iter_rows()}


def test_default_gathers_all_units_twice_but_the_root():
    rows = plan(manifest_of("fsdp2", SMALL)).select("kind", "layer", "phase", "in_numel", "out_numel").rows()
    assert rows == [
        ("all_gather", "", "forward", 4, 8),
        ("all_gather", "a", "forward", 4, 8),
        ("all_gather", "b", "forward", 4, 8),
        ("all_gather", "b", "backward", 4, 8),
        ("all_gather", "a", "backward", 4, 8),
        ("reduce_scatter", "b", "backward", 8, 4),
        ("reduce_scatter", "a", "backward", 8, 4),
        ("reduce_scatter", "", "backward", 8, 4),
    ]


def test_parameters_are_gathered_in_one_type_and_reduced_in_another():
    frame = plan(manifest_of("fsdp2", SMALL)).select("kind", "dtype", "payload_bytes", "group_size", "axis").unique()
    assert set(frame.rows()) == {
        ("all_gather", "bfloat16", 16, 2, "dp_shard"),
        ("reduce_scatter", "float32", 32, 2, "dp_shard"),
    }


def test_terms_lead_from_three_psi_to_the_plan():
    assert terms_of(manifest_of("fsdp2", SMALL)) == {
        "theory": (72, 144),
        "root unit not gathered again": (-8, -16),
        "gradients reduced in another type": (0, 48),
    }


def test_root_told_to_reshard_is_gathered_again_first():
    manifest = manifest_of("fsdp2", SMALL, reshard=True)
    backward = plan(manifest).filter(pl.col("phase") == "backward", pl.col("kind") == "all_gather")
    assert backward["layer"].to_list() == ["", "b", "a"]
    assert terms_of(manifest).keys() == {"theory", "gradients reduced in another type"}


@pytest.mark.parametrize("reshard", [False, 1])
def test_units_kept_gathered_are_gathered_once(reshard):
    manifest = manifest_of("fsdp2", SMALL, reshard=reshard)
    assert plan(manifest).group_by("kind").len().sort("kind").rows() == [("all_gather", 3), ("reduce_scatter", 3)]
    assert terms_of(manifest)["units kept gathered"] == (-16, -32)
    assert terms_of(manifest)["root unit not gathered again"] == (-8, -16)


def test_zero2_by_fsdp2_keeps_everything_whatever_the_units_say():
    manifest = manifest_of("zero2-fsdp2", SMALL)
    assert volume_of(manifest) == (48, 24 * 2 + 24 * 4)
    assert terms_of(manifest) == {"theory": (48, 96), "gradients reduced in another type": (0, 48)}


def test_integer_reshard_gathers_from_smaller_groups_in_backward():
    frame = plan(manifest_of("fsdp2", SMALL, ranks=4, reshard=2)).filter(pl.col("layer") == "a")
    assert frame.select("kind", "group_size", "in_numel", "out_numel").rows() == [
        ("all_gather", 4, 2, 8),
        ("all_gather", 2, 4, 8),
        ("reduce_scatter", 4, 8, 2),
    ]


def test_dim_0_is_padded_to_the_ranks_and_told_as_padding():
    # Linear with 10 rows on 4 ranks: 3 rows a rank, 12 gathered. One row on 4 ranks: 4 gathered.
    manifest = manifest_of("fsdp2", [parameter("w", 10, 3, layer="a"), parameter("s", 1, 5)], ranks=4, units=("a", ""))
    gathered = plan(manifest).filter(pl.col("kind") == "all_gather", pl.col("phase") == "forward")
    assert gathered.select("layer", "in_numel", "out_numel").rows() == [("", 5, 20), ("a", 9, 36)]
    # a: 6 more in two gathers and a reduction; root: 15 more in a gather and a reduction.
    assert terms_of(manifest)["padding of dim 0"] == (3 * 6 + 2 * 15, 2 * 6 * 2 + 6 * 4 + 15 * 2 + 15 * 4)


def test_frozen_parameters_are_gathered_and_not_reduced():
    frozen = parameter("a.frozen", 2, 3, layer="a", requires_grad=False)
    manifest = manifest_of("fsdp2", [*SMALL, frozen])
    layer = plan(manifest).filter(pl.col("layer") == "a")
    assert layer.select("kind", "payload_numel").rows() == [
        ("all_gather", 14),
        ("all_gather", 14),
        ("reduce_scatter", 8),
    ]
    assert terms_of(manifest)["frozen parameters not reduced"] == (-6, -12)


def test_a_unit_without_gradients_reduces_nothing():
    parameters = [parameter("first", 2), parameter("a.w", 2, layer="a", requires_grad=False)]
    frame = plan(manifest_of("fsdp2", parameters, units=("a", "")))
    assert frame.filter(layer="a")["kind"].to_list() == ["all_gather", "all_gather"]


def test_tied_parameters_travel_once():
    tied = parameter("output", 2, 2, tied_to="first")
    assert plan(manifest_of("fsdp2", [*SMALL, tied])).equals(plan(manifest_of("fsdp2", SMALL)))


def test_every_micro_batch_gathers_and_reduces():
    once, thrice = manifest_of("fsdp2", SMALL), manifest_of("fsdp2", SMALL, micro_batches=3)
    assert volume_of(thrice)[0] == 3 * volume_of(once)[0]
    assert plan(thrice)["micro_batch"].unique().sort().to_list() == [0, 1, 2]
    assert terms_of(thrice)["further micro-batches"] == (2 * 64, 2 * 176)


def test_without_mixed_precision_the_stored_type_travels():
    manifest = manifest_of("fsdp2", SMALL, precision=Precision())
    assert plan(manifest)["dtype"].unique().to_list() == ["float32"]


def test_mixed_stored_types_are_gathered_as_bytes():
    pair = [parameter("w", 2, 2), parameter("s", 2, 1, dtype="bfloat16", requires_grad=False)]
    manifest = manifest_of("fsdp2", pair, units=("",), precision=Precision())
    row = plan(manifest).row(0, named=True)
    assert (row["dtype"], row["out_numel"], row["payload_bytes"]) == ("uint8", 4 * 4 + 2 * 2, 20)
    assert terms_of(manifest)["mixed types gathered as bytes"] == (20 - 6, 0)


def test_a_single_rank_sends_nothing():
    manifest = manifest_of("fsdp2", SMALL, ranks=1)
    assert plan(manifest).is_empty()
    assert terms_of(manifest)["a single rank sends nothing"] == (-72, -144)


def test_root_that_owns_nothing_is_not_gathered():
    manifest = manifest_of("fsdp2", [parameter("a.w", 2, 2, layer="a")], units=("a", ""))
    assert plan(manifest)["layer"].unique().to_list() == ["a"]


def test_units_run_in_wrap_order_whatever_the_registration():
    manifest = replace(manifest_of("fsdp2", SMALL), units=[Unit("b"), Unit("a"), Unit("")])
    assert plan(manifest).filter(pl.col("phase") == "forward")["layer"].to_list() == ["", "b", "a"]


@pytest.mark.parametrize("manifest", [None, manifest_of("unheard of", SMALL)])
def test_no_plan_is_an_empty_frame_with_the_schema(manifest):
    assert plan(manifest).schema == PLAN_SCHEMA
    assert terms_by_place(manifest).schema == TERMS_SCHEMA
    assert plan(manifest).is_empty()
    assert terms(manifest).is_empty()


@pytest.mark.parametrize("strategy", ["fsdp2", "zero2", "zero2-fsdp2"])
def test_a_model_without_parameters_has_nothing_to_send(strategy):
    manifest = manifest_of(strategy, [])
    assert plan(manifest).is_empty()
    assert terms(manifest).rows() == [("theory", 0, 0)]
