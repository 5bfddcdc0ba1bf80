"""The worked figures of the closed forms, to the byte."""

from __future__ import annotations

from fractions import Fraction

import pytest

from tracekit import theory

GIGA = 1_000_000_000

# 7 billion parameters, as the reference program prints them.
TABLE = (
    "  dp    Z1 GB    Z2 GB    Z3 GB   comm 2Ψ/3Ψ (G)\n"
    "   1    112.0    112.0    112.0             21.0\n"
    "   8     38.5     26.2     14.0             21.0\n"
    "  64     29.3     15.5      1.8             21.0\n"
)


def test_the_table_is_the_reference_byte_for_byte(capsys):
    theory.make_table()
    assert capsys.readouterr().out.encode() == TABLE.encode()


@pytest.mark.parametrize("num_params", [1, 1_000_000, 7 * GIGA])
def test_one_gpu_holds_the_same_at_every_stage(num_params):
    held = {theory.zero_memory_per_gpu(num_params, 1, stage) for stage in theory.STAGES}
    assert held == {16 * num_params}


@pytest.mark.parametrize(
    ("dp", "stage", "gigabytes"),
    [(8, 0, 112.0), (8, 1, 38.5), (8, 2, 26.25), (8, 3, 14.0), (64, 1, 29.3125), (64, 2, 15.53125), (64, 3, 1.75)],
)
def test_seven_billion_parameters(dp, stage, gigabytes):
    assert theory.zero_memory_per_gpu(7 * GIGA, dp, stage) == gigabytes * GIGA


def test_seventy_billion_parameters_on_64_gpus():
    assert theory.zero_memory_per_gpu(70 * GIGA, 64, 3) == 17.5 * GIGA


def test_multiples_of_psi_at_64():
    assert theory.zero_memory_per_gpu(64, 64, 1) / 64 == 4.1875
    assert theory.zero_memory_per_gpu(64, 64, 2) / 64 == 2.21875


@pytest.mark.parametrize(("stage", "extra"), [(0, 400), (1, 400), (2, 100), (3, 100)])
def test_fp32_accumulation_adds_4_bytes_a_gradient_held(stage, extra):
    plain = theory.zero_memory_per_gpu(100, 4, stage)
    assert theory.zero_memory_per_gpu(100, 4, stage, fp32_grad_accum=True) - plain == extra


def test_optimizer_multiplier():
    assert theory.zero_memory_per_gpu(100, 4, 1, k=8) == 200 + 200 + 200


@pytest.mark.parametrize(("stage", "multiple"), [(0, 2), (1, 2), (2, 2), (3, 3)])
def test_volume_in_multiples_of_psi(stage, multiple):
    assert theory.zero_communication_volume(7 * GIGA, stage) == multiple * 7 * GIGA
    assert theory.stage_passes(stage) == multiple


def test_passes_by_kind_cannot_be_changed_from_outside():
    theory.passes_by_kind(3)["all_gather"] = 9
    assert theory.passes_by_kind(3) == {"all_gather": 2, "reduce_scatter": 1}


@pytest.mark.parametrize(
    ("dp", "stage", "elements"),
    [(1, 3, 0), (8, 3, Fraction(21 * 7 * GIGA, 8)), (8, 0, 12_250_000_000), (64, 2, 13_781_250_000)],
)
def test_wire_elements_are_exact(dp, stage, elements):
    assert theory.wire_elements(7 * GIGA, dp, stage) == elements


def test_wire_elements_keep_a_fraction_that_does_not_divide():
    assert theory.wire_elements(10, 3, 1) == Fraction(40, 3)


@pytest.mark.parametrize(("num_params", "dp"), [(0, 1), (-1, 1), (1, 0), (1, -8)])
def test_sizes_must_be_positive(num_params, dp):
    with pytest.raises(ValueError, match=r"^num_params and dp must be positive$"):
        theory.zero_memory_per_gpu(num_params, dp, 1)


@pytest.mark.parametrize("stage", [-1, 4])
def test_stage_must_be_known(stage):
    with pytest.raises(ValueError, match=r"^stage must be 0\.\.3$"):
        theory.zero_memory_per_gpu(1, 1, stage)
    with pytest.raises(ValueError, match=r"^stage must be 0\.\.3$"):
        theory.zero_communication_volume(1, stage)


def test_ring_share_needs_a_ring():
    with pytest.raises(ValueError, match="positive"):
        theory.ring_share(0)


@pytest.mark.parametrize(
    ("strategy", "stage"),
    [("ddp", 0), ("zero1", 1), ("zero2", 2), ("zero2-fsdp2", 2), ("fsdp2", 3), ("hsdp", 3), ("x", None)],
)
def test_what_a_strategys_name_claims(strategy, stage):
    assert theory.strategy_stage(strategy) == stage
