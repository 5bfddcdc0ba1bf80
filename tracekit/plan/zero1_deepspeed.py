"""DeepSpeed stage 1: gradients stay whole and are reduced once a step, whatever the accumulation.

Source: DeepSpeed 0.19.8, runtime/engine.py (`allreduce_gradients`) and runtime/zero/stage_1_and_2.py
(`process_gradients`). Stage 1 runs the code of stage 2, but only at the border of a step: in the last micro-batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.plan import zero2
from tracekit.plan.zero2 import absent

if TYPE_CHECKING:
    from tracekit.plan.schema import Call
    from tracekit.read.manifest import Manifest

__all__ = ["absent", "collectives"]


def collectives(manifest: Manifest) -> list[Call]:
    """Expected collectives of one step, in the order in which DeepSpeed issues them."""
    return [*zero2.gradient_calls(manifest, manifest.micro_batches - 1, 0), *zero2.step_calls(manifest)]
