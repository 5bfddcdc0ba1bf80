"""Synthetic tokens that can be learned: a few fixed batches a rank, seen again and again."""

from __future__ import annotations

import torch
from torch import Tensor

NUM_BATCHES = 2


def batches(seed: int, rank: int, shape: tuple[int, int], vocab: int) -> list[Tensor]:
    """NUM_BATCHES batches of random token ids, (batch, seq + 1) each, the same for a seed and rank."""
    generator = torch.Generator().manual_seed(seed * 100_003 + rank)
    size = (shape[0], shape[1] + 1)
    return [torch.randint(0, vocab, size, generator=generator) for _ in range(NUM_BATCHES)]
