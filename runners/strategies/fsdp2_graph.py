"""FSDP written as DTensor redistribution and compiled whole: its collectives are nodes of the compiled graph."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.nn.utils import parametrize

from runners.compiling import Compiler
from runners.models import Decoder
from runners.options import EVERYWHERE
from runners.strategies.base import DTYPES, Strategy
from runners.strategies.fsdp2 import ACCUMULATION
from tracekit.record import Precision, RecordError, phase

ONE_GRAPH = "forward and backward are one graph each, and the compiler decides when a parameter is gathered"


class FSDP2Graph(Strategy):
    """Each parameter lies sharded on dim 0 and is replicated where the forward uses it; `fullgraph=True`."""

    takes = (EVERYWHERE | {"compile-backend"}) - {"activation-checkpointing"}
    refuses: ClassVar[Mapping[str, str]] = {
        "compile": "it is always compiled whole",
        "activation-checkpointing": ONE_GRAPH,
        "reshard-after-forward": ONE_GRAPH,
        "reshard": ONE_GRAPH,
        "forward-prefetch": ONE_GRAPH,
        "backward-prefetch": ONE_GRAPH,
        "async-unshard": ONE_GRAPH,
        "sync-every-micro-batch": "the reductions are part of the compiled backward",
        "grad-accum-dtype": ACCUMULATION,
    }

    def wrap(self, model: Decoder) -> torch.nn.Module:
        """Shards every parameter on dim 0 and compiles the model with its redistributions."""
        if "forward_dtype" not in inspect.signature(DTensor.redistribute).parameters:
            raise RecordError(
                f"torch {torch.__version__} redistributes in one type; for fsdp2-graph take a newer torch"
            )
        args, setup = self.setup.args, self.setup
        mesh = init_device_mesh(setup.device.type, (setup.world_size,), mesh_dim_names=("dp_shard",))
        gather = Gather(DTYPES[args.param_dtype], DTYPES[args.reduce_dtype])
        shards: dict[torch.nn.Parameter, torch.nn.Parameter] = {}
        for module in list(model.modules()):
            for name, parameter in list(module.named_parameters(recurse=False)):
                # A tied weight stays one tensor, gathered at each of its uses.
                module.register_parameter(name, shards.setdefault(parameter, _shard(parameter, mesh)))
                parametrize.register_parametrization(module, name, gather, unsafe=True)
        self.model = model
        self.compiler = Compiler(args, setup.device, whole=True)
        self.run = self.compiler.compile_model(model)
        return model

    def forward(self, tokens: Tensor) -> Tensor:
        """One call of the compiled graph."""
        with phase("forward"):
            return self.run(tokens)

    def describe(self) -> dict[str, Any]:
        """There are no units: a parameter is gathered where it is used."""
        args = self.setup.args
        return {
            "mesh": [("dp_shard", self.setup.world_size)],
            "precision": Precision(args.param_dtype, args.reduce_dtype, None, "float32"),
            "mark_layers": False,
        }

    def learned(self) -> dict[str, Any]:
        """The compiler's graphs, breaks and collectives."""
        return self.compiler.learned()


class Gather(torch.nn.Module):
    """A sharded parameter as the whole tensor that its module computes with."""

    def __init__(self, param_dtype: torch.dtype, reduce_dtype: torch.dtype) -> None:
        super().__init__()
        self.param_dtype, self.reduce_dtype = param_dtype, reduce_dtype

    def forward(self, shard: DTensor) -> Tensor:
        """All-gather in param_dtype; in backward the mean of the ranks' gradients, reduce-scattered in reduce_dtype."""
        whole = shard.redistribute(
            placements=[Replicate()], forward_dtype=self.param_dtype, backward_dtype=self.reduce_dtype
        )
        return whole.to_local(grad_placements=[Partial("avg")])


def _shard(parameter: torch.nn.Parameter, mesh: DeviceMesh) -> torch.nn.Parameter:
    return torch.nn.Parameter(distribute_tensor(parameter, mesh, [Shard(0)]), requires_grad=parameter.requires_grad)


STRATEGY = FSDP2Graph
