"""FSDP1 with SHARD_GRAD_OP: one all-gather and one reduce-scatter a unit, ZeRO-2's 2Ψ."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.plan.strategies import fsdp1

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.manifest import Manifest
    from tracekit.plan.holding import Holding
    from tracekit.plan.schema import Call, Term


def collectives(manifest: Manifest) -> list[Call]:
    """Expected collectives of one step, in the order of issue."""
    return fsdp1.collectives(manifest, keep_gathered=True)


def absent(manifest: Manifest) -> Iterator[Term]:
    """Parts of the closed form, 2Ψ, that these calls leave out."""
    return fsdp1.absent(manifest, keep_gathered=True)


def memory(manifest: Manifest, rank: int) -> Holding:
    """Bytes of a rank: as fsdp1, with every unit whole from forward to backward."""
    return fsdp1.memory(manifest, rank, keep_gathered=True)
