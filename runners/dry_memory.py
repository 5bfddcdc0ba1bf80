"""Runs a strategy's own code for N ranks in one process and prints every allocation and free of rank 0, as JSON.

python runners/dry_memory.py --strategy fsdp2 --mesh dp_shard=8 --model llama3-8b --batch-size 2 --seq-len 8192

As `dry_run.py` does, with tensors that have shapes and no data where the strategy's code takes them, else with data;
what is followed here is when each storage comes, grows, shrinks and goes, over the first optimizer steps: state and
buckets are made in them. tracekit.plan.footprint starts this and lets a model of the caching allocator replay the list.
"""

from __future__ import annotations

import argparse
import json
import runpy
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    runpy.run_path(str(Path(__file__).with_name("by_path.py")))["join_package"]()

import torch
from torch.utils._pytree import tree_leaves

from runners import fake_world, train
from runners.memory_log import Following, Place, Storages, gloo_copies, no_copies
from runners.strategies.base import Strategy
from tracekit.record import RecordError, frameworks
from tracekit.record.names import inner_optimizer
from tracekit.reference_models import size_of
from tracekit.strategies import find
from tracekit.training import ERROR_PREFIX

# DDP makes its last buckets in the second step.
NUM_STEPS = 3
SETUP = -1


def main(argv: list[str]) -> int:
    """Prints `{"categories": [...], "changes": [...]}`; returns 2 where the training program refuses.

    A storage is its category; a change is [storage, bytes (negative: freed), stream, step, phase, layer, operator].
    Before the first step the step is -1.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--mesh", required=True)
    given, rest = parser.parse_known_args(argv)
    mesh = {axis: int(size) for axis, _, size in (part.partition("=") for part in given.mesh.split(","))}
    args, strategy = train.parse(rest)
    try:
        storages = follow(strategy, args, mesh)
    except RecordError as error:
        print(f"{ERROR_PREFIX}{error}", file=sys.stderr, flush=True)
        return 2
    print(json.dumps({"categories": storages.categories, "changes": storages.changes}, separators=(",", ":")))
    return 0


def follow(strategy: type[Strategy], args: argparse.Namespace, mesh: Mapping[str, int]) -> Storages:
    """Every storage of the first steps of rank 0. Raises RecordError for options that do not fit."""
    size = size_of(args.model, layers=args.layers, tied=args.tie_embeddings)
    place = Place()
    place.step = SETUP
    storages = Storages(place.now)
    shape = (args.batch_size, min(args.seq_len, size.max_seq_len) + 1)
    copies = gloo_copies if args.backend == "gloo" else no_copies
    make = fake_world.without_data if find(args.strategy).dry_step == "without data" else fake_world.with_data
    with (
        fake_world.world(mesh),
        make(strategy, args, size) as wrap,
        place.told(),
        storages.told(),
        Following(storages, place, copies),
    ):
        runner, model = wrap()
        place.inside(model)
        tokens = [torch.zeros(shape, dtype=torch.long) for _ in range(args.micro_batches)]
        optimizer = runner.make_optimizer(args.learning_rate)
        for place.step in range(NUM_STEPS):
            name_held(storages, model, optimizer)
            runner.step(tokens)
        storages.closed = True
    return storages


def name_held(storages: Storages, model: torch.nn.Module, optimizer: Any) -> None:
    """Gives what the model, its framework and the optimizer hold between two steps their categories."""
    found = frameworks.look(model, optimizer, torch.distributed.get_world_size())
    kept = found.held() if found.held is not None else {}
    state = getattr(inner_optimizer(optimizer), "state", {})
    held: dict[str, Any] = {
        "parameters": list(model.parameters()),
        "buffers": list(model.buffers()),
        "optimizer state": tree_leaves(list(state.values())),
    }
    for category in ("parameters", "gradients", "optimizer state", "collective buffers"):
        more = kept.get(category.replace(" ", "_"), ())
        held[category] = [*held.get(category, ()), *(() if isinstance(more, int) else more)]
    for category, tensors in held.items():
        storages.name(category, tensors)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
