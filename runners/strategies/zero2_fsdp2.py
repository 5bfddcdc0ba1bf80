"""ZeRO-2 in torch: FSDP2 that keeps every unit gathered from forward to backward."""

from __future__ import annotations

import argparse

from runners.strategies.base import Setup, Strategy
from runners.strategies.fsdp2 import FSDP2, add_gather_arguments


class Zero2FSDP2(FSDP2):
    """FSDP2 with `reshard_after_forward=False`: gradients and optimizer state are sharded, parameters gathered once."""

    def __init__(self, setup: Setup) -> None:
        Strategy.__init__(self, setup)
        self.reshard = False

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """How units are gathered; resharding is what this strategy is and no option."""
        add_gather_arguments(parser)


STRATEGY = Zero2FSDP2
