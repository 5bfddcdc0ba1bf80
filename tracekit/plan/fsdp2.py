"""FSDP2: gathers each unit in forward and, where it was resharded, in backward; reduce-scatters gradients.

Source: torch 2.13, torch/distributed/fsdp/_fully_shard: `FSDPParamGroup.unshard` and `post_backward`,
`foreach_all_gather`, `foreach_reduce`, `FSDPState._lazy_init`, `_get_post_forward_mesh_info`.

- Every parameter is padded along dim 0 to a multiple of the group: N × ceil(d0 / N) × rest elements.
- `reshard_after_forward=None` reshards every unit but the root; False or 1 keeps a unit gathered; an integer
  k reshards to groups of k, from which backward gathers.
- Parameters are sharded again after each backward, so every micro-batch gathers and reduces anew.
- A unit whose parameters would be gathered in different types is gathered as bytes (uint8).
- A group of one rank issues no collective at all.

A unit whose output needs no gradient (all up to it is frozen) is assumed to be gathered in backward too.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from tracekit.plan.schema import Call, Term, axis_size, is_floating, item_size, own_parameters

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tracekit.read.manifest import Manifest, Parameter

AXIS = "dp_shard"


def collectives(manifest: Manifest, *, keep_gathered: bool = False) -> list[Call]:
    """Expected collectives of one step, in the order in which torch issues them on one thread.

    Backward prefetches: the next unit is gathered before the gradients of this one are reduced, the root's
    last. `keep_gathered` plans every unit as if `reshard_after_forward=False` had been given.
    """
    ranks = axis_size(manifest, AXIS)
    if ranks == 1:
        return []
    units = unit_parameters(manifest)
    again = regather_sizes(manifest, ranks, keep_gathered=keep_gathered)
    gathered = {name: _gathered(manifest, owned) for name, owned in units.items()}
    calls: list[Call] = []
    for micro_batch in range(manifest.micro_batches):
        calls += (_gather((name, "forward", micro_batch), gathered[name], ranks) for name in units)
        gathers = {name: _gather((name, "backward", micro_batch), gathered[name], again[name]) for name in again}
        for name, following in pairwise([*_backward_order(units), None]):
            calls += (gathers.pop(due) for due in (name, following) if due in gathers)
            if name:
                calls += _reduce((name, "backward", micro_batch), manifest, units[name])
        calls += _reduce(("", "backward", micro_batch), manifest, units.get("", []))
    return calls


def terms(manifest: Manifest, *, keep_gathered: bool = False) -> list[Term]:
    """Named terms from the lesson's 3Ψ (2Ψ with every unit kept gathered) to the plan; they add up exactly.

    Bytes of the theory count every pass in the type that the parameters are gathered in.
    """
    ranks, parameters = axis_size(manifest, AXIS), own_parameters(manifest)
    gathers = 1 if keep_gathered else 2
    theory = Term("theory", (gathers + 1) * _numel(parameters), (gathers + 1) * _bytes(manifest, parameters))
    if ranks == 1:
        return [theory, Term("a single rank sends nothing", -theory.numel, -theory.payload_bytes)]
    once = [theory, *_shape_terms(manifest, ranks, gathers, keep_gathered=keep_gathered)]
    repeats = manifest.micro_batches - 1
    return [
        *once,
        Term(
            "further micro-batches",
            repeats * sum(term.numel for term in once),
            repeats * sum(term.payload_bytes for term in once),
        ),
    ]


def _backward_order(units: Iterable[str]) -> list[str]:
    """Units as backward reaches them: the root, whose output is the model's, then the rest from the last."""
    names = list(units)
    return [*(name for name in names if not name), *(name for name in reversed(names) if name)]


def unit_parameters(manifest: Manifest) -> dict[str, list[Parameter]]:
    """Parameters of each unit that owns any, root first: the order of forward."""
    names = sorted((unit.name for unit in manifest.units), key=bool)
    owned: dict[str, list[Parameter]] = {name: [] for name in ("", *names)}
    for parameter in own_parameters(manifest):
        owned.setdefault(parameter.layer, []).append(parameter)
    return {name: parameters for name, parameters in owned.items() if parameters}


def regather_sizes(manifest: Manifest, ranks: int, *, keep_gathered: bool = False) -> dict[str, int]:
    """Units that are gathered again in backward, with the size of the group that gathers them."""
    sizes: dict[str, int] = {}
    owning = unit_parameters(manifest)
    for unit in () if keep_gathered else manifest.units:
        if unit.name not in owning:
            continue
        reshard = unit.reshard_after_forward
        if reshard is None:
            reshard = unit.name != ""
        if reshard is True:
            sizes[unit.name] = ranks
        elif reshard is not False and reshard != 1:
            sizes[unit.name] = int(reshard)
    return sizes


