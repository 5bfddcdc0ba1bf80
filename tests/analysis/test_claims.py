"""Verdicts follow from the numbers: each with one that holds, and with a number changed so that it does not."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes import SMALL, manifest_of
from planned_runs import run_as_planned
from zero_claims import verdicts as verdict
from zero_claims.answers import Claim, walk, written
from zero_claims.page import page
from zero_claims.verdicts import Padded, Placed, Sent, Walk

PAGE = Path(__file__).parents[2] / "docs" / "claims.md"
# Ψ = 100 that moves 2Ψ, and as much again for an all-reduce where a reduce-scatter would do.
TWO = Walk("two", 100, 200, {}, 200, 0)
THREE = Walk("three", 100, 200, {"all-reduce in place of reduce-scatter": 100, "overflow check": 2}, 302, 0)


def test_a_volume_holds_when_every_run_moves_it():
    assert verdict.volume([TWO, TWO], 2) == "holds"
    assert verdict.volume([TWO._replace(measured=201, terms={"padding of dim 0": 1})], 2) == (
        "does not hold: `two` moves 2.01Ψ (padding of dim 0)"
    )


def test_a_volume_that_some_runs_move_holds_when_run_like_them():
    assert verdict.volume([TWO, THREE], 2) == (
        "holds when run as `two`; `three` moves 3.02Ψ (all-reduce in place of reduce-scatter)"
    )
    assert verdict.volume([THREE], 2).startswith("does not hold: `three` moves 3.02Ψ")
    assert verdict.volume([TWO, THREE], 3).startswith("holds when run as `three`; `two` moves 2.00Ψ")


def test_flags_and_norms_do_not_decide_but_what_they_hide_does():
    checked = TWO._replace(terms={"overflow check": 2, "gradient norm": 2}, measured=204)
    assert verdict.volume([checked], 2) == "holds"
    assert verdict.volume([checked._replace(measured=205)], 2).startswith("does not hold")


@pytest.mark.parametrize("left", [1, -1, None])
def test_a_volume_with_an_unexplained_element_is_not_answered(left):
    assert verdict.volume([TWO, TWO._replace(name="odd", unexplained=left)], 2) == (
        "is not answered: not every byte of `odd` is explained"
    )
    assert verdict.volume([], 2).startswith("is not answered")


@pytest.mark.parametrize(
    ("zero1", "zero2", "waiting", "begins"),
    [
        (Sent(200, 200, 2), Sent(200, 400, 2), Sent(100, 200, 2), "holds"),
        (Sent(200, 200, 2), Sent(200, 400, 2), Sent(100, 100, 2), "holds when gradients are reduced in every"),
        (Sent(200, 400, 2), Sent(200, 400, 2), Sent(100, 200, 2), "does not hold: ZeRO-1 sends 2 times as much"),
        (Sent(200, 200, 2), Sent(200, 200, 2), Sent(100, 200, 2), "does not hold: ZeRO-2 sends 1 times as much"),
        (Sent(200, 200, 3), Sent(200, 400, 3), Sent(100, 200, 3), "does not hold: ZeRO-2 sends 2 times as much with 3"),
    ],
)
def test_accumulation_multiplies_one_and_not_the_other(zero1, zero2, waiting, begins):
    found = verdict.accumulation(zero1, zero2, waiting)
    assert found == begins if begins == "holds" else found.startswith(begins)


def test_padding_depends_on_what_divides():
    even, odd = Padded("even", 0, divides=True), Padded("odd", 672, divides=False)
    assert verdict.padding([even]) == "holds"
    assert verdict.padding([even, odd]).startswith("holds when every dim 0 divides by the ranks")
    assert verdict.padding([odd]) == "does not hold: `odd` pads 672 elements"
    # Padding where all divides is no matter of dividing any more.
    assert verdict.padding([even, odd._replace(divides=True)]) == ("holds when run as `even`; `odd` pads 672 elements")


def test_a_weight_lies_in_rows_and_columns_or_does_not():
    rows_and_columns = Placed("wo", (4096, 4096), (2, 4), (2048, 1024))
    rows_twice = Placed("wq", (4096, 4096), (2, 4), (512, 4096))
    assert verdict.placement([rows_and_columns]) == "holds"
    assert verdict.placement([rows_and_columns, rows_twice]).startswith("holds when tensor parallelism splits dim 1")
    assert verdict.placement([rows_twice]) == "does not hold: `wq` lies as [512, 4096]"
    changed = rows_and_columns._replace(name="wv", local=(2048, 1025))
    assert verdict.placement([rows_and_columns, changed]) == ("holds when run as `wo`; `wv` lies as [2048, 1025]")


def test_graph_breaks_and_nodes_are_counted():
    assert verdict.breaks(1, 0) == "holds"
    assert verdict.breaks(1, 1) == "does not hold: FSDP1 has 1 graph break, FSDP2 1 graph break"
    assert verdict.breaks(0, 0) == "does not hold: FSDP1 has 0 graph breaks, FSDP2 0 graph breaks"
    assert verdict.nodes(3, 42) == "holds"
    assert verdict.nodes(0, 42).startswith("holds when parameters are DTensors")
    assert verdict.nodes(0, 0).startswith("does not hold")


def test_a_walk_is_that_of_the_first_step_of_rank_0():
    # Ψ = 24 with 8 in the root, which is not gathered again.
    way = walk(run_as_planned(manifest_of("fsdp2", SMALL)), "fsdp2")
    assert way == Walk("fsdp2", 24, 72, {"root unit not gathered again": -8}, 64, 0)
    assert verdict.volume([way], 3) == "does not hold: `fsdp2` moves 2.67Ψ (root unit not gathered again)"
    resharded = walk(run_as_planned(manifest_of("fsdp2", SMALL, reshard=True)), "fsdp2")
    assert verdict.volume([resharded], 3) == "holds"
    assert written(way) == "`fsdp2`: 2.667Ψ = 3Ψ -0.333Ψ root unit not gathered again; unexplained 0"


def test_small_terms_are_written_in_elements():
    way = Walk("zero2", 1000, 2000, {"overflow check": 2, "gradient norm": 1}, 2003, None)
    assert written(way) == (
        "`zero2`: 2.003Ψ = 2Ψ +2 elements overflow check, +1 element gradient norm; unexplained unknown"
    )


def test_a_page_says_what_was_found_and_ends_with_how_it_was_made():
    text = page([Claim("It moves", "holds when told", ["a number"])], ["a proof"], ["torch 2.13"])
    assert "## It moves\n\n**Holds when told**\n\n- a number\n" in text
    assert "- a proof" in text
    head, _, tail = text.partition("## How this page was made")
    assert head.rstrip().endswith("- a proof")
    assert "`make claims`" in tail
    assert text.endswith("- torch 2.13\n")
    assert "## Proof" not in page([], [])


def test_the_page_in_the_docs_has_an_answer_to_every_claim():
    text = PAGE.read_text("utf-8")
    answers = [line for line in text.splitlines() if line.startswith("**")]
    assert len(answers) == 15
    assert all(line.startswith(("**Holds", "**Does not hold")) for line in answers)
    assert "in 0 of them anything is unexplained" in text


def test_the_page_in_the_docs_begins_and_ends_as_the_generator_writes_it():
    text, made = PAGE.read_text("utf-8"), page([], [])
    opening, how = made.split("## How this page was made")
    assert text.startswith(opening)
    assert how.strip() in text.rpartition("## How this page was made")[2]


@pytest.mark.parametrize(
    ("told", "begins"),
    [
        (verdict.inverse({2: 100, 8: 25, 64: 3}), "does not hold: N times the bytes goes from 192 to 200"),
        (verdict.inverse({2: 1000, 8: 250}), "holds"),
        (verdict.constant({2: 1000, 8: 1009}), "holds"),
        (verdict.constant({2: 1000, 8: 900}), "does not hold: they go from 900 to 1,000"),
        (verdict.smaller(25, 100), "holds: 25% are left"),
        (verdict.smaller(100, 100), "does not hold"),
        (verdict.larger(2, 1), "holds: 2 bytes against 1"),
        (verdict.larger(1, 1), "does not hold here"),
        (
            verdict.growth({64: 1, 128: 2, 256: 4}),
            "does not hold with a fused attention kernel: they grow in proportion",
        ),
        (verdict.growth({64: 1, 128: 4, 256: 16}), "holds"),
        (verdict.growth({64: 10, 128: 20, 256: 56}), "does not hold with a fused attention kernel: they grow as the"),
        (verdict.left({"a": (100, 100)}, {"p": (100, 1)}), "holds"),
        (verdict.left({"a": (100, 50)}, {"p": (100, 50)}), "does not hold: a, p do otherwise"),
    ],
)
def test_verdicts_on_memory(told, begins):
    assert told.startswith(begins)
