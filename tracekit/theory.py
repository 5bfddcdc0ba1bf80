"""Closed forms of ZeRO: bytes a device holds and elements a step sends, for stages 0 to 3.

Ψ is the number of parameters, N the size of the data-parallel group, k the bytes of optimizer state a parameter (12 for
Adam in mixed precision: an fp32 master copy and two fp32 moments). Parameters and gradients take 2 bytes each.
Source: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", sections 5 and 7.
"""

from __future__ import annotations

from fractions import Fraction

from tracekit.strategies import STRATEGIES

STAGES = (0, 1, 2, 3)

_STAGE_PASSES = {
    0: {"all_reduce": 2},
    1: {"reduce_scatter": 1, "all_gather": 1},
    2: {"reduce_scatter": 1, "all_gather": 1},
    3: {"all_gather": 2, "reduce_scatter": 1},
}


def zero_memory_per_gpu(num_params: int, dp: int, stage: int, k: int = 12, fp32_grad_accum: bool = False) -> float:
    """Bytes of parameters, gradients and optimizer state that one GPU holds.

    Stage 0: 2Ψ + 2Ψ + kΨ; 1: 2Ψ + 2Ψ + kΨ/N; 2: 2Ψ + (2Ψ + kΨ)/N; 3: (2Ψ + 2Ψ + kΨ)/N.
    Accumulating gradients in fp32 adds 4Ψ while gradients are whole (stages 0 and 1), 4Ψ/N once they are sharded.

    Raises:
        ValueError: a size is not positive, or the stage is unknown.
    """
    if num_params <= 0 or dp <= 0:
        raise ValueError("num_params and dp must be positive")
    if stage not in STAGES:
        raise ValueError("stage must be 0..3")
    parameters = 2 * num_params
    gradients = 2 * num_params
    optimizer = k * num_params
    extra = 0.0
    if fp32_grad_accum:
        extra = 4 * num_params if stage <= 1 else 4 * num_params / dp
    if stage == 0:
        return parameters + gradients + optimizer + extra
    if stage == 1:
        return parameters + gradients + optimizer / dp + extra
    if stage == 2:
        return parameters + (gradients + optimizer) / dp + extra
    return (parameters + gradients + optimizer) / dp + extra


def zero_communication_volume(num_params: int, stage: int) -> int:
    """Elements that one GPU communicates in a step: 2Ψ for stages 0 to 2, 3Ψ for stage 3.

    Stage 0 all-reduces the gradients, which crosses twice. Stages 1 and 2 reduce-scatter gradients and all-gather
    parameters. Stage 3 all-gathers parameters in forward and again in backward, and reduce-scatters gradients.

    Raises:
        ValueError: the stage is unknown.
    """
    return stage_passes(stage) * num_params


def make_table() -> None:
    """Prints what 7 billion parameters take on 1, 8 and 64 GPUs, in GB, and ZeRO-3's volume in 10⁹ elements."""
    num_params = 7_000_000_000
    print(f"{'dp':>4} {'Z1 GB':>8} {'Z2 GB':>8} {'Z3 GB':>8} {'comm 2Ψ/3Ψ (G)':>16}")
    volume = zero_communication_volume(num_params, 3) / 1e9
    for dp in (1, 8, 64):
        z1, z2, z3 = (zero_memory_per_gpu(num_params, dp, stage) / 1e9 for stage in (1, 2, 3))
        print(f"{dp:>4} {z1:>8.1f} {z2:>8.1f} {z3:>8.1f} {volume:>16.1f}")


def passes_by_kind(stage: int) -> dict[str, int]:
    """Number of times that Ψ elements cross in a step, by kind: `{"all_gather": 2, "reduce_scatter": 1}` for stage 3.

    Raises:
        ValueError: the stage is unknown.
    """
    if stage not in STAGES:
        raise ValueError("stage must be 0..3")
    return dict(_STAGE_PASSES[stage])


def stage_passes(stage: int) -> int:
    """The multiple of Ψ that a step sends: 2, 2, 2, 3 for stages 0 to 3."""
    return sum(passes_by_kind(stage).values())


def ring_share(dp: int) -> Fraction:
    """(N-1)/N: the part of a payload that one rank of a ring of N sends in one pass; 0 for a single rank.

    Raises:
        ValueError: the size is not positive.
    """
    if dp <= 0:
        raise ValueError("dp must be positive")
    return Fraction(dp - 1, dp)


def wire_elements(num_params: int, dp: int, stage: int) -> Fraction:
    """Elements that one rank puts on the wire in a step, exactly: passes × Ψ × (N-1)/N."""
    return zero_communication_volume(num_params, stage) * ring_share(dp)


def strategy_stage(strategy: str) -> int | None:
    """The stage that a strategy's name claims; None for a name that claims none.

    What it really sends is the business of its plan (tracekit.plan).
    """
    known = STRATEGIES.get(strategy)
    return known.stage if known is not None else None
