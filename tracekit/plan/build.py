"""A manifest for a run that never was: from a model's size, another manifest, or the header of a safetensors file."""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any

from tracekit.errors import InputError, UsageError
from tracekit.manifest import Axis, Buffer, Manifest, Parameter, Precision, Unit
from tracekit.plan.inputs import REPLICATE, SHARD, TENSOR
from tracekit.strategies import STRATEGIES, find

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from tracekit.reference_models import Size

_AXES = (REPLICATE, SHARD, TENSOR)
# A header lists names and shapes; the largest public models stay far below this.
_MAX_HEADER_BYTES = 100_000_000
_SAFETENSORS_DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
}
# "model.layers.12.self_attn.q_proj.weight" belongs to the block "model.layers.12".
_BLOCK = re.compile(r"^((?:[A-Za-z_]\w*\.)*\d+)\.")


def manifest(
    strategy: str,
    parameters: Sequence[Parameter],
    *,
    mesh: Mapping[str, int],
    micro_batches: int = 1,
    precision: Precision | None = None,
    reshard: bool | int | None = None,
    units: Sequence[Unit] | None = None,
    options: Mapping[str, Any] | None = None,
    buffers: Sequence[Buffer] = (),
    grad_order: Sequence[str] | None = None,
) -> Manifest:
    """The manifest that the recorder would have written of such a run, as far as a plan needs it.

    Raises:
        UsageError: the step has more collectives or elements than can be, as many micro-batches of many parameters.
    """
    own = [parameter for parameter in parameters if parameter.tied_to is None]
    blocks = dict.fromkeys(parameter.layer for parameter in parameters if parameter.layer)
    try:
        return Manifest(
            format=1,
            strategy=strategy,
            world_size=math.prod(mesh.values()),
            psi=sum(parameter.numel for parameter in own),
            psi_train=sum(parameter.numel for parameter in own if parameter.requires_grad),
            options=dict(options or {}),
            mesh=[Axis(axis, size) for axis, size in mesh.items()] or [Axis(SHARD, 1)],
            precision=precision or Precision(),
            micro_batches=micro_batches,
            parameters=list(parameters),
            buffers=list(buffers),
            units=list(units) if units is not None else [Unit(name, reshard) for name in (*blocks, "")],
            grad_order=list(grad_order) if grad_order is not None else None,
        )
    except ValueError as error:
        raise UsageError(f"There is no plan for that: {error}; ask for fewer micro-batches") from None


def of_model(strategy: str, size: Size, *, mesh: Mapping[str, int], **more: Any) -> Manifest:
    """The manifest that the training program writes for this size with the strategy's defaults, as far as plans go.

    `more` are arguments of `manifest`; `options` replace single defaults.
    """
    from tracekit.reference_models import gradient_order

    precision = more.pop("precision", None) or precision_of(strategy)
    options = find(strategy).defaults(size) | dict(more.pop("options", None) or {})
    return manifest(
        strategy,
        model_parameters(size, precision.storage_dtype or "float32"),
        mesh=mesh,
        precision=precision,
        options=options,
        buffers=model_buffers(size),
        grad_order=gradient_order(size),
        **more,
    )


def precision_of(strategy: str, param_dtype: str | None = None, reduce_dtype: str | None = None) -> Precision:
    """The types of a strategy: its defaults, but for those that are given."""
    known = find(strategy)
    computed = param_dtype or known.param_dtype
    return Precision(computed, reduce_dtype or known.reduce_dtype or computed, None, known.storage_dtype or computed)


def model_parameters(size: Size, dtype: str = "float32") -> list[Parameter]:
    """The parameters of a decoder of this size, as the runners train it."""
    from tracekit.reference_models import parameter_shapes

    first = "tok_embeddings.weight"
    return [
        parameter(name, shape, dtype, tied_to=first if size.tied and name == "output.weight" else None)
        for name, shape in parameter_shapes(size)
    ]


def model_buffers(size: Size) -> list[Buffer]:
    """The buffers of that decoder: the table of its rotary embedding."""
    shape = [2, size.max_seq_len, size.dim // size.heads]
    return [Buffer("rope", shape, "float32", math.prod(shape))]


def parameter(name: str, shape: Sequence[int], dtype: str, *, tied_to: str | None = None) -> Parameter:
    """A parameter whose unit is the block that its name names."""
    block = _BLOCK.match(name)
    return Parameter(name, list(shape), dtype, math.prod(shape), layer=block[1] if block else "", tied_to=tied_to)


def parameters_from(path: Path) -> list[Parameter]:
    """The parameters that a manifest or the header of a safetensors file lists; weights are not read.

    Raises:
        InputError: the file cannot be read, or is neither.
    """
    try:
        with path.open("rb") as stream:
            head = stream.read(8)
            if head.lstrip()[:1] != b"{":
                length = int.from_bytes(head, "little")
                if len(head) < 8 or not 2 <= length <= _MAX_HEADER_BYTES:
                    raise InputError(
                        f"{path}: neither a manifest nor a safetensors file; give one with parameter shapes"
                    )
                return list(_from_header(stream.read(length), length, path))
            data = head + stream.read(_MAX_HEADER_BYTES)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); give a manifest or a safetensors file") from None
    import msgspec

    try:
        return msgspec.json.decode(data, type=Manifest).parameters
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not a manifest that tracekit wrote ({error}); give another file") from None


def mesh_of(parts: Iterable[str], strategy: str) -> dict[str, int]:
    """`dp_shard=64`, `dp_replicate=2,dp_shard=8` or, for a strategy with one axis, `64`: sizes by axis, in mesh order.

    Where a strategy has one axis, the other data-parallel name is taken for it: DDP's ranks are replicas, ZeRO's shard.

    Raises:
        UsageError: a part is no axis with a positive size, or the strategy has no such axis.
    """
    axes, mesh = find(strategy).axes, dict[str, int]()
    for part in (piece.strip() for text in parts for piece in text.split(",")):
        axis, _, size = part.rpartition("=")
        axis = axis or (axes[0] if len(axes) == 1 else "")
        if axis not in _AXES or not size.isdecimal() or not 0 < int(size) <= 10**6:
            raise UsageError(f"--mesh {part} is no axis with a size: give dp_shard=64, dp_replicate=2 or tp=8")
        if axis in mesh:
            raise UsageError(f"--mesh names {axis} twice; give each axis once")
        mesh[axis] = int(size)
    if len(axes) == 1 and len(mesh) == 1 and not mesh.keys() & {*axes, TENSOR}:
        mesh = {axes[0]: mesh.popitem()[1]}
    if not mesh.keys() <= {*axes}:
        able = [name for name, other in STRATEGIES.items() if mesh.keys() <= {*other.axes}]
        advice = f"; {' and '.join(able)} have these" if able else ""
        raise UsageError(f"--mesh: {strategy} has {' and '.join(axes)}, not {' and '.join(mesh)}{advice}")
    return {axis: mesh[axis] for axis in _AXES if axis in mesh}


def _from_header(header: bytes, length: int, path: Path) -> Iterable[Parameter]:
    problem = InputError(f"{path}: its safetensors header is damaged; download the file again")
    if len(header) < length:
        raise problem
    try:
        entries = json.loads(header)
        for name, entry in entries.items():
            if name == "__metadata__":
                continue
            shape, dtype = entry["shape"], _SAFETENSORS_DTYPES[entry["dtype"]]
            if not all(type(size) is int and size >= 0 for size in shape):
                raise problem
            yield parameter(name, shape, dtype)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise problem from None
