"""A model whose parameters can be counted by hand."""

from __future__ import annotations

import torch
from torch import nn


class Toy(nn.Module):
    """Ψ = embed 10*4 + two layers of 4*4 + 4 = 80; the head is tied to embed; a frozen bias of 4 makes Ψ_train 76."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
        self.head = nn.Linear(4, 10, bias=False)
        self.head.weight = self.embed.weight
        self.layers[0].bias.requires_grad_(False)
        self.register_buffer("scale", torch.ones(3))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.arange(6).reshape(2, 3)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
