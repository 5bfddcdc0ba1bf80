"""FSDP2 with `reshard_after_forward=False`: ZeRO-2's traffic, one all-gather and one reduce-scatter a unit.

Parameters stay gathered from forward to backward; torch shards them again after backward, so a step is 2Ψ.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.plan import fsdp2

if TYPE_CHECKING:
    from tracekit.plan.schema import Call, Term
    from tracekit.read.manifest import Manifest


def collectives(manifest: Manifest) -> list[Call]:
    """Expected collectives of one step, in the order in which torch issues them."""
    return fsdp2.collectives(manifest, keep_gathered=True)


def terms(manifest: Manifest) -> list[Term]:
    """Named terms from the lesson's 2Ψ to the plan; they add up exactly."""
    return fsdp2.terms(manifest, keep_gathered=True)
