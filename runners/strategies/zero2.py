"""ZeRO-2 by DeepSpeed's own engine, with its default way of reducing gradients."""

from __future__ import annotations

import argparse
import logging
import os
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from runners.models import Decoder
from runners.strategies.base import Strategy, next_token_loss
from tracekit.record import Precision, RecordError, phase

# DeepSpeed's communication_data_type by torch's names.
SHORT = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
# DeepSpeed's own bucket of 5e8 elements would hold a small model whole: one reduction, after backward, nothing hidden.
BUCKETS_A_MODEL, MAX_BUCKET_NUMEL = 4, 500_000_000


class Zero2(Strategy):
    """Stage 2: parameters whole on every rank in bf16, fp32 master weights, gradients and state partitioned."""

    reduce_dtype = None

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """--bucket-numel, for DeepSpeed's reduce_bucket_size and allgather_bucket_size."""
        text = (
            "elements of a gradient bucket and of an all-gather; a quarter of the model or DeepSpeed's own 5e8, if less"
        )
        parser.add_argument("--bucket-numel", type=int, default=None, help=text)

    def wrap(self, model: Decoder) -> torch.nn.Module:
        """Leaves the model as it is: the engine takes model and optimizer together."""
        self.model = model
        return model

    def make_optimizer(self, learning_rate: float) -> Any:
        """Makes the engine; torch's AdamW inside it holds the state of this rank's partition."""
        deepspeed = import_deepspeed(self.setup.device)
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=learning_rate, fused=True)
        self.engine: Any = deepspeed.initialize(
            model=self.model, optimizer=optimizer, config=self._config(), dist_init_required=False
        )[0]
        return optimizer

    def _config(self) -> dict[str, Any]:
        args = self.setup.args
        if args.param_dtype == "float16":
            raise RecordError("zero2 computes in bfloat16 or float32 here; give one of them as --param-dtype")
        quarter = self.model.size.num_params() // BUCKETS_A_MODEL
        bucket = args.bucket_numel or min(quarter, MAX_BUCKET_NUMEL)
        self.zero = {
            "stage": 2,
            "overlap_comm": True,
            "reduce_bucket_size": bucket,
            "allgather_bucket_size": bucket,
        }
        config: dict[str, Any] = {
            "train_micro_batch_size_per_gpu": args.batch_size,
            "gradient_accumulation_steps": args.micro_batches,
            "bf16": {"enabled": args.param_dtype == "bfloat16"},
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
            "zero_optimization": self.zero,
        }
        if args.reduce_dtype:
            config["communication_data_type"] = SHORT[args.reduce_dtype]
        return config

    def step(self, micro_batches: Sequence[Tensor]) -> Tensor:
        """The engine counts micro-batches itself: its `step` does nothing before the last one."""
        losses: list[Tensor] = []
        for tokens in micro_batches:
            loss = next_token_loss(self.engine(tokens[:, :-1]), tokens)
            losses.append(loss.detach())
            # DeepSpeed names neither its backward nor its step; reductions of the last bucket run outside autograd.
            with phase("backward"):
                self.engine.backward(loss)
            with phase("optimizer"):
                self.engine.step()
        return torch.stack(losses).mean()

    def describe(self) -> dict[str, Any]:
        """What the engine decided, and what it holds outside model and optimizer."""
        zero = self.engine.optimizer
        reduce = str(self.engine.communication_data_type).removeprefix("torch.")
        used = {
            "reduce_scatter": bool(zero.reduce_scatter),
            "use_multi_rank_bucket_allreduce": bool(zero.use_multi_rank_bucket_allreduce),
        }
        blocks = [(f"layers.{index}", None) for index in range(len(self.model.layers))]
        return {
            "options": self.zero | used,
            "units": [*blocks, ("", None)],
            "mesh": [("dp_shard", self.setup.world_size)],
            "precision": Precision(self.setup.args.param_dtype, reduce, None, self.setup.args.param_dtype),
            "held": self._held,
        }

    def _held(self) -> dict[str, list[Tensor]]:
        """The fp32 master weights. Between two steps DeepSpeed 0.19 keeps no gradient and no bucket."""
        zero = self.engine.optimizer
        return {"optimizer_state": list(zero.single_partition_of_fp32_groups)}


def import_deepspeed(device: torch.device) -> Any:
    """The module, quiet, and told that there is no GPU where there is none (it asks the environment at import)."""
    if device.type == "cpu":
        os.environ["DS_ACCELERATOR"] = "cpu"
    # Its handler writes to stdout from import on; what matters of it is in the manifest.
    logging.disable(logging.WARNING)
    try:
        import deepspeed
        import deepspeed.ops
    except ImportError as error:
        raise RecordError(f"zero2 is DeepSpeed's ({error}); install it with: pip install deepspeed") from error
    finally:
        logging.disable(logging.NOTSET)
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    # It serves inference only, and building it takes a C++ compiler and half a minute.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    # DeepSpeed calls torch's all-gather by its old name.
    warnings.filterwarnings("ignore", message=".*all_gather_into_tensor.*deprecated.*", category=FutureWarning)
    return deepspeed


STRATEGY = Zero2
