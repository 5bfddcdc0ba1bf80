"""Trains as `runners/train.py` does and logs what each storage was for, by address and time: truth for the rules.

Started under torchrun with the options of the training program; TRUTH names the folder for `truth<rank>.json`:
`storages` are [time in ns, address, bytes, category], `calls` [start, end, operator] of the collective calls.
Nothing here reads a trace.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from runners import train

TEMPORARY = "temporaries"
# Lists of flat tensors that DeepSpeed's optimizers hold.
DEEPSPEED_FLAT = {
    "bit16_groups_flat": "parameters",
    "fp16_partitioned_groups_flat": "parameters",
    "single_partition_of_fp32_groups": "optimizer state",
    "fp32_partitioned_groups_flat": "optimizer state",
}


class Log:
    """What is known of each storage that was seen."""

    def __init__(self) -> None:
        self.storages: list[list[Any]] = []
        self.calls: list[tuple[int, int, str]] = []
        self.places = WeakIdKeyDictionary()

    def see(self, tensor: Any) -> int | None:
        """Number of the tensor's storage; a storage that was resized is a new one."""
        if isinstance(tensor, DTensor):
            tensor = tensor.to_local()
        if isinstance(tensor, (FakeTensor, AsyncCollectiveTensor)) or not tensor.untyped_storage().nbytes():
            return None
        storage = tensor.untyped_storage()
        known = self.places.get(storage)
        if known is None or self.storages[known][1:3] != [storage.data_ptr(), storage.nbytes()]:
            known = self.places[storage] = len(self.storages)
            self.storages.append([time.time_ns(), storage.data_ptr(), storage.nbytes(), TEMPORARY])
        return known

    def name(self, category: str, values: Iterable[Any], *, unless_named: bool = False) -> None:
        """Gives the storages of the tensors among these values a category."""
        for value in values:
            number = self.see(value) if isinstance(value, torch.Tensor) else None
            if number is not None and not (unless_named and self.storages[number][3] != TEMPORARY):
                self.storages[number][3] = category

    def saved(self, tensor: torch.Tensor) -> torch.Tensor:
        """Hook of autograd: what is saved for backward is an activation, or a parameter that was gathered."""
        base = tensor if tensor._base is None else tensor._base
        category = "gathered parameters" if isinstance(base, nn.Parameter) else "activations"
        self.name(category, [tensor], unless_named=True)
        return tensor


class Following(TorchDispatchMode):
    """Sees what every operator below autograd makes; FSDP2's own operators tell what their tensors are."""

    def __init__(self, log: Log) -> None:
        super().__init__()
        self.log = log

    def __torch_dispatch__(self, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        name, kwargs, start = func.name(), kwargs or {}, time.time_ns()
        if name == "fsdp::chunk_cat":
            self.log.name("gradients", args[0], unless_named=True)
        made = func(*args, **kwargs)
        self.log.name(TEMPORARY, tree_leaves(made), unless_named=True)
        if name.startswith("c10d::allreduce_") and "deepspeed" in sys.modules:
            # DeepSpeed lays out what it reduces, each time anew.
            self.log.name("gradient buffers", tree_leaves(args[0]), unless_named=True)
        if name.startswith("c10d::"):
            self.log.calls.append((start, time.time_ns(), name))
        elif name == "fsdp::split_with_sizes_copy":
            self.log.name("gathered parameters", kwargs["out"])
        elif name == "fsdp::all_gather_copy_in":
            self.log.name("collective buffers", made)
        elif name == "fsdp::chunk_cat":
            self.log.name("gradient buffers", [kwargs["out"]])
        return made


def follow(log: Log) -> None:
    """Makes the training program tell its model's and its optimizer's tensors to the log."""
    make, resize = train.make_recorder, torch.UntypedStorage.resize_

    def resized(storage: Any, size: int) -> Any:
        log.places.pop(storage, None)
        return resize(storage, size)

    def make_recorder(setup: Any, strategy: Any, model: nn.Module, optimizer: Any, size: Any) -> Any:
        recorder = make(setup, strategy, model, optimizer, size)
        log.name("parameters", model.parameters())
        for name, category in DEEPSPEED_FLAT.items():
            log.name(category, getattr(optimizer, name, None) or [])
        strategy.step = with_saved(strategy.step, log)
        tell_optimizer(getattr(optimizer, "optimizer", optimizer), model, log)
        return recorder

    torch.UntypedStorage.resize_ = resized
    train.make_recorder = make_recorder


def with_saved(step: Callable[..., Any], log: Log) -> Callable[..., Any]:
    """The step with the log's hook on every saved tensor."""

    def stepped(batches: Any) -> Any:
        with torch.autograd.graph.saved_tensors_hooks(log.saved, lambda tensor: tensor):
            return step(batches)

    return stepped


def tell_optimizer(optimizer: Any, model: nn.Module, log: Log) -> None:
    """Gradients are what the optimizer finds, its state what it leaves."""

    def before(*_: Any, **__: Any) -> None:
        held = [p for group in optimizer.param_groups for p in group["params"]]
        log.name("gradients", [p.grad for p in (*held, *model.parameters()) if p.grad is not None])

    def after(*_: Any, **__: Any) -> None:
        log.name("optimizer state", tree_leaves(list(optimizer.state.values())))

    optimizer.register_step_pre_hook(before)
    optimizer.register_step_post_hook(after)


def main() -> int:
    """Trains; returns the exit code of the training program."""
    log = Log()
    follow(log)
    with Following(log):
        code = train.main(sys.argv[1:])
    told = {"storages": log.storages, "calls": log.calls}
    Path(os.environ["TRUTH"], f"truth{os.environ['RANK']}.json").write_text(json.dumps(told))
    return code


if __name__ == "__main__":
    sys.exit(main())
