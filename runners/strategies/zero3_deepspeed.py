"""ZeRO-3 by DeepSpeed's own engine."""

from __future__ import annotations

from typing import Any

from runners.strategies.deepspeed_engine import DeepSpeed

# Options of the runner by DeepSpeed's names.
LIMITS = {
    "stage3_prefetch_bucket_size": "prefetch_numel",
    "stage3_param_persistence_threshold": "persistence_numel",
    "stage3_model_persistence_threshold": "model_persistence_numel",
    "stage3_max_reuse_distance": "max_reuse_numel",
}


class Zero3DeepSpeed(DeepSpeed):
    """Stage 3: parameters partitioned too, each gathered where a module uses it and in blocks ahead of it."""

    takes = DeepSpeed.takes | {"prefetch-numel", "persistence-numel", "model-persistence-numel", "max-reuse-numel"}
    stage = 3

    def settings(self) -> dict[str, Any]:
        """Settings of what is gathered ahead and what stays gathered, where an option says so."""
        given = {name: getattr(self.setup.args, option) for name, option in LIMITS.items()}
        return {name: value for name, value in given.items() if value is not None}


STRATEGY = Zero3DeepSpeed
