"""Random models, wrappers and loops for the fuzzer of truth: number n of a seed is always the same one."""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass

STRATEGIES = ("ddp", "zero1", "fsdp1", "zero2-fsdp1", "fsdp2", "zero2-fsdp2", "hsdp")
LOOPS = ("plain", "plain", "plain", "metrics", "clip", "evaluate")


@dataclass(frozen=True)
class Config:
    """One configuration; `frozen` are numbers of blocks, −1 the embedding; `halves`: which units compute in bf16."""

    number: int
    strategy: str
    ranks: int
    width: int
    blocks: int
    vocab: int
    tied: bool
    bias: bool
    buffers: bool
    scalar: bool
    lost: bool
    frozen: tuple[int, ...]
    halves: str
    reshard: bool | None
    bucket_kb: float | None
    hook: str | None
    micro_batches: int
    every: bool
    loop: str

    @property
    def text(self) -> str:
        """What it is, on one line."""
        return ", ".join(f"{name}={value}" for name, value in asdict(self).items())


def config(seed: int, number: int) -> Config:
    """Configuration `number` of a seed."""
    rng = random.Random(f"{seed}/{number}")
    strategy = rng.choice(STRATEGIES)
    blocks = rng.randint(1, 4)
    ddp = strategy in ("ddp", "zero1")
    kinds = [(), (), tuple(range(rng.randint(1, blocks))), (-1,), (-1, *range(blocks - 1)), (rng.randrange(blocks),)]
    frozen = rng.choice(kinds)
    # FSDP1 with flat parameters wants one requires_grad a unit; a block is frozen whole.
    return Config(
        number=number,
        strategy=strategy,
        ranks=4 if strategy == "hsdp" else rng.choice((1, 2, 2, 3)),
        width=rng.choice((4, 6, 8, 9, 17)),
        blocks=blocks,
        vocab=rng.choice((10, 16, 33)),
        tied=rng.random() < 0.3 and -1 not in frozen,
        bias=rng.random() < 0.6,
        buffers=rng.random() < 0.3,
        scalar=ddp and rng.random() < 0.2,
        lost=rng.random() < 0.2 and strategy in ("ddp", "fsdp2", "zero2-fsdp2"),
        frozen=frozen,
        halves=rng.choice(("none", "all", "blocks")) if not ddp else "none",
        reshard=rng.choice((None, True, False)) if strategy in ("fsdp2", "hsdp") else None,
        bucket_kb=rng.choice((None, 0.5, 2.0)) if ddp else None,
        hook=rng.choice((None, None, "fp16")) if strategy == "ddp" else None,
        micro_batches=rng.choice((1, 1, 2, 3)),
        every=rng.random() < 0.5,
        loop=rng.choice(LOOPS),
    )
