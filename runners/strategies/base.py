"""The interface between the training loop and a strategy."""

from __future__ import annotations

import argparse
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.nn import functional
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from runners.models import Decoder
from runners.options import EVERYWHERE
from tracekit.record import RecordError, phase
from tracekit.reference_models import Size
from tracekit.strategies import find

# The fused kernels of scaled_dot_product_attention, on GPUs and on the CPU.
ATTENTION = ("aten::_scaled_dot_product_efficient_attention", "aten::_scaled_dot_product_flash_attention")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Setup:
    """Settings of the loop for every strategy; `args` are all options, those of the strategy's own included."""

    args: argparse.Namespace
    device: torch.device
    rank: int
    world_size: int

    def defaults(self, size: Size) -> dict[str, Any]:
        """The options that follow from the size of the model, as the registry of strategies has them."""
        return find(self.args.strategy).defaults(size)


class Strategy(ABC):
    """Shards a model, makes its optimizer, runs steps, and tells the manifest what it did.

    The order of calls: `wrap`, `make_optimizer`, `describe`, then `step` again and again, `learned` at the end. All
    communication of a step is the strategy's.
    """

    # Names in runners.options.OPTIONS, and why others cannot be had where that takes a word.
    takes: ClassVar[frozenset[str]] = EVERYWHERE
    refuses: ClassVar[Mapping[str, str]] = {}
    # Whether `wrap` takes a model on the meta device and fills it after sharding; if not, every rank makes it whole.
    from_meta: ClassVar[bool] = False

    model: torch.nn.Module
    optimizer: Any

    def __init__(self, setup: Setup) -> None:
        self.setup = setup

    @abstractmethod
    def wrap(self, model: Decoder) -> torch.nn.Module:
        """Shards or replicates the model; returns the module that the recorder describes, kept as `model`."""

    def make_optimizer(self, learning_rate: float) -> Any:
        """AdamW over what `wrap` left; returns what holds its state."""
        self.optimizer = torch.optim.AdamW(trainable(self.model), lr=learning_rate, fused=True)
        return self.optimizer

    def step(self, micro_batches: Sequence[Tensor]) -> Tensor:
        """One optimizer step over micro-batches of tokens (batch, seq + 1); returns this rank's mean loss, detached."""
        losses: list[Tensor] = []
        for index, tokens in enumerate(micro_batches):
            last = index == len(micro_batches) - 1
            with self.accumulation(last=last):
                loss = next_token_loss(self.forward(tokens[:, :-1]), tokens) / len(micro_batches)
                with phase("backward"):
                    loss.backward()
            losses.append(loss.detach())
        with phase("optimizer"):
            if self.setup.args.clip_grad_norm is not None:
                self.clip(self.setup.args.clip_grad_norm)
            self.optimizer.step()
        self.optimizer.zero_grad()
        return torch.stack(losses).sum()

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of (batch, seq) token ids."""
        return self.model(tokens)

    def accumulation(self, *, last: bool) -> AbstractContextManager[Any]:
        """The context of a micro-batch: where gradients are reduced once a step, nothing is before the last one."""
        del last
        return nullcontext()

    def clip(self, max_norm: float) -> None:
        """Scales the gradients down to a norm of `max_norm` over the whole model."""
        torch.nn.utils.clip_grad_norm_(trainable(self.model), max_norm)

    def describe(self) -> dict[str, Any]:
        """Arguments for the Recorder: `options` beside the command line's, and what it cannot find by itself."""
        return {}

    def learned(self) -> dict[str, Any]:
        """Entries of the manifest that are known only after the first steps."""
        return {}


def trainable(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    """The parameters that get gradients."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def freeze(model: Decoder, patterns: Sequence[str]) -> None:
    """Switches off the gradients of parameters whose names a pattern finds. Raises RecordError for one without use."""
    for pattern in patterns:
        try:
            found = [p for name, p in model.named_parameters() if re.search(pattern, name)]
        except re.error as error:
            raise RecordError(f"--freeze {pattern} is no regular expression ({error}); write another one") from error
        if not found:
            raise RecordError(f"--freeze {pattern} finds no parameter; names look like layers.0.attention.wq.weight")
        for parameter in found:
            parameter.requires_grad_(False)
    if not trainable(model):
        raise RecordError("--freeze leaves no parameter to train; freeze fewer")


def checkpoint_blocks(model: Decoder, mode: str) -> None:
    """Puts every block into a wrapper that drops activations and computes them again in backward: `full` or some.

    `selective-op` keeps what torchtitan does (December 2024, `torchtitan/parallelisms/parallelize_llama.py`,
    `_save_list` and `_apply_ac_to_transformer_block`): the outputs of attention and of the first, third, ... matrix
    product of a block.
    """
    if mode == "none":
        return
    more: dict[str, Any] = {"context_fn": _selective} if mode == "selective-op" else {}
    for index, block in enumerate(model.layers):
        model.layers[index] = checkpoint_wrapper(block, preserve_rng_state=False, **more)


def _selective() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    """The contexts of one block's forward and of its recomputation; each counts matrix products for itself."""
    products = {True: 0, False: 0}

    def policy(context: Any, operator: Any, *_: Any, **__: Any) -> CheckpointPolicy:
        name = operator.name()
        if name == "aten::mm":
            products[context.is_recompute] += 1
            keep = products[context.is_recompute] % 2 == 1
        else:
            keep = name.startswith(ATTENTION)
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def next_token_loss(logits: Tensor, tokens: Tensor) -> Tensor:
    """Mean cross-entropy in float32 of logits (batch, seq, vocab) for tokens (batch, seq + 1)."""
    return functional.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())
