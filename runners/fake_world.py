"""A training program's model for N ranks in one process: a fake process group, tensors with shapes and no data."""

from __future__ import annotations

import argparse
import functools
import math
import os
import sys
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
import torch.distributed.device_mesh as meshes
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

from runners.models import Decoder
from runners.strategies import fsdp2
from runners.strategies.base import Setup, Strategy, checkpoint_blocks, freeze
from tracekit.reference_models import Size


def wrapped(strategy: type[Strategy], args: argparse.Namespace, size: Size) -> tuple[Strategy, torch.nn.Module]:
    """The strategy around a model of this size, as `runners/train.py` makes them."""
    runner = strategy(Setup(args, torch.device("cpu"), 0, dist.get_world_size()))
    with _kept_as_made(), unset_fake_temporarily():
        # Sharded on the meta device, as train.py does with large models: cutting is cheap there.
        with torch.device("meta"):
            model = Decoder(size)
        freeze(model, args.freeze or ())
        checkpoint_blocks(model, args.activation_checkpointing)
        model.to_empty = lambda **_: model  # pyright: ignore[reportAttributeAccessIssue]
        wrapped = runner.wrap(model)
    torch.nn.Module.to_empty(wrapped, device="cpu")  # pyright: ignore[reportArgumentType] - a string is taken, too
    return runner, wrapped


@contextmanager
def _kept_as_made() -> Generator[None]:
    """Weights need no values here."""
    made = fsdp2.initialize
    fsdp2.initialize = lambda *_, **__: None
    try:
        yield
    finally:
        fsdp2.initialize = made


Wrap = Callable[[], tuple[Strategy, torch.nn.Module]]


@contextmanager
def without_data(strategy: type[Strategy], args: argparse.Namespace, size: Size) -> Generator[Wrap]:
    """What wraps a model whose tensors have shapes and no data; nothing inside makes any."""
    with fake_tensors():
        make = wrapped if strategy.from_meta else _whole
        yield lambda: make(strategy, args, size)


@contextmanager
def with_data(strategy: type[Strategy], args: argparse.Namespace, size: Size) -> Generator[Wrap]:
    """What wraps a model as it is, for code that reads values or asks for addresses."""
    place = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": str(dist.get_world_size())}
    with mock.patch.dict(os.environ, place), mock.patch.object(dist, "all_reduce", _answered(dist.all_reduce)):
        yield lambda: _whole(strategy, args, size)


def _whole(strategy: type[Strategy], args: argparse.Namespace, size: Size) -> tuple[Strategy, torch.nn.Module]:
    runner = strategy(Setup(args, torch.device("cpu"), 0, dist.get_world_size()))
    decoder = Decoder(size)
    freeze(decoder, args.freeze or ())
    checkpoint_blocks(decoder, args.activation_checkpointing)
    model = runner.wrap(decoder)
    if isinstance(model, DistributedDataParallel) and not vars(model)["_comm_hooks"]:
        # The reducer's own way asks the work for its result, and the fake group's has none.
        model.register_comm_hook(None, lambda state, bucket: allreduce_hook(state, bucket))  # noqa: PLW0108 - by its type
    return runner, model


def _answered(all_reduce: Any) -> Any:
    """An all-reduce whose future holds the tensor, as that of a real group does."""

    @functools.wraps(all_reduce)
    def call(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        work = all_reduce(tensor, *args, **kwargs)
        if work is None:
            return None
        future: Any = torch.futures.Future()
        future.set_result([tensor])
        return SimpleNamespace(wait=work.wait, get_future=lambda: future)

    return call


@contextmanager
def world(mesh: Mapping[str, int]) -> Generator[None]:
    """A process group of that many ranks in which nothing is sent; this process is rank 0."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=math.prod(mesh.values()))
    try:
        yield
    finally:
        dist.destroy_process_group()


@contextmanager
def fake_tensors() -> Generator[None]:
    """Tensors without data, but for those that describe the mesh: torch reads their values."""

    def real(function: Any) -> Any:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with unset_fake_temporarily():
                return function(*args, **kwargs)

        return call

    with ExitStack() as undo:
        for owner, name in _mesh_makers():
            undo.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, real(getattr(owner, name)))
        undo.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        yield


def _mesh_makers() -> Iterator[tuple[Any, str]]:
    """Places that make or cut a device mesh: its methods, and the maker's name in every strategy that imported it."""
    modules = dict(sys.modules)
    for module in [meshes, *(found for name, found in modules.items() if name.startswith("runners.strategies."))]:
        if hasattr(module, "init_device_mesh"):
            yield module, "init_device_mesh"
    for name, module in modules.items():
        # Resharding to an integer makes a mesh of its own.
        if name.startswith("torch.distributed.fsdp._fully_shard.") and hasattr(module, "_get_post_forward_mesh_info"):
            yield module, "_get_post_forward_mesh_info"
    for method in ("__init__", "__getitem__", "_flatten", "_unflatten"):
        if hasattr(meshes.DeviceMesh, method):
            yield meshes.DeviceMesh, method
