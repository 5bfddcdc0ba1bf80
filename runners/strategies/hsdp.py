"""HSDP: FSDP2 inside groups of ranks that shard, and replicas of these groups that all-reduce the shards' gradients."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from runners.strategies.fsdp2 import FSDP2
from tracekit.record import RecordError


class HSDP(FSDP2):
    """FSDP2 on the mesh (dp_replicate, dp_shard); ranks of one replica follow one another."""

    takes = FSDP2.takes | {"dp-replicate", "all-reduce-every-micro-batch"}

    def make_mesh(self) -> DeviceMesh:
        """--dp-replicate rows of ranks that shard. Raises RecordError for ranks that do not fill them."""
        replicas, ranks = self.setup.args.dp_replicate, self.setup.world_size
        if ranks % replicas or ranks == replicas:
            raise RecordError(
                f"{ranks} ranks make no {replicas} replicas of two ranks or more; give another --dp-replicate or start "
                f"{2 * replicas} ranks"
            )
        shape = (replicas, ranks // replicas)
        return init_device_mesh(self.setup.device.type, shape, mesh_dim_names=("dp_replicate", "dp_shard"))

    def accumulation(self, *, last: bool) -> AbstractContextManager[Any]:
        """As FSDP2; and reduced shards stay with their replica before the last micro-batch if told so."""
        surroundings = super().accumulation(last=last)
        if not last and not self.setup.args.all_reduce_every_micro_batch:
            # After the call above, which sets this, too.
            root: Any = self.model
            root.set_requires_all_reduce(False)
        return surroundings


STRATEGY = HSDP
