"""ZeRO-2 by DeepSpeed's own engine, in each of its ways of reducing gradients."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from runners.strategies.deepspeed_engine import DeepSpeed

# reduce_scatter and use_multi_rank_bucket_allreduce of each --grad-path; none of them is a reduce-scatter.
PATHS = {
    "bucket-all-reduce": (True, True),
    "reduce-to-owner": (True, False),
    "plain-all-reduce": (False, True),
}


class Zero2(DeepSpeed):
    """Stage 2: parameters whole on every rank, gradients and state partitioned."""

    takes = DeepSpeed.takes | {"grad-path"}
    stage = 2

    def settings(self) -> dict[str, Any]:
        """The gradient path and the size of an all-gather."""
        args = self.setup.args
        scatter, multi_rank = PATHS[getattr(args, "grad_path", "bucket-all-reduce")]
        gathered = {} if args.bucket_numel is None else {"allgather_bucket_size": args.bucket_numel}
        return gathered | {"reduce_scatter": scatter, "use_multi_rank_bucket_allreduce": multi_rank}

    def decided(self) -> dict[str, Any]:
        """The path that the engine took in the end, and the padding of its flat groups."""
        zero = self.engine.optimizer
        return {
            "reduce_scatter": bool(getattr(zero, "reduce_scatter", False)),
            "use_multi_rank_bucket_allreduce": bool(getattr(zero, "use_multi_rank_bucket_allreduce", False)),
            "optimizer": type(zero).__name__,
            "padding_numel": [int(numel) for numel in getattr(zero, "groups_padding", ())],
        }

    def held(self) -> dict[str, list[Tensor]]:
        """The fp32 master weights. Between two steps DeepSpeed 0.19 keeps no gradient and no bucket.

        Stage 1 with fp32 accumulation is another class of DeepSpeed's, which keeps the sums of whole gradients.
        """
        zero = self.engine.optimizer
        if hasattr(zero, "fp32_groups_flat_partition"):
            return {
                "optimizer_state": list(zero.fp32_groups_flat_partition),
                "gradients": list(zero.fp32_groups_gradients_flat),
            }
        return {"optimizer_state": list(zero.single_partition_of_fp32_groups)}


STRATEGY = Zero2