def padded_numel(parameter: Parameter, ranks: int) -> int:
    """Elements of a parameter once dim 0 is padded to a multiple of the group."""
    if not parameter.shape or not parameter.shape[0]:
        return parameter.numel
    return -(-parameter.shape[0] // ranks) * ranks * (parameter.numel // parameter.shape[0])


def _gather(place: tuple[str, str, int], gathered: tuple[int, str], size: int) -> Call:
    numel, dtype = gathered
    return Call(*place, "all_gather", AXIS, size, dtype, numel // size, numel)


def _reduce(place: tuple[str, str, int], manifest: Manifest, parameters: list[Parameter]) -> Iterator[Call]:
    trainable = [parameter for parameter in parameters if parameter.requires_grad]
    if trainable:
        ranks = axis_size(manifest, AXIS)
        numel, dtype = _padded(trainable, ranks), _reduce_dtype(manifest, trainable[0])
        yield Call(*place, "reduce_scatter", AXIS, ranks, dtype, numel, numel // ranks)


def _gathered(manifest: Manifest, parameters: list[Parameter]) -> tuple[int, str]:
    """Elements and type of one all-gather of these parameters."""
    ranks = axis_size(manifest, AXIS)
    dtypes = {_gather_dtype(manifest, parameter) for parameter in parameters}
    if len(dtypes) == 1:
        return _padded(parameters, ranks), dtypes.pop()
    return sum(
        padded_numel(parameter, ranks) * item_size(_gather_dtype(manifest, parameter)) for parameter in parameters
    ), "uint8"


def _shape_terms(manifest: Manifest, ranks: int, gathers: int, *, keep_gathered: bool) -> Iterator[Term]:
    """Terms of one micro-batch."""
    units = unit_parameters(manifest)
    again = regather_sizes(manifest, ranks, keep_gathered=keep_gathered)
    kept = [] if keep_gathered else [name for name in units if name not in again]
    root = [parameter for name in kept if not name for parameter in units[name]]
    others = [parameter for name in kept if name for parameter in units[name]]
    parameters = own_parameters(manifest)
    frozen = [parameter for parameter in parameters if not parameter.requires_grad]
    trainable = [parameter for parameter in parameters if parameter.requires_grad]
    yield Term("root unit not gathered again", -_numel(root), -_bytes(manifest, root))
    yield Term("units kept gathered", -_numel(others), -_bytes(manifest, others))
    yield Term("frozen parameters not reduced", -_numel(frozen), -_bytes(manifest, frozen))
    yield Term("gradients reduced in another type", 0, _reduce_bytes(manifest, trainable))
    passes = {name: gathers if name in again else 1 for name in units}
    yield _padding(manifest, units, passes, ranks)
    mixed = {
        name: _gathered(manifest, owned)[0] - _padded(owned, ranks)
        for name, owned in units.items()
        if _gathered(manifest, owned)[1] == "uint8"
    }
    yield Term("mixed types gathered as bytes", sum(passes[name] * numel for name, numel in mixed.items()), 0)


def _padding(manifest: Manifest, units: dict[str, list[Parameter]], passes: dict[str, int], ranks: int) -> Term:
    numel = size = 0
    for name, owned in units.items():
        for parameter in owned:
            extra = padded_numel(parameter, ranks) - parameter.numel
            numel += extra * (passes[name] + parameter.requires_grad)
            size += extra * passes[name] * item_size(_gather_dtype(manifest, parameter))
            if parameter.requires_grad:
                size += extra * item_size(_reduce_dtype(manifest, parameter))
    return Term("padding of dim 0", numel, size)


def _gather_dtype(manifest: Manifest, parameter: Parameter) -> str:
    cast = manifest.precision.param_dtype
    return cast if cast is not None and is_floating(parameter.dtype) else parameter.dtype


def _reduce_dtype(manifest: Manifest, parameter: Parameter) -> str:
    return manifest.precision.reduce_dtype or _gather_dtype(manifest, parameter)


def _numel(parameters: Iterable[Parameter]) -> int:
    return sum(parameter.numel for parameter in parameters)


def _padded(parameters: Iterable[Parameter], ranks: int) -> int:
    return sum(padded_numel(parameter, ranks) for parameter in parameters)


def _bytes(manifest: Manifest, parameters: Iterable[Parameter]) -> int:
    return sum(parameter.numel * item_size(_gather_dtype(manifest, parameter)) for parameter in parameters)


def _reduce_bytes(manifest: Manifest, parameters: Iterable[Parameter]) -> int:
    """Bytes that reducing in the reduce type adds over reducing in the gather type."""
    return sum(
        parameter.numel
        * (item_size(_reduce_dtype(manifest, parameter)) - item_size(_gather_dtype(manifest, parameter)))
        for parameter in parameters
    )
