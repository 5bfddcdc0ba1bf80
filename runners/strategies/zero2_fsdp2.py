"""ZeRO-2 in torch: FSDP2 that keeps every unit gathered from forward to backward."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from runners.strategies.base import Setup, Strategy
from runners.strategies.fsdp2 import ACCUMULATION, FSDP2, RESHARD

KEPT = "it keeps every unit gathered; fsdp2 takes this option"


class Zero2FSDP2(FSDP2):
    """FSDP2 with `reshard_after_forward=False`: gradients and optimizer state are sharded, parameters gathered once."""

    takes = FSDP2.takes - RESHARD
    refuses: ClassVar[Mapping[str, str]] = {
        "reshard-after-forward": KEPT,
        "reshard": KEPT,
        "grad-accum-dtype": ACCUMULATION,
    }

    def __init__(self, setup: Setup) -> None:
        Strategy.__init__(self, setup)
        self.reshard, self.reshard_of = False, {}


STRATEGY = Zero2FSDP2
