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


def add_gather_arguments(parser: argparse.ArgumentParser) -> None:
    """How early and in which manner units are gathered; the volume stays the same."""
    text = "gather the next N blocks ahead in forward (0: torch's own order)"
    parser.add_argument("--forward-prefetch", type=int, default=0, metavar="N", help=text)
    text = "gather the next N blocks ahead in backward (0: torch's own, which is 1)"
    parser.add_argument("--backward-prefetch", type=int, default=0, metavar="N", help=text)
    text = "issue all-gathers asynchronously: on a CPU nothing is hidden without it (on a GPU streams do that)"
    parser.add_argument("--async-unshard", action="store_true", help=text)


class FSDP2(Strategy):
    """With the default, torch frees a unit after its forward, but for the root, whose parameters stay for backward."""

    from_meta = True

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.reshard: bool | None = RESHARD[setup.args.reshard_after_forward]

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """--reshard-after-forward, as `fully_shard` has it, and how units are gathered."""
        text = "free a unit's gathered parameters after its forward; the default is torch's: all units but the root"
        parser.add_argument("--reshard-after-forward", choices=list(RESHARD), default="default", help=text)
        add_gather_arguments(parser)

    def wrap(self, model: Decoder) -> torch.nn.Module:
        """Shards the blocks and then the root, which keeps what the blocks left: embeddings, last norm, output."""
        args, setup = self.setup.args, self.setup
        mesh = init_device_mesh(setup.device.type, (setup.world_size,), mesh_dim_names=("dp_shard",))
        policy = MixedPrecisionPolicy(param_dtype=DTYPES[args.param_dtype], reduce_dtype=DTYPES[args.reduce_dtype])
        for module in (*model.layers, model):
            fully_shard(module, mesh=mesh, mp_policy=policy, reshard_after_forward=self.reshard)
        self._schedule_gathers(model)
        if next(model.parameters()).is_meta:
            model.to_empty(device=setup.device)
            initialize(model, args.seed, shard=setup.rank)
        self.model = model
        return model

    def _schedule_gathers(self, model: Decoder) -> None:
        """Sets how early and in which manner units are gathered."""
        args = self.setup.args
        blocks: list[Any] = list(model.layers)
        for at, block in enumerate(blocks):
            if args.forward_prefetch:
                block.set_modules_to_forward_prefetch(blocks[at + 1 : at + 1 + args.forward_prefetch])
            if args.backward_prefetch:
                block.set_modules_to_backward_prefetch(blocks[max(0, at - args.backward_prefetch) : at][::-1])
        if args.async_unshard:
            root: Any = model
            root._set_unshard_async_op(True)  # noqa: SLF001 - torch offers it under this name only

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
        args = self.setup.args
        options = {
            "reshard_after_forward": self.reshard,
            "forward_prefetch": args.forward_prefetch,
            "backward_prefetch": args.backward_prefetch,
            "async_unshard": args.async_unshard,
        }
        return {"options": options}


STRATEGY = FSDP2
