"""One file a strategy, loaded when asked for by name, so that DeepSpeed is imported only by its own file."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # The names are wanted without torch, too.
    from runners.strategies.base import Strategy

MODULES = {
    "ddp": "runners.strategies.ddp",
    "zero1": "runners.strategies.zero1",
    "zero1-deepspeed": "runners.strategies.zero1_deepspeed",
    "zero2": "runners.strategies.zero2",
    "zero2-fsdp1": "runners.strategies.zero2_fsdp1",
    "zero2-fsdp2": "runners.strategies.zero2_fsdp2",
    "zero3-deepspeed": "runners.strategies.zero3_deepspeed",
    "fsdp1": "runners.strategies.fsdp1",
    "fsdp2": "runners.strategies.fsdp2",
    "hsdp": "runners.strategies.hsdp",
    "fsdp2-tp": "runners.strategies.fsdp2_tp",
    "fsdp2-graph": "runners.strategies.fsdp2_graph",
}


def load(name: str) -> type[Strategy]:
    """The strategy's class. Raises KeyError for a name outside MODULES, ImportError where its framework is missing."""
    return import_module(MODULES[name]).STRATEGY
