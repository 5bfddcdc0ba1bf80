"""ZeRO-1 by `ZeroRedundancyOptimizer`: DDP, and after the step each parameter is sent by the rank that updated it.

Source: torch 2.13, torch/distributed/optim/zero_redundancy_optimizer.py (`_partition_parameters`, `_sync_params`).

ZeRO-1 of the paper reduce-scatters Ψ and gathers Ψ. Here gradients are all-reduced, which crosses twice, and each
parameter is broadcast by its owner: 3Ψ. The broadcasts end the step and belong to no layer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.plan import shares as named
from tracekit.plan.inputs import gather_size, main_axis, own_parameters, trainable
from tracekit.plan.schema import Call, Term
from tracekit.plan.strategies import ddp

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.manifest import Manifest, Parameter
    from tracekit.plan.holding import Holding


def collectives(manifest: Manifest) -> list[Call]:
    """Expected collectives of one step, in the order of issue."""
    axis, ranks = main_axis(manifest)
    calls = ddp.gradient_calls(manifest)
    for parameter in (sent for owned in owners(manifest) for sent in owned):
        numel, own_bytes = parameter.numel, parameter.numel * gather_size(manifest, parameter)
        place = (None, "optimizer", None, "broadcast", axis, ranks, parameter.dtype)
        calls.append(Call(*place, numel, numel, numel, own_bytes))
    return calls


def absent(manifest: Manifest) -> Iterator[Term]:
    """Parts of the closed form, 2Ψ, that these calls leave out."""
    yield from ddp.gradients_absent(manifest, once=1)
    axis, _ = main_axis(manifest)
    for parameter in own_parameters(manifest):
        if not parameter.requires_grad:
            size = parameter.numel * gather_size(manifest, parameter)
            place = (None, "optimizer", "broadcast", axis, parameter.dtype)
            yield Term(named.FROZEN_UNSENT, -parameter.numel, -size, *place)


def memory(manifest: Manifest, rank: int) -> Holding:
    """Bytes of a rank: as DDP, but for the state, which is that of its own parameters."""
    return ddp.replicated(manifest, owners(manifest)[rank % main_axis(manifest)[1]])


def owners(manifest: Manifest) -> list[list[Parameter]]:
    """The parameters of each rank: the largest first, each to the rank that holds least so far."""
    ranks = main_axis(manifest)[1]
    owned: list[list[Parameter]] = [[] for _ in range(ranks)]
    sizes = [0] * ranks
    for parameter in sorted(trainable(own_parameters(manifest)), key=lambda parameter: -parameter.numel):
        rank = sizes.index(min(sizes))
        owned[rank].append(parameter)
        sizes[rank] += parameter.numel
    return owned
