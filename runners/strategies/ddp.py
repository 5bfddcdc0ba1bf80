"""DDP, which is ZeRO-0: everything whole on every rank, gradients all-reduced in buckets while backward runs."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from runners.compiling import Compiler
from runners.models import Decoder
from runners.options import EVERYWHERE
from runners.strategies.base import DTYPES, Strategy
from tracekit.record import Precision, phase

HOOKS = {"bfloat16": default_hooks.bf16_compress_hook, "float16": default_hooks.fp16_compress_hook}
MIB = 1 << 20


class DDP(Strategy):
    """Parameters and gradients in fp32, compute in --param-dtype by autocast; --reduce-dtype compresses the buckets."""

    takes = EVERYWHERE | {"sync-every-micro-batch", "bucket-mb", "broadcast-buffers", "compile", "compile-backend"}
    refuses: ClassVar[Mapping[str, str]] = {
        "grad-accum-dtype": "gradients add up in the parameters' own float32",
        "bucket-numel": "torch counts bytes, give --bucket-mb",
        "reshard-after-forward": "nothing is sharded",
    }

    def wrap(self, model: Decoder) -> torch.nn.Module:
        """Replicates the model; the buckets are told small enough that there are several."""
        args = self.setup.args
        self.compiler = Compiler(args, self.setup.device)
        self.compiler.compile_blocks(model)
        self.bucket_mb: float = args.bucket_mb or self.setup.defaults(model.size)["bucket_mb"]
        if self.compiler.scope is not None:
            # The compiler wants torch's first bucket, of 1 MiB, to be no larger than the others.
            distributed: Any = torch.distributed
            first = min(distributed._DEFAULT_FIRST_BUCKET_BYTES, int(self.bucket_mb * MIB))  # noqa: SLF001 - see above
            distributed._DEFAULT_FIRST_BUCKET_BYTES = first  # noqa: SLF001
        self.model = self.replica = DistributedDataParallel(
            model,
            device_ids=[self.setup.device.index] if self.setup.device.type == "cuda" else None,
            bucket_cap_mb=self.bucket_mb,  # pyright: ignore[reportArgumentType] - a fraction is taken, too
            broadcast_buffers=args.broadcast_buffers,
        )
        if args.reduce_dtype in HOOKS:
            hook = HOOKS[args.reduce_dtype]
            # DDP refuses torch's own hook by its name where there is no GPU; gloo reduces these dtypes all the same.
            self.replica.register_comm_hook(None, lambda state, bucket: hook(state, bucket))  # noqa: PLW0108 - see above
        self.run = self.compiler.compile_model(self.model)
        return self.model

    def forward(self, tokens: Tensor) -> Tensor:
        """Under autocast where compute is in half precision."""
        dtype = DTYPES[self.setup.args.param_dtype]
        marked = phase("forward") if self.compiler.scope == "model" else nullcontext()
        with marked, torch.autocast(self.setup.device.type, dtype, enabled=dtype != torch.float32):
            return self.run(tokens)

    def accumulation(self, *, last: bool) -> AbstractContextManager[Any]:
        """Gradients stay local before the last micro-batch if told so."""
        return nullcontext() if last or self.setup.args.sync_every_micro_batch else self.replica.no_sync()

    def describe(self) -> dict[str, Any]:
        """Buckets and mesh are found; the dtypes are not those of the parameters."""
        args = self.setup.args
        return {
            "options": {"bucket_mb": self.bucket_mb},
            "precision": Precision(args.param_dtype, args.reduce_dtype, None, "float32"),
            "mark_layers": self.compiler.scope != "model",
        }

    def learned(self) -> dict[str, Any]:
        """The compiler's graphs, breaks and collectives."""
        return self.compiler.learned()


STRATEGY = DDP
