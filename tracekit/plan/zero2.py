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
- The optimizer step all-reduces an overflow flag (16-bit types only) and the gradient norm, one element each,
  then gathers the flat parameters, padded to a multiple of 2N, whatever `allgather_bucket_size` says.
- A single rank still issues its all-reduces; only the gather is skipped.

All parameters are assumed to lie in one optimizer group, and `round_robin_gradients` to be off.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.model.buckets import ROOT
from tracekit.plan.schema import (
    PASSES,
    Call,
    Term,
    axis_size,
    item_size,
    own_parameters,
    payload_numel,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tracekit.read.manifest import Manifest, Parameter

AXIS = "dp_shard"
REDUCE_BUCKET_SIZE = 500_000_000
_START_ALIGNMENT = 2  # elements; DeepSpeed's nccl_start_alignment_factor


def collectives(manifest: Manifest) -> list[Call]:
    """Expected collectives of one step, in the order in which DeepSpeed issues them."""
    calls = list(_gradient_calls(manifest))
    calls += (Call(None, "optimizer", None, "all_reduce", *extra) for extra in _scalars(manifest).values())
    ranks, numel = axis_size(manifest, AXIS), gathered_numel(manifest)
    if ranks > 1 and numel:
        dtype = _model_dtype(manifest)
        calls.append(Call(None, "optimizer", None, "all_gather", AXIS, ranks, dtype, numel // ranks, numel))
    return calls


def terms(manifest: Manifest) -> list[Term]:
    """Named terms from the lesson's 2Ψ to the plan; they add up exactly.

    Bytes of the theory count both passes in the type of the model's parameters.
    """
    parameters = own_parameters(manifest)
    psi, trained = _numel(parameters), _numel(_trainable(manifest))
    reduced = _numel(gradients(manifest))
    size, sent = item_size(_model_dtype(manifest)), item_size(_gradient_dtype(manifest))
    gathered = gathered_numel(manifest)
    gradient_calls = list(_gradient_calls(manifest))
    crossing = sum(payload_numel(call) * PASSES[call.kind] for call in gradient_calls) // manifest.micro_batches
    result = [
        Term("theory", 2 * psi, 2 * psi * size),
        Term("frozen parameters not sent", 2 * (trained - psi), 2 * (trained - psi) * size),
        Term("parameters without a gradient", reduced - trained, (reduced - trained) * size),
        Term("gradients reduced in another type", 0, reduced * (sent - size)),
        Term("all-reduce in place of reduce-scatter", crossing - reduced, 0),
        Term("further micro-batches", *_repeats(manifest, crossing, reduced * sent)),
        Term("alignment padding", gathered - trained, (gathered - trained) * size),
    ]
    if axis_size(manifest, AXIS) == 1:
        result.append(Term("a single rank gathers nothing", -gathered, -gathered * size))
    result += (Term(name, 2, item_size(extra[2])) for name, extra in _scalars(manifest).items())
    return result


def gradients(manifest: Manifest) -> list[Parameter]:
    """Parameters in the order in which their gradients are handed to the buckets.

    The order that the recorder saw, else the reverse of registration, as a plain chain of layers gives.
    """
    trainable = _trainable(manifest)
    if manifest.grad_order is None:
        return trainable[::-1]
    by_name = {parameter.name: parameter for parameter in trainable}
    return [by_name[name] for name in manifest.grad_order if name in by_name]


def buckets(manifest: Manifest) -> list[list[Parameter]]:
    """Gradients as they are sent together: a bucket goes when the next one would take it over its size."""
    limit = int(manifest.options.get("reduce_bucket_size") or REDUCE_BUCKET_SIZE)
    filled: list[list[Parameter]] = []
    room = -1
    for parameter in gradients(manifest):
        if not filled or parameter.numel > room:
            filled.append([])
            room = limit
        filled[-1].append(parameter)
        room -= parameter.numel
    return filled


def gathered_numel(manifest: Manifest) -> int:
    """Elements of the flat parameters, padded so that every partition starts aligned."""
    alignment = _START_ALIGNMENT * axis_size(manifest, AXIS)
    return -(-_numel(_trainable(manifest)) // alignment) * alignment


def bucket_layer(bucket: Iterable[Parameter]) -> str:
    """The layer of a bucket: its only one, else the span `first..last` in the order of its gradients.

    Spelled as the model spells the layers of a bucket that it found in a trace.
    """
    layers = list(dict.fromkeys(parameter.layer for parameter in bucket))
    return layers[0] if len(layers) == 1 else f"{layers[0] or ROOT}..{layers[-1] or ROOT}"


def _gradient_calls(manifest: Manifest) -> Iterator[Call]:
    ranks, dtype = axis_size(manifest, AXIS), _gradient_dtype(manifest)
    for micro_batch in range(manifest.micro_batches):
        for bucket in buckets(manifest):
            layer = bucket_layer(bucket)
            for kind, numel in _sends(manifest, bucket):
                yield Call(layer, "backward", micro_batch, kind, AXIS, ranks, dtype, numel, numel)


def _sends(manifest: Manifest, bucket: list[Parameter]) -> Iterator[tuple[str, int]]:
    """Kind and elements of the calls that one bucket becomes."""
    options, numel = manifest.options, _numel(bucket)
    if not _option(options.get("reduce_scatter"), default=True):
        yield "all_reduce", numel
        return
    if not _option(options.get("use_multi_rank_bucket_allreduce"), default=True):
        yield from (("reduce", part) for part in _parts(manifest, bucket).values())
        return
    limit = int(options.get("reduce_bucket_size") or REDUCE_BUCKET_SIZE)
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
    size = gathered_numel(manifest) // axis_size(manifest, AXIS)
    starts: dict[str, int] = {}
    offset = 0
    for parameter in _trainable(manifest):
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


def _scalars(manifest: Manifest) -> dict[str, tuple[str, int, str, int, int]]:
    """The one-element all-reduces of the optimizer step, by name: axis, group size, type, in, out."""
    ranks, options = axis_size(manifest, AXIS), manifest.options
    if not _trainable(manifest):
        return {}
    scalars: dict[str, tuple[str, int, str, int, int]] = {}
    low_precision = _model_dtype(manifest) in {"bfloat16", "float16"}
    if low_precision and _option(options.get("check_grad_overflow"), default=True):
        scalars["overflow check"] = (AXIS, ranks, "uint8", 1, 1)
    if _option(options.get("compute_grad_norm"), default=True):
        scalars["gradient norm"] = (AXIS, ranks, "float32", 1, 1)
    return scalars


def _repeats(manifest: Manifest, crossing: int, size: int) -> tuple[int, int]:
    return (manifest.micro_batches - 1) * crossing, (manifest.micro_batches - 1) * size


def _option(value: object, *, default: bool) -> bool:
    return default if value is None else bool(value)


def _model_dtype(manifest: Manifest) -> str:
    trainable = _trainable(manifest)
    stored = trainable[0].dtype if trainable else "float32"
    return manifest.precision.param_dtype or stored


def _gradient_dtype(manifest: Manifest) -> str:
    return manifest.precision.reduce_dtype or _model_dtype(manifest)


def _trainable(manifest: Manifest) -> list[Parameter]:
    return [parameter for parameter in own_parameters(manifest) if parameter.requires_grad]


def _numel(parameters: Iterable[Parameter]) -> int:
    return sum(parameter.numel for parameter in parameters)
