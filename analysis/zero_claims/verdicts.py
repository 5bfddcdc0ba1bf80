"""Numbers in, verdict out: what recorded and planned numbers make of each claim about volume.

Every verdict begins with "holds", "holds when", "does not hold" or, where the numbers cannot tell, "is not answered".
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from tracekit.analyzers.ledger import EMULATED, LOOPS
from tracekit.plan import shares

if TYPE_CHECKING:
    from collections.abc import Sequence

HOLDS, WHEN, NOT, OPEN = "holds", "holds when", "does not hold", "is not answered"

#: Terms of a few elements that a step sends whatever the size of the model: flags and norms.
CHECKS = frozenset({shares.OVERFLOW, shares.NORM, LOOPS})


class Walk(NamedTuple):
    """One step's way from theory to trace, in elements times passes; `unexplained` is None where it is not known."""

    name: str
    psi: int
    theory: int
    terms: dict[str, int]
    measured: int
    unexplained: int | None


class Sent(NamedTuple):
    """Elements times passes of the gradients of a step, with one micro-batch and with `micro_batches`."""

    once: int
    more: int
    micro_batches: int


class Padded(NamedTuple):
    """A model on some ranks: elements of padding, and whether every dim 0 divides by the ranks."""

    name: str
    numel: int
    divides: bool


class Placed(NamedTuple):
    """A weight on a (dp, tp) mesh and what a rank holds of it."""

    name: str
    shape: tuple[int, ...]
    mesh: tuple[int, int]
    local: tuple[int, ...]


def volume(walks: Sequence[Walk], multiple: int) -> str:
    """Verdict whether steps move `multiple` Ψ, but for flags and norms of single elements."""
    unknown = [f"`{walk.name}`" for walk in walks if walk.unexplained != 0]
    if unknown or not walks:
        return f"{OPEN}: not every byte of {', '.join(unknown) or 'a run'} is explained"
    holding = [walk for walk in walks if _bulk(walk) == multiple * walk.psi]
    others = [_told(walk) for walk in walks if walk not in holding]
    return _sorted([f"`{walk.name}`" for walk in holding], others)


def accumulation(zero1: Sent, zero2: Sent, waiting: Sent) -> str:
    """Verdict whether accumulation multiplies ZeRO-2's gradients and not ZeRO-1's; `waiting`: ZeRO-2 that may wait."""
    if zero1.more != zero1.once:
        return f"{NOT}: ZeRO-1 sends {zero1.more / zero1.once:g} times as much with {zero1.micro_batches} micro-batches"
    if zero2.more != zero2.once * zero2.micro_batches:
        return f"{NOT}: ZeRO-2 sends {zero2.more / zero2.once:g} times as much with {zero2.micro_batches} micro-batches"
    if waiting.more == waiting.once:
        return (
            f"{WHEN} gradients are reduced in every micro-batch; an FSDP2 that waits for the last one sends them once"
        )
    return HOLDS


def padding(cases: Sequence[Padded]) -> str:
    """Verdict whether sharding adds no padding."""
    without = [f"`{case.name}`" for case in cases if case.numel == 0]
    if without and len(without) < len(cases) and all((case.numel == 0) == case.divides for case in cases):
        return f"{WHEN} every dim 0 divides by the ranks; otherwise gathers and reductions carry the padding"
    return _sorted(without, [f"`{case.name}` pads {case.numel:,} elements" for case in cases if case.numel])


def placement(cases: Sequence[Placed]) -> str:
    """Verdict whether a weight lies in equal parts of its rows over dp and of its columns over tp."""
    fitting = [case for case in cases if case.local == _expected(case)]
    others = [case for case in cases if case not in fitting]
    # The tp axis splits dim 1 where a rank holds fewer columns than there are.
    by_columns = all((case in fitting) == (case.local[1] < case.shape[1]) for case in cases)
    if fitting and others and by_columns:
        return f"{WHEN} tensor parallelism splits dim 1; what it splits along dim 0 is split there on both axes"
    return _sorted(
        [f"`{case.name}`" for case in fitting], [f"`{case.name}` lies as {list(case.local)}" for case in others]
    )


