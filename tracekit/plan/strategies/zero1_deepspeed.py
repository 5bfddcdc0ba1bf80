"""DeepSpeed stage 1: gradients stay whole and are reduced once a step, whatever the accumulation.

Source: DeepSpeed 0.19.8, runtime/engine.py (`allreduce_gradients`, `allreduce_no_retain`),
runtime/bf16_optimizer.py and runtime/zero/stage_1_and_2.py (`process_gradients`).

Stage 1 runs the code of stage 2, but only at the border of a step: in the last micro-batch. Where bf16 gradients add up
in float32 it is another optimizer altogether (`BF16_Optimizer`): one all-reduce of all gradients after backward, in
buckets of 5e8 elements, no overflow flag, and a norm that needs no collective, as every rank has all gradients.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.plan.gradient_buckets import bucket_layer, gradients
from tracekit.plan.inputs import SHARD, axis_size, option, own_parameters, total, trainable
from tracekit.plan.schema import Call, item_size
from tracekit.plan.strategies import zero2
from tracekit.plan.strategies.zero2 import absent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.manifest import Manifest, Parameter
    from tracekit.plan.holding import Holding

__all__ = ["absent", "collectives", "memory"]

_BUCKET_NUMEL = 500_000_000


def collectives(manifest: Manifest) -> list[Call]:
    """Expected collectives of one step, in the order in which DeepSpeed issues them."""
    if has_bf16_optimizer(manifest):
        gathers = (call for call in zero2.step_calls(manifest) if call.kind == "all_gather")
        return [*_whole_gradients(manifest), *gathers]
    return [*zero2.gradient_calls(manifest, manifest.micro_batches - 1, 0), *zero2.step_calls(manifest)]


def memory(manifest: Manifest, _rank: int) -> Holding:
    """Bytes of a rank: whole parameters, and whole gradients until they are reduced.

    BF16_Optimizer holds the sums of all gradients always, padded as the flat parameters (`_setup_for_real_optimizer`).
    """
    size = item_size(zero2.model_dtype(manifest))
    accumulated = item_size(option(manifest, "grad_accum_dtype", default=None) or zero2.model_dtype(manifest))
    whole = total(trainable(own_parameters(manifest)))
    if has_bf16_optimizer(manifest):
        sums = accumulated * zero2.gathered_numel(manifest)
        holds = zero2.whole_parameters(manifest, sums + whole * size)
        return holds._replace(gradients=sums, collective_buffers=0)
    return zero2.whole_parameters(manifest, whole * (size + (accumulated if manifest.micro_batches > 1 else 0)))


def has_bf16_optimizer(manifest: Manifest) -> bool:
    """True where the engine is BF16_Optimizer: as it said itself, else where bf16 gradients add up in float32."""
    wide = option(manifest, "grad_accum_dtype", default=None) == "float32"
    inferred = "BF16_Optimizer" if wide and zero2.model_dtype(manifest) == "bfloat16" else ""
    return option(manifest, "optimizer", default=inferred) == "BF16_Optimizer"


def _whole_gradients(manifest: Manifest) -> Iterator[Call]:
    """All gradients in registration order; a bucket goes once it holds more than its size."""
    ranks, dtype, size = axis_size(manifest), zero2.gradient_dtype(manifest), item_size(zero2.model_dtype(manifest))
    sent = {parameter.name for parameter in gradients(manifest)}
    buckets: list[list[Parameter]] = [[]]
    for parameter in trainable(own_parameters(manifest)):
        if total(buckets[-1]) > _BUCKET_NUMEL:
            buckets.append([])
        if parameter.name in sent:
            buckets[-1].append(parameter)
    for bucket in filter(None, buckets):
        numel = total(bucket)
        # A bucket of everything is called by the order of its gradients, as the trace cannot tell another.
        layer = bucket_layer(gradients(manifest) if len(buckets) == 1 else bucket)
        place = (layer, "backward", manifest.micro_batches - 1, "all_reduce", SHARD, ranks, dtype)
        yield Call(*place, numel, numel, numel, numel * size)
