"""Evidence for the claims: runs that the runners record once, and torch's own code run for N ranks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tracekit.model.run import Run

AGREES = "torch's own code issues the same"

# Name of the folder: strategy, options, ranks.
RUNS: dict[str, tuple[str, tuple[str, ...], int]] = {
    "ddp": ("ddp", (), 2),
    "ddp--no-broadcast-buffers": ("ddp", ("--no-broadcast-buffers",), 2),
    "ddp--compile-model": ("ddp", ("--compile", "model"), 2),
    "zero1": ("zero1", (), 2),
    "zero1-deepspeed": ("zero1-deepspeed", (), 2),
    "zero1-deepspeed--micro-batches-2": ("zero1-deepspeed", ("--micro-batches", "2"), 2),
    "zero2": ("zero2", (), 2),
    "zero2--reduce-to-owner": ("zero2", ("--grad-path", "reduce-to-owner"), 2),
    "zero2--micro-batches-2": ("zero2", ("--micro-batches", "2"), 2),
    "zero2-fsdp1": ("zero2-fsdp1", (), 2),
    "zero2-fsdp2": ("zero2-fsdp2", (), 2),
    "zero2-fsdp2--no-sync": ("zero2-fsdp2", ("--micro-batches", "2", "--no-sync-every-micro-batch"), 2),
    "fsdp1": ("fsdp1", (), 2),
    "fsdp1--compile-model": ("fsdp1", ("--compile", "model"), 2),
    "fsdp2": ("fsdp2", (), 2),
    "fsdp2--reshard-true": ("fsdp2", ("--reshard-after-forward", "true"), 2),
    "fsdp2--odd": ("fsdp2", ("--model", "odd"), 2),
    "fsdp2--compile-model": ("fsdp2", ("--compile", "model"), 2),
    "fsdp2-graph": ("fsdp2-graph", (), 2),
    "fsdp2-tp": ("fsdp2-tp", (), 4),
    "zero3-deepspeed": ("zero3-deepspeed", (), 2),
}
PROOFS = [
    *(("fsdp2", "7b", f"dp_shard={ranks}", ()) for ranks in (2, 8, 64, 512)),
    ("fsdp2", "7b", "dp_shard=64", ("--reshard-after-forward", "true")),
    ("fsdp2", "7b", "dp_shard=64", ("--reshard-after-forward", "8")),
    ("zero2-fsdp2", "7b", "dp_shard=64", ()),
    ("hsdp", "7b", "dp_replicate=8,dp_shard=64", ()),
    ("fsdp2-tp", "7b", "dp_shard=64,tp=8", ()),
    ("fsdp2", "odd", "dp_shard=8", ()),
    ("hsdp", "odd", "dp_replicate=2,dp_shard=4", ()),
]


def opener(folder: Path, known: dict[str, Run]) -> Callable[[str], Run]:
    """Opens runs of the folder by name, once each, into `known`; records what is not there."""
    import tracekit
    from tracekit import training as launch

    def opened(name: str) -> Run:
        if name not in known:
            strategy, args, ranks = RUNS[name]
            if not (folder / name / "manifest.json").is_file():
                print(f"recording {name}", file=sys.stderr)
                options = ["--model", "nano", "--seq-len", "16", "--active", "2", *args]
                launch.run(strategy, folder / name, num_ranks=ranks, args=options, on_line=lambda _: None)
            known[name] = tracekit.open(folder / name)
        return known[name]

    return opened


def proofs() -> Iterator[str]:
    """A line for each of PROOFS, with what its command said last."""
    for strategy, model, mesh, args in PROOFS:
        command = [sys.executable, "-m", "tracekit", "plan", "--strategy", strategy, "--model", model, "--mesh", mesh]
        done = subprocess.run(
            [*command, "--prove", "--seq-len", "16", *args], capture_output=True, text=True, check=False
        )
        said = next((line for line in reversed(done.stderr.splitlines()) if line.strip()), "nothing was said")
        print(f"{strategy} {model} {mesh}: {said}", file=sys.stderr)
        yield f"`{strategy} {' '.join((model, mesh, *args))}`: {said}"
