"""Strategies to train with, a file each, loaded by name, so that DeepSpeed is imported only by its own files."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from tracekit.errors import UsageError
from tracekit.strategies import find

if TYPE_CHECKING:
    # The names are wanted without torch, too.
    from runners.strategies.base import Strategy


def load(name: str) -> type[Strategy]:
    """The class of the strategy.

    Raises:
        UsageError: there is no such strategy, or no training program for it.
        ImportError: its framework is missing.
    """
    runner = find(name).runner
    if runner is None:
        raise UsageError(f"--strategy {name} can be planned, but there is no training program for it")
    return import_module(runner).STRATEGY
