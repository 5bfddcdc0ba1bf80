"""Which rank this is, and what all ranks tell each other before the recording starts."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from typing import Any

import torch

from tracekit.record.errors import RecordError


@dataclass(frozen=True)
class Team:
    """This process among the ranks of the run; `backend` is null without torch.distributed."""

    rank: int
    world_size: int
    backend: str | None
    host: str
    pid: int


def join() -> Team:
    """Raises RecordError in one of several processes that torch.distributed does not connect yet."""
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
    values: list[Any] = [None] * team.world_size
    torch.distributed.all_gather_object(values, value)
    return values
