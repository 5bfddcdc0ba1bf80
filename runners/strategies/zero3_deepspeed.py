"""ZeRO-3 by DeepSpeed's own engine."""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor

from runners.strategies.deepspeed_engine import DeepSpeed

# DeepSpeed's own thresholds; a small model lies below them as a whole, and would never be freed: what is used again
# within so many elements stays gathered, and so does what a prefetch passes over on its way into the backward.
PREFETCH_NUMEL, PERSISTENCE_NUMEL, MAX_REUSE_NUMEL = 50_000_000, 100_000, 1_000_000_000


class Zero3DeepSpeed(DeepSpeed):
    """Stage 3: parameters partitioned too, each gathered where a module uses it and in blocks ahead of it."""

    takes = DeepSpeed.takes | {"prefetch-numel", "persistence-numel", "max-reuse-numel"}
    stage = 3

    def settings(self, bucket: int) -> dict[str, Any]:
        """How much is gathered ahead and what stays gathered."""
        del bucket  # gathers and reductions have settings of their own
        args, size = self.setup.args, self.decoder.size
        persistence, reuse = args.persistence_numel, args.max_reuse_numel
        big = size.num_params() > MAX_REUSE_NUMEL
        if persistence is None:
            persistence = min(PERSISTENCE_NUMEL, size.dim + 1)
        if reuse is None:
            reuse = MAX_REUSE_NUMEL if big else 0
        prefetch = args.prefetch_numel
        if prefetch is None:
            prefetch = PREFETCH_NUMEL if big else 0
        return {
            "stage3_prefetch_bucket_size": prefetch,
            "stage3_param_persistence_threshold": persistence,
            "stage3_max_reuse_distance": reuse,
        }

    def decided(self) -> dict[str, Any]:
        """Whether gradients are reduce-scattered."""
        return {"reduce_scatter": bool(self.engine.optimizer.reduce_scatter)}

    def held(self) -> dict[str, list[Tensor]]:
        """The partitions of the parameters, their fp32 master weights, and the gradients' partitions."""
        zero, parameters = self.engine.optimizer, cast("list[Any]", list(self.decoder.parameters()))
        return {
            "parameters": [parameter.ds_tensor for parameter in parameters],
            "optimizer_state": list(zero.fp32_partitioned_groups_flat),
            "gradients": [zero.grad_partitions_flat_buffer],
        }


STRATEGY = Zero3DeepSpeed
