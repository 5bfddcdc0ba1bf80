"""A pipeline of four small stages under torch's profiler over gloo: `pipeline_ranks.py FOLDER SCHEDULE…`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed import pipelining
from torch.profiler import ProfilerActivity, profile, schedule

STAGES, MICRO_BATCHES, WIDTH = 4, 4, 64
# The second stage has the most to compute.
LAYERS = (2, 24, 2, 2)


def main(rank, folder, names):
    """As stage `rank`, train with each of the schedules, and leave a trace of two steps in a folder of its name."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=STAGES)
    for name in names:
        record(rank, Path(folder) / name, name)
    dist.destroy_process_group()


def record(rank, folder, name):
    """Train three steps, the last two recorded."""
    module = torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS[rank])])
    stage = pipelining.PipelineStage(module, rank, STAGES, torch.device("cpu"))
    plan = getattr(pipelining, name)(stage, n_microbatches=MICRO_BATCHES, loss_fn=torch.nn.functional.mse_loss)
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-3)
    batch = torch.randn(MICRO_BATCHES * 16, WIDTH)
    folder.mkdir(exist_ok=True)

    def save(prof):
        prof.export_chrome_trace(str(folder / f"rank{rank}.json"))

    window = schedule(wait=0, warmup=1, active=2, repeat=1)
    with profile(activities=[ProfilerActivity.CPU], schedule=window, on_trace_ready=save, record_shapes=True) as prof:
        for _ in range(3):
            optimizer.zero_grad()
            plan.step(*([batch] if rank == 0 else []), **({"target": batch} if rank == STAGES - 1 else {}))
            optimizer.step()
            prof.step()
    dist.barrier()


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    mp.spawn(main, args=(sys.argv[1], tuple(sys.argv[2:])), nprocs=STAGES)
