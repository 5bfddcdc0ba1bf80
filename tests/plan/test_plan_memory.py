from __future__ import annotations

import pytest
from fakes import SMALL, manifest_of, parameter
from msgspec.structs import replace

from tracekit.manifest import Buffer, Precision
from tracekit.plan import MEMORY_SCHEMA, memory
from tracekit.strategies import STRATEGIES

BF16 = Precision("bfloat16", None)


def held(manifest, rank=0) -> dict[str, int]:
    return dict(memory(manifest, rank).select("component", "held_bytes").iter_rows())


def peak(manifest) -> dict[str, int]:
    return dict(memory(manifest).select("component", "peak_bytes").iter_rows())


def test_60_buckets_of_deepspeed_are_a_term_of_their_own_and_may_outweigh_the_saving():
    model = [parameter("w", 1000)]
    one, two = (
        manifest_of(strategy, model, precision=BF16, options={"reduce_bucket_size": 5000})
        for strategy in ("zero1-deepspeed", "zero2")
    )
    # Two buckets of 5000 elements in bf16, as communication overlaps.
    assert peak(two)["collective_buffers"] == 2 * 5000 * 2
    assert peak(one)["gradients"] - peak(two)["gradients"] == 2000 - 1000
    assert peak(two)["collective_buffers"] > peak(one)["gradients"]
    alone = replace(two, options={**two.options, "overlap_comm": False})
    assert peak(alone)["collective_buffers"] == 5000 * 2


def test_fsdp2_holds_padded_shards_and_the_state_of_what_is_really_there():
    # 3 rows on 2 ranks: 2 and 1, of 5 columns; storage is padded to 2 on both.
    manifest = manifest_of("fsdp2", [parameter("w", 3, 5)], units=("",))
    assert held(manifest)["parameters"] == held(manifest, 1)["parameters"] == 2 * 5 * 4
    assert held(manifest)["optimizer_state"] == 8 * 10 + 4
    assert held(manifest, 1)["optimizer_state"] == 8 * 5 + 4


def test_fsdp2_has_the_root_and_two_units_unsharded_at_most():
    assert peak(manifest_of("fsdp2", SMALL))["unsharded_parameters"] == 2 * (8 + 8 + 8)
    four = [parameter(f"{name}.w", 8, layer=name) for name in "abcd"]
    manifest = manifest_of("fsdp2", four, units=(*"abcd", ""))
    assert peak(manifest)["unsharded_parameters"] == 2 * 16
    assert peak(replace(manifest, options={"backward_prefetch": 2}))["unsharded_parameters"] == 2 * 24
    assert peak(replace(manifest, strategy="zero2-fsdp2"))["unsharded_parameters"] == 2 * 32


def test_ddp_keeps_a_flat_copy_of_the_gradients():
    assert held(manifest_of("ddp", SMALL)) == {
        "parameters": 96,
        "gradients": 0,
        "optimizer_state": 2 * 96 + 4 * 4,
        "buffers": 0,
        "unsharded_parameters": 0,
        "collective_buffers": 96,
    }


def test_zero1_holds_the_state_of_its_own_parameters():
    # Rank 0 owns a and first: 12 elements, two counters.
    assert held(manifest_of("zero1", SMALL))["optimizer_state"] == 8 * 12 + 8


def test_deepspeed_holds_fp32_masters_and_moments_of_its_partition():
    manifest = manifest_of("zero2", SMALL, precision=BF16)
    assert (held(manifest)["parameters"], held(manifest)["optimizer_state"]) == (48, 12 * 12 + 4)
    third = manifest_of("zero3-deepspeed", SMALL, precision=BF16, options={"stage3_param_persistence_threshold": 5})
    # Half of everything, and the two of 4 elements whole beside it.
    assert held(third)["parameters"] == 2 * (12 + 8)


def test_bf16_optimizer_holds_the_sums_of_all_gradients():
    more = {"precision": Precision("bfloat16", None), "options": {"grad_accum_dtype": "float32"}}
    assert held(manifest_of("zero1-deepspeed", SMALL, **more))["gradients"] == 4 * 24
    # Padded as the flat parameters are: to multiples of 2 × 5 elements.
    assert held(manifest_of("zero1-deepspeed", SMALL, ranks=5, **more))["gradients"] == 4 * 30
    assert held(manifest_of("zero1-deepspeed", SMALL, precision=Precision("bfloat16", None)))["gradients"] == 0
    assert held(manifest_of("zero2", SMALL, **more))["gradients"] == 0


def test_stage_3_holds_what_persists_whole_and_padded():
    # On 5 ranks 4 and 8 elements are padded to 5 and 10: partitions of 1 and 2, and all of the two that persist.
    options = {"stage3_param_persistence_threshold": 4}
    manifest = manifest_of("zero3-deepspeed", SMALL, ranks=5, precision=Precision("bfloat16", None), options=options)
    assert held(manifest)["parameters"] == 2 * (1 + 2 + 2 + 1 + 5 + 5)
    none = replace(manifest, options={**options, "stage3_model_persistence_threshold": 7})
    assert held(none)["parameters"] == 2 * (1 + 2 + 2 + 1 + 5)


def test_buffers_of_the_model_are_held():
    assert held(manifest_of("fsdp1", SMALL, buffers=[Buffer("rope", [4], "float32", 4)]))["buffers"] == 16


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("model", [[], SMALL, [parameter("w", 1, requires_grad=False)]])
def test_every_strategy_has_whole_numbers_for_any_model(strategy, model):
    frame = memory(manifest_of(strategy, model))
    assert frame.schema == MEMORY_SCHEMA
    assert frame.height == 6
    assert frame["held_bytes"].min() >= 0
    assert (frame["peak_bytes"] >= frame["held_bytes"]).all()


def test_no_plan_is_an_empty_frame():
    assert memory(None).is_empty()
    assert memory(manifest_of("moe", SMALL)).schema == MEMORY_SCHEMA
