"""FSDP1: every block and the root wrapped, their parameters laid out in one flat parameter each."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy

from runners.compiling import Compiler
from runners.models import Decoder
from runners.options import EVERYWHERE
from runners.strategies.base import DTYPES, Strategy
from tracekit.record import Precision, RecordError, phase

NO_DEPTH = "FSDP1 gathers one unit ahead or none"


class FSDP1(Strategy):
    """FULL_SHARD: parameters are freed after forward and gathered again in backward, but for the root's."""

    takes = EVERYWHERE | {
        "sync-every-micro-batch",
        "forward-prefetch",
        "backward-prefetch",
        "compile",
        "compile-backend",
    }
    refuses: ClassVar[Mapping[str, str]] = {
        "reshard-after-forward": "fsdp1 frees units after forward, zero2-fsdp1 does not; choose one of the two",
        "reshard": "fsdp1 frees units after forward, zero2-fsdp1 does not; choose one of the two",
        "async-unshard": "FSDP1 gathers asynchronously on GPUs only",
        "grad-accum-dtype": "gradients add up in the flat parameters' own float32",
    }
    sharding: ClassVar[ShardingStrategy] = ShardingStrategy.FULL_SHARD

    def wrap(self, model: Decoder) -> torch.nn.Module:
        """Wraps the blocks and then the root, which keeps what the blocks left: embeddings, last norm, output."""
        args = self.setup.args
        if max(args.forward_prefetch, args.backward_prefetch) > 1:
            raise RecordError(f"{NO_DEPTH}; give 0 or 1 as --forward-prefetch and --backward-prefetch")
        # torch says at every wrapping that FSDP2 is preferred.
        warnings.filterwarnings("ignore", message=".*FSDP", category=FutureWarning)
        self.compiler = Compiler(args, self.setup.device)
        self.compiler.compile_blocks(model)
        for index, block in enumerate(model.layers):
            model.layers[index] = self._wrapped(block)
        self.model = self.wrapped = self._wrapped(model)
        self.run = self.compiler.compile_model(self.model)
        return self.model

    def _wrapped(self, module: torch.nn.Module) -> FullyShardedDataParallel:
        args = self.setup.args
        return FullyShardedDataParallel(
            module,
            sharding_strategy=self.sharding,
            mixed_precision=MixedPrecision(
                param_dtype=DTYPES[args.param_dtype], reduce_dtype=DTYPES[args.reduce_dtype]
            ),
            forward_prefetch=bool(args.forward_prefetch),
            # torch's own backward prefetch is of one unit.
            use_orig_params=True,
            device_id=self.setup.device,
        )

    def forward(self, tokens: Tensor) -> Tensor:
        """Through the compiled module if the whole model is compiled."""
        with phase("forward") if self.compiler.scope == "model" else nullcontext():
            return self.run(tokens)

    def accumulation(self, *, last: bool) -> AbstractContextManager[Any]:
        """Whole gradients stay on every rank before the last micro-batch if told so."""
        return nullcontext() if last or self.setup.args.sync_every_micro_batch else self.wrapped.no_sync()

    def clip(self, max_norm: float) -> None:
        """FSDP1's own way, which sums the shards' norms over the ranks."""
        self.wrapped.clip_grad_norm_(max_norm)

    def describe(self) -> dict[str, Any]:
        """Units, mesh and flat parameters are found on the model."""
        args = self.setup.args
        return {
            "precision": Precision(args.param_dtype, args.reduce_dtype, None, "float32"),
            "mark_layers": self.compiler.scope != "model",
        }

    def learned(self) -> dict[str, Any]:
        """The compiler's graphs, breaks and collectives."""
        return self.compiler.learned()


STRATEGY = FSDP1