def breaks(fsdp1: int, fsdp2: int) -> str:
    """Verdict whether compiling breaks FSDP1's graph and leaves FSDP2's whole."""
    if fsdp1 > 0 and fsdp2 == 0:
        return HOLDS
    return f"{NOT}: FSDP1 has {_breaks(fsdp1)}, FSDP2 {_breaks(fsdp2)}"


def nodes(fully_shard: int, redistributed: int) -> str:
    """Verdict whether collectives are nodes of the compiled graph: of `fully_shard`, and of redistributed DTensors."""
    if fully_shard > 0:
        return HOLDS
    if redistributed > 0:
        return f"{WHEN} parameters are DTensors redistributed inside the graph; `fully_shard` communicates outside it"
    return f"{NOT}: neither has a collective in its graphs"


def _bulk(walk: Walk) -> int:
    return walk.measured - sum(numel for term, numel in walk.terms.items() if term in CHECKS)


def _told(walk: Walk) -> str:
    """Volume that a run moved in place of what was claimed, and the terms that made it so, largest first."""
    terms = {term: numel for term, numel in walk.terms.items() if numel and term not in {*CHECKS, EMULATED}}
    why = ", ".join(sorted(terms, key=lambda term: -abs(terms[term])))
    return f"`{walk.name}` moves {walk.measured / walk.psi:.2f}Ψ{f' ({why})' if why else ''}"


def _expected(case: Placed) -> tuple[int, ...]:
    (rows, columns), (dp, tp) = case.shape, case.mesh
    return (-(-rows // dp), -(-columns // tp))


def _sorted(holding: list[str], others: list[str]) -> str:
    """The verdict of cases that hold and of sentences on those that do not."""
    if not holding and not others:
        return f"{OPEN}: nothing was recorded"
    if not others:
        return HOLDS
    return f"{WHEN} run as {', '.join(holding)}; {', '.join(others)}" if holding else f"{NOT}: {', '.join(others)}"


def _breaks(number: int) -> str:
    return f"{number} graph break{'' if number == 1 else 's'}"


def inverse(held: dict[int, int]) -> str:
    """Whether bytes times N stay the same, within 1 %: padding and counters are allowed for."""
    least, most = (pick(size * n for n, size in held.items()) for pick in (min, max))
    return "holds" if most <= 1.01 * least else f"does not hold: N times the bytes goes from {least:,} to {most:,}"


def constant(found: dict[int, int]) -> str:
    """Whether a number stays the same over N, within 1 %."""
    least, most = min(found.values()), max(found.values())
    return "holds" if most <= 1.01 * least else f"does not hold: they go from {least:,} to {most:,} bytes"


def smaller(after: int, before: int) -> str:
    """Whether a number fell, and to what share."""
    return f"holds: {after / before:.0%} are left" if after < before else "does not hold: they do not fall"


def larger(one: int, other: int) -> str:
    """Whether the first is larger."""
    how = f"{one:,} bytes against {other:,}"
    return f"holds: {how}" if one > other else f"does not hold here: {how}"


def growth(found: dict[int, int]) -> str:
    """How a number grows with its key, by the last doubling: in proportion, squared, or between."""
    *_, (before, few), (after, many) = sorted(found.items())
    power = math.log(many / few) / math.log(after / before)
    if power > 1.9:
        return "holds"
    shape = "in proportion" if 0.9 <= power <= 1.1 else f"as the length to the power of {power:.2f}"
    return f"does not hold with a fused attention kernel: they grow {shape}"


def left(kept: dict[str, tuple[int, int]], gone: dict[str, tuple[int, int]]) -> str:
    """Whether some numbers stay, within 1 %, while of the others less than a fiftieth is left."""
    odd = [name for name, (few, many) in kept.items() if abs(many - few) > 0.01 * few]
    odd += [name for name, (few, many) in gone.items() if many > 0.02 * few]
    return "holds" if not odd else f"does not hold: {', '.join(odd)} do otherwise"
