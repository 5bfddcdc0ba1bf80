"""Training loops of others, each recorded by a `Recorder` that is told the model and the optimizer alone.

Run as a program it records those that it is given by name, each into a folder of its name, on ranks forked from one
process that has torch loaded.
"""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, MixedPrecisionPolicy, ShardingStrategy
from torch.distributed.fsdp import fully_shard as shard
from torch.distributed.tensor import Shard
from torch.nn.parallel import DistributedDataParallel

from tracekit.record import Recorder, Schedule

HALF = MixedPrecisionPolicy(torch.bfloat16, torch.float32)


class Net(nn.Module):
    """Blocks of 8 × 8 and 8 between an embedding and a head; `spare` is a block, and `lost` a layer, without use."""

    def __init__(self, *, spare=False, lost=False, buffers=False):
        super().__init__()
        self.embed = nn.Embedding(10, 8)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(3))
        self.head = nn.Linear(8, 10, bias=False)
        self.spare = nn.Sequential(nn.Linear(8, 8)) if spare else None
        self.lost = nn.Linear(8, 3) if lost else None
        if buffers:
            self.register_buffer("seen", torch.zeros(5))

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = x + block(x).to(x.dtype)
        return self.head(x.to(self.head.weight.dtype)).float()


def fsdp2(model, *, root=HALF, block=HALF, **more):
    units = [*model.blocks, *([model.spare] if model.spare is not None else [])]
    for unit in units:
        shard(unit, mp_policy=block, **more)
    return shard(model, mp_policy=root, **more)


def fsdp1(model, *, root, block, **more):
    def wrapped(module, precision):
        return FullyShardedDataParallel(
            module, mixed_precision=precision, device_id=torch.device("cpu"), use_orig_params=True, **more
        )

    for index, unit in enumerate(model.blocks):
        model.blocks[index] = wrapped(unit, block)
    return wrapped(model, root)


def ddp(model, hook=None, state=None, **more):
    wrapped = DistributedDataParallel(model, **more)
    if hook is not None:
        wrapped.register_comm_hook(state, hook)
    return wrapped


def hybrid():
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    half = MixedPrecision(torch.bfloat16, torch.float32)
    return fsdp1(Net(), root=half, block=half, sharding_strategy=ShardingStrategy.HYBRID_SHARD, device_mesh=mesh)


def power():
    return ddp(Net(), powerSGD_hook.powerSGD_hook, powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2))


WHOLE, BF16 = MixedPrecisionPolicy(), MixedPrecision(torch.bfloat16, torch.bfloat16, cast_forward_inputs=True)
# Ranks, and what makes the model.
LOOPS = {
    "fsdp2-whole-root": (2, lambda: fsdp2(Net(), root=WHOLE)),
    "fsdp2-half-reduced-blocks": (3, lambda: fsdp2(Net(), block=MixedPrecisionPolicy(torch.bfloat16, torch.bfloat16))),
    "fsdp2-shard-1": (2, lambda: fsdp2(Net(), shard_placement_fn=lambda p: Shard(1) if p.ndim > 1 else None)),
    "fsdp2-shard-1-on-4": (4, lambda: fsdp2(Net(), shard_placement_fn=lambda p: Shard(1) if p.ndim > 1 else None)),
    "fsdp2-unused": (3, lambda: fsdp2(Net(lost=True))),
    "fsdp2-unused-unit": (2, lambda: fsdp2(Net(spare=True, lost=True))),
    "fsdp1-types": (2, lambda: fsdp1(Net(), root=MixedPrecision(), block=BF16)),
    "fsdp1-hybrid": (4, hybrid),
    "ddp-find-unused": (2, lambda: ddp(Net(lost=True, buffers=True), find_unused_parameters=True)),
    "ddp-find-unused-none": (2, lambda: ddp(Net(), find_unused_parameters=True)),
    "ddp-static-graph": (2, lambda: ddp(Net(spare=True, lost=True), static_graph=True)),
    "ddp-buffers": (2, lambda: ddp(Net(buffers=True))),
    "ddp-fp16-hook": (2, lambda: ddp(Net(), default_hooks.fp16_compress_hook)),
    "ddp-allreduce-hook": (2, lambda: ddp(Net(), default_hooks.allreduce_hook)),
    "ddp-power-hook": (2, power),
}


def train(name, folder):
    """Records two steps of a loop on this rank."""
    torch.manual_seed(0)
    model = LOOPS[name][1]()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    recorder = Recorder(folder / name, model, optimizer=optimizer, schedule=Schedule(wait=3, warmup=1, active=2))
    with recorder:
        for _ in range(recorder.schedule.num_steps):
            model(torch.arange(6).reshape(2, 3)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            recorder.step()


def rank(name, folder, number, store):
    """A forked process, which never returns: one rank of a loop. Leaves with 1 where it failed."""
    code = 1
    try:
        torch.set_num_threads(1)
        size = LOOPS[name][0]
        dist.init_process_group("gloo", store=dist.FileStore(store, size), rank=number, world_size=size)
        train(name, folder)
        dist.destroy_process_group()
        code = 0
    except BaseException:  # noqa: BLE001 - a forked rank never returns to the loop of its parent
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main(folder, names):
    """Records each loop; the number of those in which a rank failed."""
    failed = 0
    for name in names:
        children = []
        for number in range(LOOPS[name][0]):
            child = os.fork()
            if not child:
                rank(name, folder, number, str(folder / f"{name}.store"))
            children.append(child)
        codes = [os.waitpid(child, 0)[1] for child in children]
        failed += any(codes)
    return failed


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:] or [*LOOPS]))
