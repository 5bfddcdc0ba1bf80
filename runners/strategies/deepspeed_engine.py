"""The common part of DeepSpeed's stages: the engine, its configuration, and a step that it counts itself."""

from __future__ import annotations

import logging
import os
import warnings
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from runners.models import Decoder
from runners.options import EVERYWHERE
from runners.strategies.base import Strategy, next_token_loss, trainable
from tracekit.record import RecordError, phase

# DeepSpeed's names of dtypes.
SHORT = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


class DeepSpeed(Strategy):
    """Computing in bf16 with fp32 master weights; the engine takes model and optimizer together."""

    takes = EVERYWHERE | {"bucket-numel", "grad-accum-dtype"}
    refuses: ClassVar[Mapping[str, str]] = {
        "bucket-mb": "DeepSpeed counts elements, give --bucket-numel",
        "sync-every-micro-batch": "the engine reduces once a step in stage 1, every micro-batch in stages 2 and 3",
        "compile": "the runner has no compiled DeepSpeed",
    }
    stage: ClassVar[int]

    def wrap(self, model: Decoder) -> torch.nn.Module:
        """Leaves the model as it is until the optimizer is there."""
        self.model = self.decoder = model
        return model

    def make_optimizer(self, learning_rate: float) -> Any:
        """Makes the engine; torch's AdamW inside it holds the state of this rank's partition."""
        deepspeed = import_deepspeed(self.setup.device, self.setup.args.strategy)
        optimizer = torch.optim.AdamW(trainable(self.model), lr=learning_rate, fused=True)
        self.engine: Any = deepspeed.initialize(
            model=self.model, optimizer=optimizer, config=self._config(), dist_init_required=False
        )[0]
        return optimizer

    def _config(self) -> dict[str, Any]:
        args = self.setup.args
        if args.param_dtype == "float16":
            raise RecordError(f"{args.strategy} computes in bfloat16 or float32 here; give one as --param-dtype")
        given = {} if args.bucket_numel is None else {"reduce_bucket_size": args.bucket_numel}
        self.zero = {"stage": self.stage} | self.setup.defaults(self.decoder.size) | given | self.settings()
        config: dict[str, Any] = {
            "train_micro_batch_size_per_gpu": args.batch_size,
            "gradient_accumulation_steps": args.micro_batches,
            "bf16": {"enabled": args.param_dtype == "bfloat16"},
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
            "zero_optimization": self.zero,
            "gradient_clipping": args.clip_grad_norm or 0.0,
        }
        if args.reduce_dtype:
            config["communication_data_type"] = SHORT[args.reduce_dtype]
        if args.grad_accum_dtype:
            config["data_types"] = {"grad_accum_dtype": SHORT[args.grad_accum_dtype]}
        return config

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Entries of `zero_optimization` that the stage's own options set, in place of the defaults."""

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


def import_deepspeed(device: torch.device, strategy: str) -> Any:
    """The module, quiet, and told that there is no GPU where there is none (it asks the environment at import)."""
    if device.type == "cpu":
        os.environ["DS_ACCELERATOR"] = "cpu"
    # Its handler writes to stdout from import on; what matters of it is in the manifest.
    logging.disable(logging.WARNING)
    try:
        import deepspeed
        import deepspeed.ops
    except ImportError as error:
        raise RecordError(f"{strategy} is DeepSpeed's ({error}); install it with: pip install deepspeed") from error
    finally:
        logging.disable(logging.NOTSET)
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    # It serves inference only, and building it takes a C++ compiler and half a minute.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    # DeepSpeed calls torch's all-gather by its old name.
    warnings.filterwarnings("ignore", message=".*all_gather_into_tensor.*deprecated.*", category=FutureWarning)
    return deepspeed
