"""Parameters that lie sharded as DTensors without FSDP2: parametrized for a compiled graph, or tensor parallelism."""

from __future__ import annotations

from typing import Any

import torch

from tracekit.record.frameworks.found import UNKNOWN, Found, Precision, axis_names, blocks, storage_dtype
from tracekit.record.names import PARAMETRIZED


def look(model: torch.nn.Module) -> Found | None:
    """What the DTensors among the parameters tell; None where there are none."""
    named: list[tuple[str, Any]] = [(n, p) for n, p in model.named_parameters() if hasattr(p, "device_mesh")]
    if not named:
        return None
    mesh = max((p.device_mesh for _, p in named), key=lambda one: one.ndim)
    graph = mesh.ndim == 1 and all(PARAMETRIZED in name for name, _ in named)
    axes = axis_names(mesh)
    ours = ["dp_shard"] if graph else ["tp"] if mesh.ndim == 1 else axes
    storage = storage_dtype(model)
    return Found(
        strategy="fsdp2-graph" if graph else UNKNOWN,
        framework="torch DTensor and torch.compile" if graph else "torch DTensor",
        wrapped=f"{len(named)} of its parameters are DTensors and none is FSDP2's",
        why=None if graph else "there is no plan for tensor parallelism without FSDP2",
        units=blocks(model),
        mesh=[(axis, int(size)) for axis, size in zip(ours, mesh.shape, strict=True)],
        axes=dict(zip(axes, ours, strict=True)),
        precision=Precision(storage, storage, None, storage),
    )
