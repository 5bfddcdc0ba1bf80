"""FSDP2 (`fully_shard`), with replicas (HSDP) and beside tensor parallelism: read from the state that it leaves.

torch has no public way to ask for a unit's settings. torch/distributed/fsdp/_fully_shard/_fsdp_state.py keeps them in
`_fsdp_param_groups` from torch 2.13 on, in `_fsdp_param_group` (one or None) before. 2.6 has no
`_auto_reshard_after_forward`: there `FSDPState._lazy_init` makes the root stay gathered whatever it was told, by a
`post_forward_mesh_info` of None. A state that has none of these names is told as unknown, and nothing is planned.
"""

from __future__ import annotations

from typing import Any

import torch

from tracekit.record.frameworks.found import (
    UNKNOWN,
    Found,
    Mesh,
    Precision,
    Units,
    axis_names,
    in_words,
    storage_dtype,
    with_root,
)
from tracekit.record.names import clean_name, dtype_name, named_modules

AUTOMATIC = "_auto_reshard_after_forward"


def look(model: torch.nn.Module) -> Found | None:
    """What `fully_shard` left on the model; None where it was called on no module.

    Without a strategy, mesh and units where this torch keeps its state in a way that is not known here.
    """
    wrapped = [name for name, module in named_modules(model) if _is_wrapped(module)]
    try:
        states = _states(model)
        return _known(model, states) if states else _unknown(wrapped, "FSDPModule") if wrapped else None
    except (AttributeError, TypeError) as error:
        return _unknown(wrapped, str(error))


def _unknown(wrapped: list[str], what: str) -> Found:
    return Found(
        framework="torch FSDP2",
        wrapped=f"fully_shard was called on {len(wrapped)} of its modules",
        why=f"this torch's FSDP2 state is unknown (torch {torch.__version__}, {what}): no plan; update tracekit",
        units=with_root([((name, None), [name]) for name in wrapped]),
        is_readable=False,
        names_units=True,
    )


def _known(model: torch.nn.Module, states: list[Any]) -> Found | None:
    groups = [group for state in states for group in param_groups(state)]
    if not groups:
        return None
    units, named = _units(model), axes(model, groups)
    mesh = [(axis, size) for _, axis, size in named]
    strategy, why = _strategy(units, mesh, groups)
    precisions = {unit: _precision(state, model) for unit, state in _by_unit(model).items()}
    common = _most_common(model, units, precisions)
    return Found(
        strategy=strategy,
        framework="torch FSDP2",
        wrapped=f"fully_shard was called on {len(states)} of its modules over {in_words(mesh)}",
        why=why,
        units=units,
        mesh=mesh,
        axes={own: axis for own, axis, _ in named},
        precision=common,
        unit_precision={unit: one for unit, one in precisions.items() if one != common},
        options=_options(model, states, groups),
        names_units=True,
        synced=lambda: all(group.reduce_grads for group in groups),
        synced_at="backward",
    )


def state_of(module: torch.nn.Module) -> Any:
    """The state of a module given to `fully_shard`, else None. By its method: torch.distributed.fsdp stays out."""
    get = getattr(module, "_get_fsdp_state", None)
    return get() if get else None


def _is_wrapped(module: torch.nn.Module) -> bool:
    """Whether the module's class is one that `fully_shard` made, by a name that is public since torch 2.6."""
    return any(base.__name__ == "FSDPModule" for base in type(module).__mro__)


def param_groups(state: Any) -> list[Any]:
    """The groups of parameters that a state gathers together; none for a unit without parameters of its own.

    Raises AttributeError where this torch keeps them under another name.
    """
    if hasattr(state, "_fsdp_param_groups"):
        return list(state._fsdp_param_groups)  # noqa: SLF001 - see the module's text
    return [] if state._fsdp_param_group is None else [state._fsdp_param_group]  # noqa: SLF001


def axes(model: torch.nn.Module, groups: list[Any]) -> list[tuple[str, str, int]]:
    """The mesh's axes, outermost first: the user's name, torchtitan's name, and the size.

    The only axis of the parameters' placements that FSDP2 does not use is `tp`; of several each keeps its own name.
    """
    info = groups[0].mesh_info
    used = axis_names(info.mesh)
    ours = list(used)
    for axis, dim in (("dp_replicate", "replicate_mesh_dim"), ("dp_shard", "shard_mesh_dim")):
        if getattr(info, dim, None) is not None:
            ours[getattr(info, dim)] = axis
    found = [(own, our, int(size)) for own, our, size in zip(used, ours, info.mesh.shape, strict=True)]
    others = _other_axes(model, used)
    return found + [(name, "tp" if len(others) == 1 else name, size) for name, size in others]


