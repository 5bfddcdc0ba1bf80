"""ZeRO-1 in torch: DDP, and an optimizer that holds the state of this rank's parameters and broadcasts them."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.optim import ZeroRedundancyOptimizer

from runners.strategies.base import trainable
from runners.strategies.ddp import DDP


class Zero1(DDP):
    """Gradients are all-reduced whole; each parameter is updated by its owner, who then sends it to all."""

    def make_optimizer(self, learning_rate: float) -> Any:
        """AdamW over this rank's share of the parameters, which are dealt out by size."""
        self.optimizer = ZeroRedundancyOptimizer(
            trainable(self.model), optimizer_class=torch.optim.AdamW, lr=learning_rate, fused=True
        )
        return self.optimizer


STRATEGY = Zero1
