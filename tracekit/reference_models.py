"""Named sizes of the decoder, and its number of parameters in closed form. No torch here."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tracekit.errors import UsageError
from tracekit.text import suggestion


@dataclass(frozen=True)
class Size:
    """The shape of a Llama-like decoder; `hidden` is the width inside the SwiGLU feed-forward."""

    dim: int
    layers: int
    heads: int
    kv_heads: int
    hidden: int
    vocab: int
    max_seq_len: int = 2048
    tied: bool = False

    def num_params(self) -> int:
        """Ψ, tied embeddings counted once."""
        attention = 2 * self.dim * self.dim + 2 * self.dim * self.dim * self.kv_heads // self.heads
        block = attention + 3 * self.dim * self.hidden + 2 * self.dim
        return self.layers * block + (1 if self.tied else 2) * self.vocab * self.dim + self.dim


SIZES = {
    # A block of nano: 4 * 16*16 + 3 * 16*32 + 2*16 = 2592; Ψ = 2 * 2592 + 2 * 64*16 + 16 = 7248.
    "nano": Size(dim=16, layers=2, heads=2, kv_heads=2, hidden=32, vocab=64, max_seq_len=256),
    # No dimension is a multiple of 4, and an odd number of tokens. A block: 2 * 42*42 + 2 * 14*42 + 3 * 42*51 + 2*42 =
    # 11,214; Ψ = 2 * 11,214 + 2 * 1001*42 + 42 = 106,554.
    "odd": Size(dim=42, layers=2, heads=3, kv_heads=1, hidden=51, vocab=1001, max_seq_len=256),
    "tiny": Size(dim=256, layers=4, heads=4, kv_heads=4, hidden=768, vocab=2048),
    "small": Size(dim=512, layers=8, heads=8, kv_heads=8, hidden=1536, vocab=8192),
    # As Llama-3.2 1B, Llama-2 7B and Llama-2 70B; then the public models by their own names.
    "1b": Size(dim=2048, layers=16, heads=32, kv_heads=8, hidden=8192, vocab=128256, tied=True),
    "7b": Size(dim=4096, layers=32, heads=32, kv_heads=32, hidden=11008, vocab=32000, max_seq_len=4096),
    "70b": Size(dim=8192, layers=80, heads=64, kv_heads=8, hidden=28672, vocab=32000, max_seq_len=4096),
    "llama2-7b": Size(dim=4096, layers=32, heads=32, kv_heads=32, hidden=11008, vocab=32000, max_seq_len=4096),
    "llama2-13b": Size(dim=5120, layers=40, heads=40, kv_heads=40, hidden=13824, vocab=32000, max_seq_len=4096),
    "llama2-70b": Size(dim=8192, layers=80, heads=64, kv_heads=8, hidden=28672, vocab=32000, max_seq_len=4096),
    "llama3-8b": Size(dim=4096, layers=32, heads=32, kv_heads=8, hidden=14336, vocab=128256, max_seq_len=8192),
    "llama3-70b": Size(dim=8192, layers=80, heads=64, kv_heads=8, hidden=28672, vocab=128256, max_seq_len=8192),
    "llama3-405b": Size(dim=16384, layers=126, heads=128, kv_heads=8, hidden=53248, vocab=128256, max_seq_len=8192),
}


def find_size(name: str) -> Size:
    """The size of that name, as `--model` has it. Raises UsageError where there is none, with the names there are."""
    if name not in SIZES:
        raise UsageError(f"--model {name} is unknown: {suggestion(name, SIZES)}")
    return SIZES[name]


def size_of(name: str, *, layers: int | None = None, tied: bool | None = None) -> Size:
    """A named size, with another number of blocks or the embeddings tied or not where asked for. Raises KeyError."""
    size = SIZES[name]
    return replace(size, layers=size.layers if layers is None else layers, tied=size.tied if tied is None else tied)


def parameter_shapes(size: Size) -> list[tuple[str, list[int]]]:
    """Names and full shapes in the order in which `runners.models.Decoder` registers them, a tied output included."""
    keys = size.kv_heads * (size.dim // size.heads)
    block = [
        ("attention_norm.weight", [size.dim]),
        ("attention.wq.weight", [size.dim, size.dim]),
        ("attention.wk.weight", [keys, size.dim]),
        ("attention.wv.weight", [keys, size.dim]),
        ("attention.wo.weight", [size.dim, size.dim]),
        ("ffn_norm.weight", [size.dim]),
        ("feed_forward.w1.weight", [size.hidden, size.dim]),
        ("feed_forward.w2.weight", [size.dim, size.hidden]),
        ("feed_forward.w3.weight", [size.hidden, size.dim]),
    ]
    blocks = [(f"layers.{index}.{name}", shape) for index in range(size.layers) for name, shape in block]
    ends = [("norm.weight", [size.dim]), ("output.weight", [size.vocab, size.dim])]
    return [("tok_embeddings.weight", [size.vocab, size.dim]), *blocks, *ends]


def gradient_order(size: Size) -> list[str]:
    """Names of the parameters in the order in which backward has their gradients ready, tied ones once.

    The reverse of their use in forward, which is that of registration but for SwiGLU's w2, used after w3. A tied weight
    is ready after its first use, the embedding, in backward its last.
    """
    used = [name for name, _ in parameter_shapes(size) if not (size.tied and name == "output.weight")]
    swapped = {".w2.weight": ".w3.weight", ".w3.weight": ".w2.weight"}
    return [
        name[: -len(end)] + swapped.get(end, end) for name in reversed(used) for end in [name[-len(".w2.weight") :]]
    ]
