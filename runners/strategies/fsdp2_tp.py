"""FSDP2 and tensor parallelism: every matrix of a block split over `tp`, and each part sharded over dp_shard."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from runners.models import Block, Decoder
from runners.strategies.base import trainable
from runners.strategies.fsdp2 import FSDP2
from tracekit.record import RecordError

# Columns of the first matrices and rows of the last: one all-reduce of activations a half block in forward. A weight is
# (out, in), so that columns of the product are its dim 0.
COLUMNS = ("attention.wq", "attention.wk", "attention.wv", "feed_forward.w1", "feed_forward.w3")
ROWS = ("attention.wo", "feed_forward.w2")


class FSDP2TP(FSDP2):
    """The mesh is (dp_shard, tp): ranks that split one matrix follow one another. Norms and the root are not split."""

    takes = FSDP2.takes | {"tp"}

    def make_mesh(self) -> DeviceMesh:
        """--tp ranks split a matrix. Raises RecordError for ranks that do not fill the mesh."""
        split, ranks = self.setup.args.tp, self.setup.world_size
        if ranks % split or ranks == split:
            raise RecordError(
                f"{ranks} ranks make no groups of {split} that two or more could shard; give another --tp or start "
                f"{2 * split} ranks"
            )
        shape = (ranks // split, split)
        return init_device_mesh(self.setup.device.type, shape, mesh_dim_names=("dp_shard", "tp"))

    def shard(self, model: Decoder, mesh: DeviceMesh) -> None:
        """Splits the blocks' matrices over tp, shards all over dp_shard, and looks whether torch did both."""
        size, split = model.size, mesh["tp"].size()
        if size.heads % split or size.kv_heads % split or size.hidden % split:
            raise RecordError(
                f"{size.heads} heads, {size.kv_heads} key heads and {size.hidden} hidden columns cannot be split over "
                f"{split} ranks; give another --tp or --model"
            )
        plan = {name: ColwiseParallel() for name in COLUMNS} | {name: RowwiseParallel() for name in ROWS}
        for block in model.layers:
            parallelize_module(block, mesh["tp"], {_inside(block, name): style for name, style in plan.items()})
        super().shard(model, mesh["dp_shard"])
        for index, block in enumerate(model.layers):
            check_placements(f"layers.{index}", block)

    def make_optimizer(self, learning_rate: float) -> Any:
        """AdamW with a group of parameters for each mesh, as one fused call takes tensors of one mesh only."""
        groups = [{"params": parameters} for parameters in by_mesh(trainable(self.model))]
        self.optimizer = torch.optim.AdamW(groups, lr=learning_rate, fused=True)
        return self.optimizer

    def clip(self, max_norm: float) -> None:
        """The norm over the parameters of both meshes; torch's own clipping takes one mesh."""
        groups = by_mesh(trainable(self.model))
        norms = [torch.nn.utils.get_total_norm([p.grad for p in group if p.grad is not None]) for group in groups]
        total = torch.linalg.vector_norm(torch.stack([_whole(norm) for norm in norms]))
        for group in groups:
            torch.nn.utils.clip_grads_with_norm_(group, max_norm, total)


def by_mesh(parameters: list[torch.nn.Parameter]) -> list[list[torch.nn.Parameter]]:
    """The parameters that lie on one mesh together, those split over tp last."""
    groups: dict[int, list[torch.nn.Parameter]] = {}
    for parameter in parameters:
        groups.setdefault(parameter.device_mesh.ndim, []).append(parameter)  # pyright: ignore[reportAttributeAccessIssue]
    return [groups[ndim] for ndim in sorted(groups)]


def check_placements(prefix: str, block: torch.nn.Module) -> None:
    """Raises RecordError unless rows lie as [Shard(0), Shard(1)] on (dp_shard, tp) and columns are dim 0 on both.

    Sharding dim 0 twice is what torch calls strided: dp_shard splits each tp part, not tp each dp part.
    """
    parameters = dict(block.named_parameters())
    for name in (*COLUMNS, *ROWS):
        parameter: Any = parameters[f"{name}.weight"]
        told: Any = parameter.placements if isinstance(parameter, DTensor) else ()
        expected = Shard(1) if name in ROWS else Shard(0)
        if len(told) != 2 or told[0].dim != 0 or told[1] != expected:
            raise RecordError(f"torch placed {prefix}.{name}.weight as {told}; use the torch version that is pinned")


def _inside(block: torch.nn.Module, name: str) -> str:
    """The name inside a block that may be wrapped for checkpointing."""
    return name if isinstance(block, Block) else f"_checkpoint_wrapped_module.{name}"


def _whole(norm: Any) -> torch.Tensor:
    return norm.full_tensor() if isinstance(norm, DTensor) else norm


STRATEGY = FSDP2TP
