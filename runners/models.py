"""A decoder like Llama: RMSNorm, rotary attention through SDPA, SwiGLU, tied or untied embeddings."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tracekit.reference_models import Size

ROPE_BASE = 10_000.0
INIT_STD = 0.02


def rope_table(head_dim: int, max_seq_len: int, device: torch.device | None = None) -> Tensor:
    """Cosine and sine of every position's rotation angles: (2, max_seq_len, head_dim)."""
    inverse = ROPE_BASE ** (-torch.arange(0, head_dim, 2, device=device, dtype=torch.float32) / head_dim)
    angles = torch.outer(torch.arange(max_seq_len, device=device, dtype=torch.float32), inverse).repeat(1, 2)
    return torch.stack((angles.cos(), angles.sin()))


def rotate(x: Tensor, rope: Tensor) -> Tensor:
    """Rotary position embedding of (batch, heads, seq, head_dim), in x's dtype."""
    cos, sin = rope[:, : x.shape[-2]].to(x.dtype)
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-right, left), dim=-1) * sin


class Attention(nn.Module):
    """Causal self-attention with grouped key and value heads."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = size.heads, size.kv_heads, size.dim // size.heads
        self.wq = nn.Linear(size.dim, size.dim, bias=False)
        self.wk = nn.Linear(size.dim, size.kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(size.dim, size.kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(size.dim, size.dim, bias=False)

    def forward(self, x: Tensor, rope: Tensor) -> Tensor:
        """(batch, seq, dim) to the same shape."""
        q, k, v = (
            project(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for project in (self.wq, self.wk, self.wv)
        )
        grouped = self.kv_heads != self.heads
        out = functional.scaled_dot_product_attention(
            rotate(q, rope), rotate(k, rope), v, is_causal=True, enable_gqa=grouped
        )
        return self.wo(out.transpose(1, 2).flatten(-2))


class FeedForward(nn.Module):
    """SwiGLU: w2(silu(w1 x) * w3 x)."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.w1 = nn.Linear(size.dim, size.hidden, bias=False)
        self.w2 = nn.Linear(size.hidden, size.dim, bias=False)
        self.w3 = nn.Linear(size.dim, size.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, seq, dim) to the same shape."""
        return self.w2(functional.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    """Attention and feed-forward, each after its norm and around a residual."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(size.dim, eps=1e-5)
        self.attention = Attention(size)
        self.ffn_norm = nn.RMSNorm(size.dim, eps=1e-5)
        self.feed_forward = FeedForward(size)

    def forward(self, x: Tensor, rope: Tensor) -> Tensor:
        """(batch, seq, dim) to the same shape."""
        x = x + self.attention(self.attention_norm(x), rope)
        return x + self.feed_forward(self.ffn_norm(x))


class Decoder(nn.Module):
    """Tokens (batch, seq) to logits (batch, seq, vocab)."""

    rope: Tensor

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.size = size
        self.tok_embeddings = nn.Embedding(size.vocab, size.dim)
        self.layers = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.norm = nn.RMSNorm(size.dim, eps=1e-5)
        self.output = nn.Linear(size.dim, size.vocab, bias=False)
        if size.tied:
            self.output.weight = self.tok_embeddings.weight
        self.register_buffer("rope", rope_table(size.dim // size.heads, size.max_seq_len), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, seq) token ids to (batch, seq, vocab) logits."""
        x = self.tok_embeddings(tokens)
        for layer in self.layers:
            x = layer(x, self.rope)
        return self.output(self.norm(x))


@torch.no_grad()
def initialize(model: Decoder, seed: int) -> None:
    """Fills parameters and buffers in place, the same for a seed on every rank.

    Works on local shards too, so that a model made on the meta device never exists whole anywhere: each shard of a
    tensor is filled by a number of its own, the replicas of a shard alike.
    """
    device = next(model.parameters()).device
    generator = torch.Generator(device=device)
    for index, parameter in enumerate(model.parameters()):
        to_local = getattr(parameter, "to_local", None)
        local = to_local() if to_local else parameter
        generator.manual_seed((seed * 10_007 + index) * 100_003 + _shard_number(parameter))
        if parameter.dim() == 1:
            local.fill_(1.0)
        else:
            local.normal_(0.0, INIT_STD, generator=generator)
    model.rope.copy_(rope_table(model.size.dim // model.size.heads, model.size.max_seq_len, device))


def _shard_number(parameter: Any) -> int:
    """The place of this rank's shard among the shards of a DTensor; 0 for a whole tensor and for replicas of one."""
    number = 0
    if hasattr(parameter, "device_mesh"):
        mesh = parameter.device_mesh
        for place, size, placement in zip(mesh.get_coordinate(), mesh.shape, parameter.placements, strict=True):
            if not placement.is_replicate():
                number = number * size + place
    return number
