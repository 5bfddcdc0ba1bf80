"""ZeRO-1 by DeepSpeed's own engine."""

from __future__ import annotations

from runners.strategies.deepspeed_engine import DeepSpeed
from runners.strategies.zero2 import Zero2


class Zero1DeepSpeed(Zero2):
    """Stage 1: parameters and gradients whole on every rank, only the state partitioned; reduced once a step."""

    takes = DeepSpeed.takes
    stage = 1


STRATEGY = Zero1DeepSpeed
