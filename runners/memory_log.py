"""The storages that a program makes: when each comes, grows, shrinks and goes, and where the program is then."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.module_tracker import ModuleTracker
from torch.utils.weak import WeakIdKeyDictionary

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
            if storage in self.numbers or tensor.is_meta:
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

    def pass_by(self, copied: tuple[str, int]) -> None:
        """Something of this category and size comes and goes at once."""
        category, nbytes = copied
        if nbytes:
            number = len(self.categories)
            self.categories.append(category)
            self.sizes.append(0)
            self.resize(number, nbytes)
            self.resize(number, 0)

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

    def __init__(self) -> None:
        self.names: dict[torch.nn.Module, str] = {}
        self.modules: list[str] = []
        self.task = ModuleTracker()
        self.ranges: list[str] = []
        self.streams: list[Any] = []
        self.open_streams = [0]
        self.step = 0
        self.operator = ""

    def inside(self, model: torch.nn.Module) -> None:
        """From now on the layers are this model's."""
        self.names = {module: name.replace(WRAPPER, "") for name, module in model.named_modules()}

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
        """What is allocated here, as far as the place tells."""
        marked = next((MARKED[name] for text in reversed(self.ranges) if (name := text.split(" (")[0]) in MARKED), None)
        return marked or BY_PHASE[self.phase()]

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


Copies = Callable[[str, Any], tuple[str, int]]


class Following(TorchDispatchMode):
    """Every operator below autograd, those inside DTensor included: whatever it makes is seen.

    `copies` tells what the backend of a collective call allocates for its time, below any operator.
    """

    def __init__(self, storages: Storages, place: Place, copies: Copies) -> None:
        super().__init__()
        self.storages, self.place, self.copies = storages, place, copies

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
        elif name.startswith("c10d::"):
            self.storages.pass_by(self.copies(name, args))
        self.place.operator = name
        made = func(*args, **(kwargs or {}))
        self.storages.see((leaf for leaf in tree_leaves(made) if isinstance(leaf, torch.Tensor)), self.place.category())
        return made


def no_copies(name: str, args: Any) -> tuple[str, int]:
    """NCCL works on the tensors that it is given."""
    del name, args
    return "collective buffers", 0


def gloo_copies(name: str, args: Any) -> tuple[str, int]:
    """Category and bytes of what gloo copies for the time of a call.

    It all-reduces a clone of what is to be reduce-scattered and receives an all-gather in one flat tensor (torch 2.13,
    torch/csrc/distributed/c10d/ProcessGroupGloo.cpp: `reduce_scatter_tensor_coalesced`, `allgather`).
    """
    scatters = "reduce_scatter" in name
    if not scatters and "allgather" not in name:
        return no_copies(name, args)
    tensors = [leaf for leaf in tree_leaves(args[1 if scatters else 0]) if isinstance(leaf, torch.Tensor)]
    return ("gradient buffers" if scatters else "collective buffers"), sum(t.nbytes for t in tensors)
