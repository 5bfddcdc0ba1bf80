"""The interface between the training loop and a strategy."""

from __future__ import annotations

import argparse
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from runners.models import Decoder

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Setup:
    """What the loop decides for every strategy; `args` are all options, those of the strategy's own included."""

    args: argparse.Namespace
    device: torch.device
    rank: int
    world_size: int


class Strategy(ABC):
    """Shards a model, makes its optimizer, runs steps, and tells the manifest what it did.

    The order of calls: `wrap`, `make_optimizer`, `describe`, then `step` again and again. All communication of a step
    is the strategy's.
    """

    # Whether `wrap` takes a model on the meta device and fills it after sharding; if not, every rank makes it whole.
    from_meta = False
    # What --param-dtype and --reduce-dtype are unless given; null leaves it to the framework.
    param_dtype: str | None = "bfloat16"
    reduce_dtype: str | None = "float32"

    def __init__(self, setup: Setup) -> None:
        self.setup = setup

    @staticmethod  # noqa: B027 - most strategies have no option to add
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """Adds the options that only this strategy has."""

    @abstractmethod
    def wrap(self, model: Decoder) -> torch.nn.Module:
        """Shards or replicates the model; returns the module that the recorder describes."""

    @abstractmethod
    def make_optimizer(self, learning_rate: float) -> Any:
        """AdamW over what `wrap` left; returns what holds its state."""

    @abstractmethod
    def step(self, micro_batches: Sequence[Tensor]) -> Tensor:
        """One optimizer step over micro-batches of tokens (batch, seq + 1); returns this rank's mean loss, detached."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Arguments for the Recorder: `options` of the strategy's own, and what the recorder cannot find by itself."""


def next_token_loss(logits: Tensor, tokens: Tensor) -> Tensor:
    """Mean cross-entropy in float32 of logits (batch, seq, vocab) for tokens (batch, seq + 1)."""
    return functional.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())
