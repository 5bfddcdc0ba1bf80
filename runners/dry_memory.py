"""Runs torch's own sharding code for N ranks in one process and prints every allocation and free of rank 0, as JSON.

python runners/dry_memory.py --strategy fsdp2 --mesh dp_shard=8 --model llama3-8b --batch-size 2 --seq-len 8192

As `dry_run.py` does, with tensors that have shapes and no data; what is followed here is when each storage comes,
grows, shrinks and goes, over two optimizer steps, since the state of the optimizer is made in the first.
tracekit.plan.footprint starts this and lets a model of the caching allocator replay the list.
"""

from __future__ import annotations

import argparse
import json
import runpy
import sys
import weakref
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

if __package__ in (None, ""):
    runpy.run_path(str(Path(__file__).with_name("by_path.py")))["join_package"]()

import torch
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.module_tracker import ModuleTracker
from torch.utils.weak import WeakIdKeyDictionary

from runners import fake_world, train
from runners.strategies.base import Strategy
from tracekit.record import RecordError
from tracekit.reference_models import size_of
from tracekit.training import ERROR_PREFIX

NUM_STEPS = 2
# What FSDP2 allocates inside its own ranges, by their names.
MARKED = {
    "FSDP::all_gather_copy_out": "gathered parameters",
    "FSDP::all_gather": "collective buffers",
    "FSDP::post_backward_reduce": "gradient buffers",
}
BY_PHASE = {"forward": "activations", "backward": "temporaries", "optimizer": "temporaries"}
# Where DTensor runs an operator on whole fake tensors, to learn the shape of its result.
LEARN = "_propagate_tensor_meta_non_cached"
WRAPPER = "._checkpoint_wrapped_module"


def main(argv: list[str]) -> int:
    """Prints `{"categories": [...], "changes": [...]}`; returns 2 where the training program refuses.

    A storage is its category; a change is [storage, bytes (negative: freed), stream, step, phase, layer, operator].
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
    """Every storage of two optimizer steps of rank 0. Raises RecordError for options that do not fit."""
    size = size_of(args.model, layers=args.layers, tied=args.tie_embeddings)
    with fake_world.world(mesh), fake_world.fake_tensors():
        runner, model = fake_world.wrapped(strategy, args, size)
        place = Place(model)
        storages = Storages(place.now)
        shape = (args.batch_size, min(args.seq_len, size.max_seq_len) + 1)
        with place.told(), storages.told(), Following(storages, place):
            storages.name("parameters", model.parameters())
            storages.name("buffers", model.buffers())
            tokens = [torch.zeros(shape, dtype=torch.long) for _ in range(args.micro_batches)]
            optimizer = runner.make_optimizer(args.learning_rate)
            for place.step in range(NUM_STEPS):
                runner.step(tokens)
                states: list[Any] = list(optimizer.state.values())
                storages.name("optimizer state", tree_leaves(states))
            storages.closed = True
    return storages


def local(tensor: Any) -> Any:
    """This rank's part of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


class Storages:
    """Every storage that was seen, by number: its purpose and each change of its size; `now` tells where that is."""

    def __init__(self, now: Callable[[], tuple[int, int, str, str, str]]) -> None:
        self.now = now
        self.numbers = WeakIdKeyDictionary()
        self.categories: list[str] = []
        self.sizes: list[int] = []
        self.changes: list[tuple[int, int, int, int, str, str, str]] = []
        self.unreal = 0
        self.closed = False

    def see(self, tensors: Iterable[Any], category: str) -> None:
        """Takes note of the storages that are new, as of this category."""
        for tensor in tensors if not self.unreal else ():
            storage = tensor.untyped_storage()
            if storage in self.numbers:
                continue
            number = self.numbers[storage] = len(self.categories)
            self.categories.append(category)
            self.sizes.append(0)
            self.resize(number, storage.nbytes())
            weakref.finalize(storage, self.resize, number, 0)

    def name(self, category: str, values: Iterable[Any]) -> None:
        """Gives the storages of these tensors a category; whatever is no tensor is passed over."""
        tensors = [local(value) for value in values if isinstance(value, torch.Tensor)]
        self.see(tensors, category)
        for tensor in tensors:
            number = self.numbers.get(tensor.untyped_storage())
            if number is not None:
                self.categories[number] = category

    def resize(self, number: int, nbytes: int) -> None:
        """The storage has that many bytes now; 0: it is gone."""
        delta = nbytes - self.sizes[number]
        if delta and not self.closed:
            self.sizes[number] = nbytes
            self.changes.append((number, delta, *self.now()))

    @contextmanager
    def told(self) -> Generator[None]:
        """Storages that FSDP2 resizes are followed; tensors that DTensor makes to learn a shape do not exist."""
        resize, learn = torch.UntypedStorage.resize_, getattr(ShardingPropagator, LEARN)

        def resized(storage: Any, size: int) -> Any:
            number = self.numbers.get(storage)
            if number is not None:
                self.resize(number, size)
            return resize(storage, size)

        def learnt(*args: Any, **kwargs: Any) -> Any:
            self.unreal += 1
            try:
                return learn(*args, **kwargs)
            finally:
                self.unreal -= 1

        with (
            mock.patch.object(torch.UntypedStorage, "resize_", resized),
            mock.patch.object(ShardingPropagator, LEARN, learnt),
        ):
            yield


