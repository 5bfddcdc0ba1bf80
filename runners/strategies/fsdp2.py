"""FSDP2: every block and the root given to `fully_shard`, by default computing in bf16 and reducing in fp32."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from runners import options
from runners.compiling import Compiler
from runners.models import Decoder, initialize
from runners.older_torch import complete_fsdp2_on_cpu
from runners.strategies.base import DTYPES, Setup, Strategy
from tracekit.record import RecordError

RESHARD = frozenset({"reshard-after-forward", "reshard"})
ACCUMULATION = "gradients add up in float32, whole ones in --reduce-dtype until they are reduced"


class FSDP2(Strategy):
    """With the default, torch frees a unit after its forward, but for the root, whose parameters stay for backward."""

    takes = (
        options.EVERYWHERE
        | RESHARD
        | {"sync-every-micro-batch", "forward-prefetch", "backward-prefetch", "async-unshard"}
        | {"compile", "compile-backend"}
    )
    refuses: ClassVar[Mapping[str, str]] = {
        "grad-accum-dtype": ACCUMULATION,
        "tp": "fsdp2-tp is FSDP2 with tensor parallelism",
        "dp-replicate": "hsdp is FSDP2 with replicas",
        "bucket-mb": "its buckets are the units",
        "bucket-numel": "its buckets are the units",
    }
    from_meta = True

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.reshard: bool | int | None = setup.args.reshard_after_forward
        self.reshard_of: dict[str, bool | int | None] = dict(setup.args.reshard or ())

    def make_mesh(self) -> DeviceMesh:
        """The ranks that shard."""
        return init_device_mesh(self.setup.device.type, (self.setup.world_size,), mesh_dim_names=("dp_shard",))

    def wrap(self, model: Decoder) -> torch.nn.Module:
        """Shards the blocks and then the root, which keeps what the blocks left: embeddings, last norm, output."""
        complete_fsdp2_on_cpu()
        self.compiler = Compiler(self.setup.args, self.setup.device)
        self.compiler.compile_blocks(model)
        self.shard(model, self.make_mesh())
        self._schedule_gathers(model)
        if next(model.parameters()).is_meta:
            model.to_empty(device=self.setup.device)
            initialize(model, self.setup.args.seed)
        self.model = model
        self.run = self.compiler.compile_model(model)
        return model

    def shard(self, model: Decoder, mesh: DeviceMesh) -> None:
        """Gives every unit to `fully_shard` with its own setting."""
        args = self.setup.args
        policy = MixedPrecisionPolicy(param_dtype=DTYPES[args.param_dtype], reduce_dtype=DTYPES[args.reduce_dtype])
        units = {f"layers.{index}": block for index, block in enumerate(model.layers)} | {"": model}
        size = mesh.size(mesh.ndim - 1)
        for name in self.reshard_of:
            if name not in units:
                raise RecordError(f"--reshard {name}: there is no such unit; the units are layers.<number> and root")
        for name, module in units.items():
            setting = self.reshard_of.get(name, self.reshard)
            if setting not in (None, True, False) and (setting < 2 or size % setting):
                raise RecordError(f"units cannot stay on groups of {setting} of {size} ranks; give a divisor above 1")
            # None is what torch does if it is not told; before 2.7 it cannot be told so.
            told: dict[str, Any] = {} if setting is None else {"reshard_after_forward": setting}
            fully_shard(module, mesh=mesh, mp_policy=policy, **told)

    def _schedule_gathers(self, model: Decoder) -> None:
        """Sets how early and in which manner units are gathered."""
        args = self.setup.args
        blocks: list[Any] = list(model.layers)
        for at, block in enumerate(blocks):
            if args.forward_prefetch:
                block.set_modules_to_forward_prefetch(blocks[at + 1 : at + 1 + args.forward_prefetch])
            if args.backward_prefetch:
                block.set_modules_to_backward_prefetch(blocks[max(0, at - args.backward_prefetch) : at][::-1])
        if args.async_unshard:
            root: Any = model
            root._set_unshard_async_op(True)  # noqa: SLF001 - torch offers it under this name only

    def forward(self, tokens: Tensor) -> Tensor:
        """Through the compiled module if the whole model is compiled."""
        return self.run(tokens)

    def accumulation(self, *, last: bool) -> AbstractContextManager[Any]:
        """Whole gradients stay on every rank before the last micro-batch if told so; gathers go on all the same."""
        root: Any = self.model
        root.set_requires_gradient_sync(last or self.setup.args.sync_every_micro_batch)
        return nullcontext()

    def describe(self) -> dict[str, Any]:
        """Units, mesh and precision are found on the model."""
        return {"options": {"reshard_after_forward": self.reshard}}

    def learned(self) -> dict[str, Any]:
        """The compiler's graphs, breaks and collectives."""
        return self.compiler.learned()


STRATEGY = FSDP2
