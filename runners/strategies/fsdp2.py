"""FSDP2: every block and the root given to `fully_shard`, by default computing in bf16 and reducing in fp32."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from runners.models import Decoder, initialize
from runners.strategies.base import DTYPES, Setup, Strategy, next_token_loss

RESHARD = {"default": None, "true": True, "false": False}


class FSDP2(Strategy):
    """With the default, torch frees a unit after its forward, but for the root, whose parameters stay for backward."""

    from_meta = True

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.reshard: bool | None = RESHARD[setup.args.reshard_after_forward]

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """--reshard-after-forward, as `fully_shard` has it."""
        text = "free a unit's gathered parameters after its forward; the default is torch's: all units but the root"
        parser.add_argument("--reshard-after-forward", choices=list(RESHARD), default="default", help=text)

    def wrap(self, model: Decoder) -> torch.nn.Module:
        """Shards the blocks and then the root, which keeps what the blocks left: embeddings, last norm, output."""
        args, setup = self.setup.args, self.setup
        mesh = init_device_mesh(setup.device.type, (setup.world_size,), mesh_dim_names=("dp_shard",))
        policy = MixedPrecisionPolicy(param_dtype=DTYPES[args.param_dtype], reduce_dtype=DTYPES[args.reduce_dtype])
        for module in (*model.layers, model):
            fully_shard(module, mesh=mesh, mp_policy=policy, reshard_after_forward=self.reshard)
        if next(model.parameters()).is_meta:
            model.to_empty(device=setup.device)
            initialize(model, args.seed, shard=setup.rank)
        self.model = model
        return model

    def make_optimizer(self, learning_rate: float) -> torch.optim.Optimizer:
        """AdamW over the fp32 shards."""
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=learning_rate, fused=True)
        return self.optimizer

    def step(self, micro_batches: Sequence[Tensor]) -> Tensor:
        """Every micro-batch gathers and reduces, as FSDP2 does unless gradient sync is switched off."""
        losses: list[Tensor] = []
        for tokens in micro_batches:
            loss = next_token_loss(self.model(tokens[:, :-1]), tokens) / len(micro_batches)
            loss.backward()
            losses.append(loss.detach())
        self.optimizer.step()
        self.optimizer.zero_grad()
        return torch.stack(losses).sum()

    def describe(self) -> dict[str, Any]:
        """Units, mesh and precision are found on the model."""
        return {"options": {"reshard_after_forward": self.reshard}}


STRATEGY = FSDP2
