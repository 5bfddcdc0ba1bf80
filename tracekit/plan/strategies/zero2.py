"""DeepSpeed stage 2: reduces gradients in buckets during backward, gathers parameters after the optimizer.

Source: DeepSpeed 0.19.8, runtime/zero/stage_1_and_2.py (`average_tensor`, `allreduce_and_scatter`,
`reduce_independent_p_g_buckets_and_remove_grads`, `has_overflow`, `get_grad_norm_direct`) and
runtime/utils.py (`all_gather_into_tensor_dp_groups`).

- A bucket is sent when the next gradient would overflow it. It is all-reduced: with `reduce_scatter` off
  because that is the whole path, with it on because `use_multi_rank_bucket_allreduce` is on too. Only with
  the latter off does each owner get its part by a `reduce`.
- A gradient larger than the bucket travels alone and, with `reduce_scatter` on, may be sent in parts cut at
  the borders of the ranks' partitions.
- Gradients travel once a micro-batch: stage 2 keeps no whole gradient to add up in.
- The optimizer step all-reduces an overflow flag (of 16-bit types, unless `check_grad_overflow` is off) and the
  gradient norm, one element each, then gathers the flat parameters, padded to a multiple of 2N, whatever
  `allgather_bucket_size` says. Clipping uses the norm that is there.
- A single rank still issues its all-reduces; only the gather is skipped.
- Release by release: 0.16.9, 0.17.6 and 0.18.4 look for the overflow of float16 alone (`DeepSpeedZeroOptimizer.step`,
  `if self.dtype == torch.float16`); 0.19 asks `check_grad_overflow`, which the engine sets for bfloat16 too
  (runtime/engine.py, `_configure_zero_optimizer`). The recorder reads it from the optimizer as the option of that name.

All parameters are assumed to lie in one optimizer group, and `round_robin_gradients` to be off.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.plan import shares as named
from tracekit.plan.gradient_buckets import before_overflow, bucket_layer, gradients
from tracekit.plan.holding import DEEPSPEED_STATE_BYTES, STEP_BYTES, Holding
from tracekit.plan.inputs import SHARD, axis_size, option, own_parameters, total, trainable
from tracekit.plan.schema import Call, Term, item_size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.manifest import Manifest, Parameter

REDUCE_BUCKET_SIZE = 500_000_000
_START_ALIGNMENT = 2  # elements; DeepSpeed's nccl_start_alignment_factor


def collectives(manifest: Manifest) -> list[Call]:
    """Expected collectives of one step, in the order in which DeepSpeed issues them."""
    calls = [
        call
        for micro_batch in range(manifest.micro_batches)
        for call in gradient_calls(manifest, micro_batch, micro_batch)
    ]
    return [*calls, *step_calls(manifest)]


def absent(manifest: Manifest) -> Iterator[Term]:
    """Parts of the closed form, 2Ψ, that these calls leave out."""
    size, sent = item_size(model_dtype(manifest)), {parameter.name for parameter in gradients(manifest)}
    for parameter in own_parameters(manifest):
        numel, num_bytes = parameter.numel, parameter.numel * size
        reduced = (parameter.layer, "backward", "all_reduce", SHARD, gradient_dtype(manifest))
        gathered = (None, "optimizer", "all_gather", SHARD, model_dtype(manifest))
        if parameter.name not in sent:
            reason = named.NO_GRADIENT if parameter.requires_grad else named.FROZEN_UNSENT
            yield Term(reason, -numel, -num_bytes, *reduced)
        if not parameter.requires_grad:
            yield Term(named.FROZEN_UNSENT, -numel, -num_bytes, *gathered)
        elif axis_size(manifest) == 1:
            yield Term(named.SINGLE_GATHER, -numel, -num_bytes, *gathered)


def memory(manifest: Manifest, _rank: int) -> Holding:
    """Bytes of a rank: whole parameters, and gradients of its partition."""
    accumulated = item_size(option(manifest, "grad_accum_dtype", default=None) or model_dtype(manifest))
    return whole_parameters(manifest, gathered_numel(manifest) // axis_size(manifest) * accumulated)


def whole_parameters(manifest: Manifest, gradients: int) -> Holding:
    """Bytes of stages 1 and 2, which hold `gradients` bytes of those: fp32 masters and moments of one partition."""
    parameters, ranks = own_parameters(manifest), axis_size(manifest)
    size, part = item_size(model_dtype(manifest)), gathered_numel(manifest) // ranks
    state = DEEPSPEED_STATE_BYTES * part + STEP_BYTES
    # Overlapping fills a second bucket while the first is reduced; contiguous gradients are DeepSpeed's default.
    copies = 2 if option(manifest, "overlap_comm", default=True) else 1
    # The trained parameters are laid out anew, in one padded piece.
    stored = total(parameters) - total(trainable(parameters)) + gathered_numel(manifest)
    return Holding(stored * size, state, 0, gradients, 0, copies * bucket_numel(manifest) * size)


def gradient_calls(manifest: Manifest, micro_batch: int, repeat: int) -> Iterator[Call]:
    """The reductions of one backward; `repeat` is how many went before it in the step."""
    ranks, dtype, size = axis_size(manifest), gradient_dtype(manifest), item_size(model_dtype(manifest))
    term = named.MICRO_BATCHES if repeat else None
    for bucket in buckets(manifest):
        place = (bucket_layer(bucket), "backward", micro_batch)
        for kind, numel in _sends(manifest, bucket):
            yield Call(*place, kind, SHARD, ranks, dtype, numel, numel, numel, numel * size, term=term)


def step_calls(manifest: Manifest) -> Iterator[Call]:
    """Calls of the optimizer step: scalars, and the updated parameters."""
    ranks, numel = axis_size(manifest), gathered_numel(manifest)
    for term, dtype in _scalars(manifest).items():
        yield Call(None, "optimizer", None, "all_reduce", SHARD, ranks, dtype, 1, 1, term=term)
    if ranks > 1 and numel:
        own, dtype = total(trainable(own_parameters(manifest))), model_dtype(manifest)
        place = (None, "optimizer", None, "all_gather", SHARD, ranks, dtype)
        yield Call(*place, numel // ranks, numel, own, rest=named.ALIGNMENT)


def buckets(manifest: Manifest) -> list[list[Parameter]]:
    """Gradients as they are sent together."""
    return before_overflow(gradients(manifest), bucket_numel(manifest))


def gathered_numel(manifest: Manifest) -> int:
    """Elements of the flat parameters, padded so that every partition starts aligned."""
    alignment = _START_ALIGNMENT * axis_size(manifest)
    return -(-total(trainable(own_parameters(manifest))) // alignment) * alignment


def model_dtype(manifest: Manifest) -> str:
    """The type of the model's parameters."""
    wanting = trainable(own_parameters(manifest))
    return manifest.precision.param_dtype or (wanting[0].dtype if wanting else "float32")


