"""Ranks of the fuzzer of truth: trains configurations on forks of one process that has torch loaded.

`ledger_ranks.py FOLDER SEED NUMBER…` leaves a run and `asked-<rank>.json` a configuration: what torch was really asked,
as a dispatch mode saw it, a list of (kind, elements in) a recorded step.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
import warnings
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from ledger_configs import config
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FullyShardedDataParallel,
    MixedPrecision,
    MixedPrecisionPolicy,
    ShardingStrategy,
    fully_shard,
)
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from tracekit.record import Recorder, Schedule

KINDS = {
    "c10d::allreduce_": "all_reduce",
    "c10d::_allgather_base_": "all_gather",
    "c10d::allgather_": "all_gather",
    "c10d::_reduce_scatter_base_": "reduce_scatter",
    "c10d::broadcast_": "broadcast",
    "c10d::reduce_": "reduce",
    # DTensor's own, for norms.
    "_c10d_functional::all_reduce": "all_reduce",
    "_c10d_functional::all_gather_into_tensor": "all_gather",
    "_c10d_functional::reduce_scatter_tensor": "reduce_scatter",
}
# Whether the first tensors of the operator are its output.
OUTPUT_FIRST = ("c10d::_allgather_base_", "c10d::allgather_", "c10d::_reduce_scatter_base_")


class Asked(TorchDispatchMode):
    """The operators of c10d that pass, each as its kind and the elements that go in."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(issubclass(kind, DTensor) for kind in types):
            # Its own dispatch comes first, and what that asks for passes here again.
            return NotImplemented
        name = func.name().partition(".")[0]
        if name in KINDS:
            side = args[1] if name in OUTPUT_FIRST else args[0]
            self.calls.append((KINDS[name], elements(side)))
        return func(*args, **(kwargs or {}))


def elements(tensors):
    if isinstance(tensors, torch.Tensor):
        return tensors.numel()
    return sum(elements(one) for one in tensors)


class Net(nn.Module):
    """Blocks between an embedding and a head, as a configuration has them."""

    def __init__(self, c):
        super().__init__()
        self.embed = nn.Embedding(c.vocab, c.width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(c.width, c.width, bias=c.bias), nn.Tanh()) for _ in range(c.blocks)
        )
        self.head = nn.Linear(c.width, c.vocab, bias=False)
        self.lost = nn.Linear(c.width, 3) if c.lost else None
        self.scale = nn.Parameter(torch.tensor(1.0)) if c.scalar else None
        if c.buffers:
            self.register_buffer("seen", torch.zeros(5))
        if c.tied:
            self.head.weight = self.embed.weight
        for number in c.frozen:
            (self.embed if number < 0 else self.blocks[number]).requires_grad_(False)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = x + block(x).to(x.dtype)
        x = self.head(x.to(self.head.weight.dtype)).float()
        return x if self.scale is None else x * self.scale


def wrapped(c, model):
    if c.strategy in ("ddp", "zero1"):
        more = {} if c.bucket_kb is None else {"bucket_cap_mb": c.bucket_kb / 1024}
        replica = DistributedDataParallel(model, find_unused_parameters=c.lost, **more)
        if c.hook == "fp16":
            replica.register_comm_hook(None, default_hooks.fp16_compress_hook)
        return replica
    if c.strategy.endswith("fsdp1"):
        return in_fsdp1(c, model)
    half = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    root, block = {"none": (None, None), "all": (half, half), "blocks": (None, half)}[c.halves]
    more = {"reshard_after_forward": False if c.strategy == "zero2-fsdp2" else c.reshard}
    if c.strategy == "hsdp":
        more["mesh"] = init_device_mesh("cpu", (2, c.ranks // 2), mesh_dim_names=("replicate", "shard"))
    more = {name: value for name, value in more.items() if value is not None}
    for unit in model.blocks:
        fully_shard(unit, mp_policy=block or MixedPrecisionPolicy(), **more)
    return fully_shard(model, mp_policy=root or MixedPrecisionPolicy(), **more)


def in_fsdp1(c, model):
    half = MixedPrecision(torch.bfloat16, torch.float32, cast_forward_inputs=True)
    root, block = {"none": (None, None), "all": (half, half), "blocks": (None, half)}[c.halves]
    kind = ShardingStrategy.FULL_SHARD if c.strategy == "fsdp1" else ShardingStrategy.SHARD_GRAD_OP
    more = {"device_id": torch.device("cpu"), "use_orig_params": True, "sharding_strategy": kind}
    for index, unit in enumerate(model.blocks):
        model.blocks[index] = FullyShardedDataParallel(unit, mixed_precision=block, **more)
    return FullyShardedDataParallel(model, mixed_precision=root, **more)


def unsynced(c, model, *, last):
    if last or c.every:
        if hasattr(model, "set_requires_gradient_sync"):
            model.set_requires_gradient_sync(True)
        return nullcontext()
    if hasattr(model, "set_requires_gradient_sync"):
        model.set_requires_gradient_sync(False)
        return nullcontext()
    return model.no_sync()


def step(c, model, optimizer):
    tokens = torch.arange(6).reshape(2, 3) % c.vocab
    for index in range(c.micro_batches):
        with unsynced(c, model, last=index == c.micro_batches - 1):
            model(tokens).square().mean().backward()
    if c.loop == "clip":
        own = model.clip_grad_norm_ if hasattr(model, "clip_grad_norm_") else None
        own(1.0) if own else nn.utils.clip_grad_norm_([p for p in model.parameters() if p.grad is not None], 1.0)
    if c.loop == "metrics":
        dist.all_reduce(torch.zeros(5))
    if c.loop == "evaluate":
        with torch.no_grad():
            model(tokens)
    optimizer.step()
    optimizer.zero_grad()


def train(c, folder, rank):
    torch.manual_seed(0)
    model = wrapped(c, Net(c))
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = (
        ZeroRedundancyOptimizer(trained, optimizer_class=torch.optim.AdamW, lr=1e-3)
        if c.strategy == "zero1"
        else torch.optim.AdamW(trained, lr=1e-3)
    )
    schedule, asked = Schedule(wait=3, warmup=1, active=2), []
    with Recorder(folder, model, optimizer=optimizer, schedule=schedule) as recorder:
        for _ in range(schedule.num_steps):
            with Asked() if recorder.recording else nullcontext() as log:
                step(c, model, optimizer)
            asked += [log.calls] if log is not None else []
            recorder.step()
    (folder / f"asked-{rank}.json").write_text(json.dumps(asked))


def fork(seed, number, folder, rank):
    """A forked process, which never returns: one rank of a configuration. Leaves with 1 where it failed."""
    code = 1
    try:
        warnings.simplefilter("ignore")
        torch.set_num_threads(1)
        c = config(seed, number)
        store = dist.FileStore(str(folder.parent / f"{number}.store"), c.ranks)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=c.ranks)
        train(c, folder, rank)
        dist.destroy_process_group()
        code = 0
    except BaseException:  # noqa: BLE001 - a forked rank never returns to the loop of its parent
        (folder.parent / f"{number}.failed").write_text(traceback.format_exc())
    finally:
        os._exit(code)


def main(folder, seed, numbers):
    """Records each configuration; those in which a rank failed leave a file `<number>.failed` that says why."""
    for number in numbers:
        c, children = config(seed, number), []
        for rank in range(c.ranks):
            child = os.fork()
            if not child:
                fork(seed, number, folder / str(number), rank)
            children.append(child)
        for child in children:
            os.waitpid(child, 0)
        print(number, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), [int(number) for number in sys.argv[3:]]))
