"""ZeRO-3 by DeepSpeed's own engine."""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor

from runners.strategies.deepspeed_engine import DeepSpeed

# Options of the runner by DeepSpeed's names.
LIMITS = {
    "stage3_prefetch_bucket_size": "prefetch_numel",
    "stage3_param_persistence_threshold": "persistence_numel",
    "stage3_max_reuse_distance": "max_reuse_numel",
}


class Zero3DeepSpeed(DeepSpeed):
    """Stage 3: parameters partitioned too, each gathered where a module uses it and in blocks ahead of it."""

    takes = DeepSpeed.takes | {"prefetch-numel", "persistence-numel", "max-reuse-numel"}
    stage = 3

    def settings(self) -> dict[str, Any]:
        """Settings of what is gathered ahead and what stays gathered, where an option says so."""
        given = {name: getattr(self.setup.args, option) for name, option in LIMITS.items()}
        return {name: value for name, value in given.items() if value is not None}

    def decided(self) -> dict[str, Any]:
        """`reduce_scatter`: whether gradients are reduce-scattered."""
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