def gradient_dtype(manifest: Manifest) -> str:
    """The type that gradients travel in."""
    return manifest.precision.reduce_dtype or model_dtype(manifest)


def bucket_numel(manifest: Manifest) -> int:
    """Elements that a bucket of gradients may have."""
    return int(option(manifest, "reduce_bucket_size", default=None) or REDUCE_BUCKET_SIZE)


def _sends(manifest: Manifest, bucket: list[Parameter]) -> Iterator[tuple[str, int]]:
    """Kind and elements of the calls that one bucket becomes."""
    numel, limit = total(bucket), bucket_numel(manifest)
    if not option(manifest, "reduce_scatter", default=True):
        yield "all_reduce", numel
        return
    if not option(manifest, "use_multi_rank_bucket_allreduce", default=True):
        yield from (("reduce", part) for part in _parts(manifest, bucket).values())
        return
    waiting = 0
    for part in _parts(manifest, bucket).values() if numel > limit else (numel,):
        waiting += part
        if waiting > limit:
            yield "all_reduce", waiting
            waiting = 0
    if waiting:
        yield "all_reduce", waiting


def _parts(manifest: Manifest, bucket: list[Parameter]) -> dict[int, int]:
    """Elements of a bucket by the rank that owns them in the flat parameters, in order of appearance."""
    size = gathered_numel(manifest) // axis_size(manifest)
    starts: dict[str, int] = {}
    offset = 0
    for parameter in trainable(own_parameters(manifest)):
        starts[parameter.name] = offset
        offset += parameter.numel
    parts: dict[int, int] = {}
    for parameter in bucket:
        position, end = starts[parameter.name], starts[parameter.name] + parameter.numel
        while position < end:
            owner = position // size
            border = min(end, (owner + 1) * size)
            parts[owner] = parts.get(owner, 0) + border - position
            position = border
    return parts


def _scalars(manifest: Manifest) -> dict[str, str]:
    """The one-element all-reduces of the optimizer step: term and type."""
    if not trainable(own_parameters(manifest)):
        return {}
    scalars: dict[str, str] = {}
    low_precision = model_dtype(manifest) in {"bfloat16", "float16"}
    if low_precision and option(manifest, "check_grad_overflow", default=True):
        scalars[named.OVERFLOW] = "uint8"
    if option(manifest, "compute_grad_norm", default=True):
        scalars[named.NORM] = "float32"
    return scalars
