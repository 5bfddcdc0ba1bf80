"""Common claims about memory, answered from planned steps: each is run in one process, as `tracekit plan` does."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from zero_claims import verdicts as verdict
from zero_claims.answers import Claim

if TYPE_CHECKING:
    from collections.abc import Iterator

MODEL = "tiny"
GROUPS = (2, 8, 64)
# Beside it more parameters are in embeddings than in blocks, and attention is by torch's fused kernel of the CPU.
LENGTHS = (64, 128, 256)


def memory_claims() -> Iterator[Claim]:
    """Every claim about memory, answered."""
    yield _states()
    yield _activations()
    yield _checkpointing()
    yield _lengths()
    yield _buckets()
    yield _what_is_left()


@cache
def peak(strategy: str, ranks: int, seq_len: int = 128, checkpointing: str = "none") -> dict[str, int]:
    """Live bytes at the planned peak by category, with the total."""
    from tracekit.plan.build import of_model, precision_of
    from tracekit.plan.footprint import planned
    from tracekit.reference_models import SIZES
    from tracekit.strategies import find

    options = {"batch_size": 4, "seq_len": seq_len, "activation_checkpointing": checkpointing}
    mesh, precision = {find(strategy).axes[0]: ranks}, precision_of(strategy, None, None)
    made = of_model(strategy, SIZES[MODEL], mesh=mesh, precision=precision, micro_batches=1, options=options)
    return dict(planned(made, MODEL).select("category", "live_bytes").iter_rows())


def line(strategy: str, ranks: int, category: str, nbytes: int, how: str = "") -> str:
    """A number of the evidence."""
    return f"planned, `{strategy}`, {MODEL} on {ranks}{how}: {category} {nbytes:,} bytes"


def _states() -> Claim:
    from tracekit.reference_models import SIZES

    psi, told = SIZES[MODEL].num_params(), "parameters and optimizer state"
    held = {n: sum(peak("fsdp2", n).get(name, 0) for name in ("parameters", "optimizer state")) for n in GROUPS}
    # fp32 parameters and two moments; gradients come and go.
    evidence = [f"{line('fsdp2', n, told, held[n])} = {held[n] * n / psi:.2f}Ψ/N" for n in GROUPS]
    return Claim("Static memory of stage 3 falls as 1/N", verdict.inverse(held), evidence)


def _activations() -> Claim:
    found = {n: peak("fsdp2", n)["activations"] for n in GROUPS}
    evidence = [line("fsdp2", n, "activations", found[n]) for n in GROUPS]
    return Claim("Activations do not shrink with N", verdict.constant(found), evidence)


def _checkpointing() -> Claim:
    # What is computed again in backward comes and goes there: it is among the temporaries.
    peaks = {mode: peak("fsdp2", 2, checkpointing=mode) for mode in ("none", "full")}
    found = {mode: top["activations"] + top["temporaries"] for mode, top in peaks.items()}
    told = "activations and temporaries"
    evidence = [line("fsdp2", 2, told, size, f", checkpointing {mode}") for mode, size in found.items()]
    return Claim("They shrink with checkpointing", verdict.smaller(found["full"], found["none"]), evidence)


def _lengths() -> Claim:
    found = {length: peak("fsdp2", 2, seq_len=length)["activations"] for length in LENGTHS}
    evidence = [line("fsdp2", 2, "activations", size, f", sequences of {length}") for length, size in found.items()]
    return Claim("They grow with the length of sequences, squared", verdict.growth(found), evidence)


def _buckets() -> Claim:
    found = {name: peak(name, 2)["total"] for name in ("zero1-deepspeed", "zero2")}
    evidence = [line(name, 2, "at the peak", size) for name, size in found.items()]
    says = "ZeRO-2 can hold more than ZeRO-1 on small models, through its buckets"
    return Claim(says, verdict.larger(found["zero2"], found["zero1-deepspeed"]), evidence)


def _what_is_left() -> Claim:
    few, many = peak("fsdp2", GROUPS[0]), peak("fsdp2", 512)
    names = [name for name in ("activations", "gathered parameters", "buffers", "temporaries") if name in few]
    kept, gone = (
        {name: (few[name], many.get(name, 0)) for name in group} for group in (names, ("parameters", "optimizer state"))
    )
    evidence = [line("fsdp2", 512, name, size) for name, (_, size) in {**kept, **gone}.items()]
    says = "As N grows, activations, the unit that is gathered and buffers are what is left"
    return Claim(says, verdict.left(kept, gone), evidence)