class Place:
    """Where the program is: stream, step, phase, layer and operator."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.names = {module: name.replace(WRAPPER, "") for name, module in model.named_modules()}
        self.modules: list[str] = []
        self.task = ModuleTracker()
        self.ranges: list[str] = []
        self.streams: list[Any] = []
        self.open_streams = [0]
        self.step = 0
        self.operator = ""

    def now(self) -> tuple[int, int, str, str, str]:
        """Stream (0: the current one), step, phase, layer, operator."""
        return self.open_streams[-1], self.step, self.phase(), self.layer(), self.operator

    def phase(self) -> str:
        """Forward, backward or optimizer; other before the first forward."""
        if self.task.is_bw:
            return "backward"
        if any(name.startswith(("Optimizer.step", "tracekit::optimizer")) for name in self.ranges):
            return "optimizer"
        return "forward"

    def category(self) -> str:
        """What is allocated here, as far as the place tells; backward switches gradients on only to recompute."""
        marked = next((MARKED[name] for text in reversed(self.ranges) if (name := text.split(" (")[0]) in MARKED), None)
        phase = self.phase()
        again = phase == "backward" and torch.is_grad_enabled()
        return marked or BY_PHASE["forward" if again else phase]

    def layer(self) -> str:
        """The innermost module that runs; "" the root."""
        return self.modules[-1] if self.modules else ""

    def enter(self, name: str) -> None:
        """A module's forward or backward begins."""
        self.modules.append(name)

    def leave(self, name: str) -> None:
        """It ends, and with it what it left open."""
        if name in self.modules:
            del self.modules[self.modules.index(name) :]

    def before(self, module: torch.nn.Module, inputs: Any) -> None:
        """A forward begins; its backward will end where the gradient of an input is handed on.

        Hooks are on the graph's nodes and keep no tensor alive, as those of torch's ModuleTracker do.
        """
        name = self.names.get(module)
        if name is not None:
            self.enter(name)
            _hook(inputs, lambda _: self.leave(name))

    def after(self, module: torch.nn.Module, _: Any, outputs: Any) -> None:
        """A forward ends, also one that recomputation leaves early; its backward will begin here."""
        name = self.names.get(module)
        if name is not None:
            self.leave(name)
            _hook(outputs, lambda _: self.enter(name))

    @contextmanager
    def told(self) -> Generator[None]:
        """Streams are followed: on a CPU they are all one, but FSDP2 enters those that it would use on a GPU."""

        @contextmanager
        def stream(entered: Any) -> Generator[None]:
            if entered not in self.streams and entered is not torch.cpu.current_stream():
                self.streams.append(entered)
            self.open_streams.append(self.streams.index(entered) + 1 if entered in self.streams else 0)
            try:
                yield
            finally:
                self.open_streams.pop()

        before = register_module_forward_pre_hook(self.before)
        after = register_module_forward_hook(self.after, always_call=True)
        try:
            with mock.patch.object(torch.cpu, "stream", stream):
                yield
        finally:
            before.remove()
            after.remove()


def _hook(values: Any, call: Callable[[Any], None]) -> None:
    for value in tree_leaves(values):
        if isinstance(value, torch.Tensor) and value.grad_fn is not None:
            value.grad_fn.register_prehook(call)


class Following(TorchDispatchMode):
    """Every operator below autograd, those inside DTensor included: whatever it makes is seen."""

    def __init__(self, storages: Storages, place: Place) -> None:
        super().__init__()
        self.storages, self.place = storages, place

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        name = func.name()
        if name.startswith("profiler::_record_function_enter"):
            self.place.ranges.append(str(args[0]))
        elif name.startswith("profiler::_record_function_exit"):
            self.place.ranges.pop()
        elif name == "fsdp::chunk_cat":
            # What is reduced now are the whole gradients of a unit.
            self.storages.name("gradients", args[0])
        self.place.operator = name
        made = func(*args, **(kwargs or {}))
        self.storages.see((leaf for leaf in tree_leaves(made) if isinstance(leaf, torch.Tensor)), self.place.category())
        return made


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
