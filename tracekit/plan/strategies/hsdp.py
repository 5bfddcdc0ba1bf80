"""HSDP: FSDP2 inside `dp_shard`, and an all-reduce of what was reduce-scattered over `dp_replicate`.

Source: torch 2.13, torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py: `foreach_reduce`. The ZeRO paper knows of
one data-parallel group only: its 3Ψ count what happens in `dp_shard`; the all-reduces of 2 × Ψ/S elements are a term.
"""

from __future__ import annotations

from tracekit.plan.strategies.fsdp2 import absent, collectives, memory

__all__ = ["absent", "collectives", "memory"]
