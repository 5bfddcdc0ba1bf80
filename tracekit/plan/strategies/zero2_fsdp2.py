"""FSDP2 with `reshard_after_forward=False`: ZeRO-2's traffic, one all-gather and one reduce-scatter a unit.

Parameters stay gathered from forward to backward; torch shards them again after backward, so a step is 2Ψ.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.plan.strategies import fsdp2

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.manifest import Manifest
    from tracekit.plan.holding import Holding
    from tracekit.plan.schema import Call, Term


def collectives(manifest: Manifest) -> list[Call]:
    """Expected collectives of one step, in the order in which torch issues them."""
    return fsdp2.collectives(manifest, keep_gathered=True)


def absent(manifest: Manifest) -> Iterator[Term]:
    """Parts of the closed form, 2Ψ, that these calls leave out."""
    return fsdp2.absent(manifest, keep_gathered=True)


def memory(manifest: Manifest, rank: int) -> Holding:
    """Bytes of a rank: as fsdp2, with every unit whole from forward to backward."""
    return fsdp2.memory(manifest, rank, keep_gathered=True)
