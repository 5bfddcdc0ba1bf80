"""ZeRO-2 by DeepSpeed's own engine, in each of its ways of reducing gradients."""

from __future__ import annotations

from typing import Any

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


STRATEGY = Zero2
