"""ZeRO-2 in torch: FSDP1 that keeps every unit gathered from forward to backward."""

from __future__ import annotations

from torch.distributed.fsdp import ShardingStrategy

from runners.strategies.fsdp1 import FSDP1


class Zero2FSDP1(FSDP1):
    """SHARD_GRAD_OP: gradients and optimizer state are sharded, parameters gathered once."""

    sharding = ShardingStrategy.SHARD_GRAD_OP


STRATEGY = Zero2FSDP1