def _other_axes(model: torch.nn.Module, used: list[str]) -> list[tuple[str, int]]:
    """Name and size of the axes that some parameter's mesh has beside those of FSDP2."""
    parameters: list[Any] = list(model.parameters())
    meshes = [p.device_mesh for p in parameters if hasattr(p, "device_mesh")]
    widest = max(meshes, key=lambda mesh: mesh.ndim, default=None)
    if widest is None or widest.ndim == len(used):
        return []
    sizes = zip(axis_names(widest), widest.shape, strict=True)
    return [(name, int(size)) for name, size in sizes if name not in used]


def _states(model: torch.nn.Module) -> list[Any]:
    found = {id(state): state for _, module in named_modules(model) if (state := state_of(module)) is not None}
    return list(found.values())


def _by_unit(model: torch.nn.Module) -> dict[str, Any]:
    """The state of each unit, by its name: modules wrapped as one have theirs joined as in torch's annotations."""
    names: dict[int, list[str]] = {}
    states: dict[int, Any] = {}
    for name, module in named_modules(model):
        state = state_of(module)
        if state is not None:
            names.setdefault(id(state), []).append(name)
            states[id(state)] = state
    return {", ".join(names[key]): state for key, state in states.items()}


def _units(model: torch.nn.Module) -> Units:
    """The units in wrap order; None where torch decides whether to free them (it frees every unit but the root)."""
    states = _by_unit(model)
    settings = {name: _reshard_setting(name, state) for name, state in states.items()}
    inner = {setting for name, setting in settings.items() if name}
    if inner == {False} and "" in states and not hasattr(states[""], AUTOMATIC):
        # An older root stays gathered in any case: it is what the others are told to be.
        settings[""] = False
    return with_root([((name, setting), name.split(", ")) for name, setting in settings.items()])


def _reshard_setting(name: str, state: Any) -> bool | int | None:
    groups = param_groups(state)
    if getattr(state, AUTOMATIC, False):
        return None
    older = not hasattr(state, AUTOMATIC)
    for group in groups:
        after = group.post_forward_mesh_info
        if after is None:
            # Before there was an automatic choice, the first forward told the root to stay gathered.
            return None if older and not name else False
        if after is not group.mesh_info:
            return int(after.shard_mesh_size)
    return None if older else True


def _strategy(units: Units, mesh: Mesh, groups: list[Any]) -> tuple[str, str | None]:
    axes = [axis for axis, _ in mesh]
    if not any(getattr(group.mesh_info, "shard_mesh_dim", None) is not None for group in groups):
        return UNKNOWN, "its units are replicated by all-reduces and not sharded"
    others = [axis for axis in axes if axis not in ("dp_replicate", "dp_shard")]
    if others:
        if "dp_replicate" in axes or len(others) > 1:
            return UNKNOWN, f"there is no plan for a mesh of {', '.join(axes)}"
        return "fsdp2-tp", None
    if "dp_replicate" in axes:
        return "hsdp", None
    return ("zero2-fsdp2" if all(setting is False for (_, setting), _ in units) else "fsdp2"), None


def _precision(state: Any, model: torch.nn.Module) -> Precision:
    policy, groups = state._mp_policy, param_groups(state)  # noqa: SLF001 - see the module's text
    stored = [p.orig_dtype for group in groups for p in group.fsdp_params if hasattr(p, "orig_dtype")]
    storage = dtype_name(stored[0]) if stored else storage_dtype(model)
    param = dtype_name(policy.param_dtype) or storage
    return Precision(param, dtype_name(policy.reduce_dtype) or param, None, storage)


def _most_common(model: torch.nn.Module, units: Units, precisions: dict[str, Precision]) -> Precision:
    """The precision of the units that hold most of the elements."""
    states, sizes = _by_unit(model), dict.fromkeys(precisions.values(), 0)
    for (name, _), _ in units:
        if name in states:
            for group in param_groups(states[name]):
                sizes[precisions[name]] += sum(param.sharded_size.numel() for param in group.fsdp_params)
    return max(sizes, key=lambda precision: sizes[precision])


def _options(model: torch.nn.Module, states: list[Any], groups: list[Any]) -> dict[str, Any]:
    ignored = [clean_name(name) for name, p in model.named_parameters() if not hasattr(p, "placements")]
    root = any(getattr(state, "_modules", [None])[0] is model for state in states)
    return {
        "forward_prefetch": max(len(state._states_to_forward_prefetch) for state in states),  # noqa: SLF001
        "backward_prefetch": max(len(state._states_to_backward_prefetch) for state in states),  # noqa: SLF001
        "async_unshard": any(getattr(group, "unshard_async_op", False) for group in groups),
        "reshard_after_backward": all(group.reshard_after_backward for group in groups),
    } | ({"ignored_parameters": ignored} if ignored and root else {})
