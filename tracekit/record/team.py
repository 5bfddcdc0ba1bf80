"""The ranks of a run: this one's number, and what all of them exchange before the recording starts."""

from __future__ import annotations

import os
import pickle
import platform
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch

from tracekit.record.errors import RecordError


@dataclass(frozen=True)
class Team:
    """This process among the ranks of the run; `backend` is None without torch.distributed."""

    rank: int
    world_size: int
    backend: str | None
    host: str
    pid: int


def join() -> Team:
    """This process among its ranks. Raises RecordError in one of several that torch.distributed does not connect."""
    host, pid = platform.node() or "localhost", os.getpid()
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        distributed = torch.distributed
        return Team(distributed.get_rank(), distributed.get_world_size(), distributed.get_backend(), host, pid)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise RecordError(
            f"this is one of {os.environ['WORLD_SIZE']} processes but torch.distributed is not initialized; "
            "call init_process_group before the recording starts"
        )
    return Team(0, 1, None, host, pid)


def gather(team: Team, value: dict[str, Any]) -> list[dict[str, Any]]:
    """The values of all ranks in rank order; also a barrier. It runs before any step that is recorded."""
    if team.backend is None:
        return [value]
    if find_spec("numpy") is None:
        return _gathered_without_numpy(team, value)
    values: list[Any] = [None] * team.world_size
    torch.distributed.all_gather_object(values, value)
    return values


def _gathered_without_numpy(team: Team, value: dict[str, Any]) -> list[dict[str, Any]]:
    """The same where torch is alone: its all_gather_object reads the bytes that come back through numpy."""
    from torch.distributed import distributed_c10d

    device = distributed_c10d._get_object_coll_device()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    mine = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8).to(device)
    sizes = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(team.world_size)]
    torch.distributed.all_gather(sizes, torch.tensor([len(mine)], device=device))
    longest = max(int(size) for size in sizes)
    padded = torch.nn.functional.pad(mine, (0, longest - len(mine)))
    all_bytes = [torch.empty_like(padded) for _ in range(team.world_size)]
    torch.distributed.all_gather(all_bytes, padded)
    return [pickle.loads(bytes(one[: int(size)].tolist())) for one, size in zip(all_bytes, sizes, strict=True)]  # noqa: S301
