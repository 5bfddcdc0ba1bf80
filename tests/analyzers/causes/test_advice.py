"""Advice: each setting is offered to runs of its framework that have it off, and to no others."""

from __future__ import annotations

import pytest
from fakes import SMALL, manifest_of
from msgspec.structs import replace

from tracekit.analyzers.causes.advice import ADVICE, advice
from tracekit.manifest import Precision, Unit
from tracekit.strategies import STRATEGIES

FULL, HALF = Precision("float32", "float32", None, "float32"), Precision("bfloat16", "bfloat16", None, "bfloat16")


def run_of(strategy, *, precision=FULL, micro_batches=1, backend="nccl", reshard=None, **options):
    told = {"forward_prefetch": 0, "backward_prefetch": 0, "async_unshard": False, **options}
    manifest = manifest_of(strategy, SMALL, precision=precision, micro_batches=micro_batches, options=told)
    return replace(manifest, backend=backend, units=[Unit("a", reshard), Unit("", reshard)])


# Cause, kind, phase, what is offered, a run that has it off, and runs that have it on or have no such setting.
OFFERED = [
    (
        "no prefetch",
        ("all_gather", "forward"),
        "set_modules_to_forward_prefetch",
        run_of("fsdp2"),
        [run_of("fsdp2", forward_prefetch=1), run_of("fsdp1"), run_of("ddp"), run_of("zero3-deepspeed")],
    ),
    (
        "no prefetch",
        ("all_gather", "backward"),
        "set_modules_to_backward_prefetch",
        run_of("hsdp"),
        [run_of("hsdp", backward_prefetch=2), run_of("zero2-fsdp1")],
    ),
    (
        "synchronous",
        ("all_gather", "backward"),
        "_set_unshard_async_op",
        run_of("fsdp2", backend="gloo"),
        [run_of("fsdp2", async_unshard=True), run_of("zero2")],
    ),
    ("no prefetch", ("all_gather", "forward"), "forward_prefetch=True", run_of("fsdp1"), [run_of("fsdp2")]),
    (
        "no prefetch",
        ("all_gather", "backward"),
        "stage3_prefetch_bucket_size",
        run_of("zero3-deepspeed", stage3_prefetch_bucket_size=0),
        [run_of("zero3-deepspeed", stage3_prefetch_bucket_size=10**7), run_of("fsdp2")],
    ),
    (
        "link",
        ("all_gather", "backward"),
        "reshard_after_forward=False",
        run_of("fsdp2"),
        [run_of("fsdp2", reshard=False), run_of("zero2-fsdp2", reshard=False), run_of("fsdp1"), run_of("zero2")],
    ),
    (
        "link",
        ("all_gather", "backward"),
        "SHARD_GRAD_OP",
        run_of("fsdp1"),
        [run_of("zero2-fsdp1", reshard=False), run_of("fsdp2")],
    ),
    (
        "link",
        ("reduce_scatter", "backward"),
        "reduce_dtype=torch.bfloat16",
        run_of("fsdp2"),
        [run_of("fsdp2", precision=HALF), run_of("ddp")],
    ),
    (
        "link",
        ("all_gather", "forward"),
        "param_dtype=torch.bfloat16",
        run_of("fsdp2"),
        [run_of("fsdp2", precision=HALF)],
    ),
    (
        "link",
        ("all_reduce", "backward"),
        "bf16_compress_hook",
        run_of("ddp"),
        [run_of("ddp", precision=HALF), run_of("fsdp2"), run_of("zero2")],
    ),
    (
        "link",
        ("all_reduce", "backward"),
        "no_sync()",
        run_of("ddp", micro_batches=4),
        [run_of("ddp"), run_of("ddp", micro_batches=4, sync_every_micro_batch=False), run_of("fsdp2", micro_batches=4)],
    ),
    (
        "link",
        ("broadcast", "forward"),
        "broadcast_buffers=False",
        run_of("ddp", broadcast_buffers=True),
        [run_of("ddp", broadcast_buffers=False), run_of("fsdp2", broadcast_buffers=True)],
    ),
    (
        "synchronous",
        ("all_reduce", "backward"),
        "compute waits for the bucket",
        run_of("zero2"),
        [run_of("ddp"), run_of("fsdp2")],
    ),
    (
        "synchronous",
        ("reduce_scatter", "backward"),
        "overlap_comm",
        run_of("zero3-deepspeed", overlap_comm=False),
        [run_of("zero3-deepspeed", overlap_comm=True), run_of("fsdp2")],
    ),
    ("end of step", ("all_reduce", "backward"), "bucket_cap_mb", run_of("ddp"), [run_of("zero2"), run_of("fsdp2")]),
    ("end of step", ("all_reduce", "optimizer"), "reduce_bucket_size", run_of("zero2"), [run_of("ddp")]),
    ("serialised", ("reduce_scatter", "backward"), "fully_shard", run_of("fsdp2"), [run_of("ddp"), run_of("fsdp1")]),
]


@pytest.mark.parametrize(("cause", "what", "words", "off", "others"), OFFERED, ids=[f"{c[0]}-{c[2]}" for c in OFFERED])
def test_a_setting_is_offered_where_it_is_off_and_only_there(cause, what, words, off, others):
    assert words in advice(off, cause, *what, "dp_shard")
    for other in others:
        assert words not in advice(other, cause, *what, "dp_shard"), other.strategy


@pytest.mark.parametrize("cause", ADVICE)
@pytest.mark.parametrize("kind", ["send", "recv"])
def test_point_to_point_is_offered_no_setting_of_collectives(cause, kind):
    for strategy in STRATEGIES:
        assert advice(run_of(strategy), cause, kind, "forward", None) == ADVICE[cause].text


@pytest.mark.parametrize("cause", ADVICE)
def test_a_trace_without_manifest_is_offered_no_setting(cause):
    assert advice(None, cause, "all_gather", "forward", None) == ADVICE[cause].text
    assert not any(word in ADVICE[cause].text for word in ("set_modules", "bucket", "reshard", "DeepSpeed", "hook"))


def test_what_the_manifest_does_not_tell_may_be_on():
    manifest = replace(run_of("fsdp1"), options={})
    assert advice(manifest, "no prefetch", "all_gather", "forward", None) == ADVICE["no prefetch"].text


@pytest.mark.parametrize("cause", ["late rank", "no prefetch", "synchronous", "link"])
def test_tensor_parallelism_has_advice_of_its_own(cause):
    told = advice(run_of("fsdp2-tp"), cause, "all_reduce", "forward", "tp")
    assert told == ADVICE[cause].tensor_parallel
    assert told != advice(run_of("fsdp2-tp"), cause, "all_reduce", "forward", "dp_shard")


def test_a_strategy_that_is_not_known_is_offered_no_setting():
    manifest = replace(run_of("fsdp2"), strategy="mine")
    assert advice(manifest, "no prefetch", "all_gather", "forward", None) == ADVICE["no prefetch"].text
