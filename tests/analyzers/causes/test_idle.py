"""Idle time by what the device waited for, in gaps that can be counted by hand; and the work that took longest."""

from __future__ import annotations

import polars as pl
import pytest
from fakes import collective, run_of, step, work
from hypothesis import given
from hypothesis import strategies as st

from tracekit.analyzers.breakdown import breakdown
from tracekit.analyzers.causes.idle import idle, kernels

US = 1_000


def kernel(start, end, *, issued=None, name="gemm", **more):
    launched = None if issued is None else issued * US
    return work("compute", "stream 7", start, end, launched_ns=launched, linked_by="correlation", **more) | {
        "name": name
    }


# Work of a step from 0 to 1000 µs and beyond, and the idle µs of each cause.
GAPS = {
    "the CPU was late": ([kernel(0, 100, issued=0), kernel(300, 400, issued=290)], {"launched late": 200}),
    "issued as the device ran dry": ([kernel(0, 100, issued=0), kernel(300, 400, issued=100)], {"launched late": 200}),
    "issued in time": ([kernel(0, 100, issued=0), kernel(300, 400, issued=50)], {"waiting on the device": 200}),
    "a short gap": ([kernel(0, 100, issued=0), kernel(120, 400, issued=50)], {"launch latency": 20}),
    "a gap just longer": ([kernel(0, 100, issued=0), kernel(121, 400, issued=50)], {"waiting on the device": 21}),
    "an unknown launch": ([kernel(0, 100, issued=0), kernel(300, 400)], {"launch not recorded": 200}),
    "no gap": ([kernel(0, 100, issued=0), kernel(100, 400, issued=50)], {}),
    "work beside work": ([kernel(0, 300, issued=0), kernel(100, 200, issued=5), kernel(310, 400, issued=9)],
                         {"launch latency": 10}),
    "three gaps": ([kernel(0, 10, issued=0), kernel(20, 30, issued=15), kernel(35, 40, issued=5),
                    kernel(90, 95, issued=5)], {"launched late": 10, "launch latency": 5, "waiting on the device": 50}),
}  # fmt: skip


@pytest.mark.parametrize("name", GAPS)
def test_a_gap_has_the_cause_of_the_work_that_ends_it(name):
    rows, expected = GAPS[name]
    table = idle(run_of(steps=[step(5, 0, 1000)], work=rows), by=["cause"])
    assert {cause: ns / US for cause, ns in table.select("cause", "idle_ns").iter_rows()} == expected


def test_communication_and_copies_are_not_idle():
    rows = [kernel(0, 100, issued=0), work("copy", "stream 9", 100, 150, launched_ns=0), kernel(400, 500, issued=0)]
    calls = [collective("all_gather", "stream 20", 200, 300)]
    table = idle(run_of(steps=[step(5, 0, 1000)], work=rows, collectives=calls))
    assert table["idle_ns"].sum() == 150 * US


def test_on_a_cpu_no_operator_ran():
    place = {"device": "cpu", "lane": "thread 1"}
    rows = [kernel(100, 200) | place, kernel(300, 400) | place]
    table = idle(run_of(steps=[step(5, 0, 500)], work=rows), by=["cause"])
    found = {cause: ns / US for cause, ns in table.select("cause", "idle_ns").iter_rows()}
    assert found == {"between operators": 200, "nothing followed": 100}


def test_a_gap_across_two_steps_is_in_each():
    place = {"device": "cpu", "lane": "thread 1"}
    rows = [kernel(0, 80) | place, kernel(150, 200, step=6) | place]
    table = idle(run_of(steps=[step(5, 0, 100), step(6, 100, 200)], work=rows), by=["step"])
    assert table.select("step", "idle_ns", "num_gaps").rows() == [(5, 20 * US, 1), (6, 50 * US, 1)]


@given(
    st.lists(
        st.tuples(st.integers(0, 900), st.integers(1, 200), st.integers(-50, 50), st.sampled_from([5, 6])), max_size=12
    )
)
def test_idle_time_adds_up_to_that_of_the_breakdown(parts):
    rows = [kernel(at, at + dur, issued=at + offset, step=number) for at, dur, offset, number in parts]
    run = run_of(steps=[step(5, 0, 500), step(6, 500, 1000)], work=rows)
    expected = breakdown(run).filter(pl.col("idle_ns") > 0).select("step", "idle_ns").sort("step").rows()
    assert idle(run, by=["step"]).select("step", "idle_ns").sort("step").rows() == expected


def test_nothing_is_idle_without_work_or_steps():
    assert idle(run_of()).is_empty()
    assert kernels(run_of()).is_empty()


def test_the_work_that_took_longest():
    rows = [kernel(0, 10, name="a"), kernel(10, 40, name="b"), kernel(40, 60, name="a"), kernel(60, 65, name="c")]
    table = kernels(run_of(steps=[step(5, 0, 100)], work=rows))
    assert table.select("name", "num", "sum_ns", "median_ns", "longest_ns").rows() == [
        ("a", 2, 30 * US, 15 * US, 20 * US),
        ("b", 1, 30 * US, 30 * US, 30 * US),
        ("c", 1, 5 * US, 5 * US, 5 * US),
    ]
    assert table["share"].sum() == pytest.approx(1.0)


def test_work_of_cut_steps_is_left_out_where_others_are_whole():
    steps = [step(5, 0, 100), step(6, 100, 200) | {"complete": False}]
    rows = [kernel(0, 10, name="a"), kernel(110, 190, name="b", step=6)]
    assert kernels(run_of(steps=steps, work=rows))["name"].to_list() == ["a"]
    cut = [one | {"complete": False} for one in steps]
    assert kernels(run_of(steps=cut, work=rows))["name"].to_list() == ["b", "a"]


# Windows of two ranks as (rank, step, from, to, complete), and the names of work that count.
SHARED = {
    "an extra first step": ([(0, 0, 0, 100, True), (0, 1, 100, 200, True), (1, 1, 100, 200, True)], ["0.1", "1.1"]),
    "an extra last step": ([(0, 1, 0, 100, True), (1, 1, 0, 100, True), (1, 2, 100, 200, True)], ["0.1", "1.1"]),
    "cut on one rank": (
        [(0, 1, 0, 100, True), (0, 2, 100, 200, True), (1, 1, 0, 100, False), (1, 2, 100, 200, True)],
        ["0.2", "1.2"],
    ),
    "whole on both": ([(0, 1, 0, 100, True), (1, 1, 0, 100, True)], ["0.1", "1.1"]),
    "none whole": ([(0, 1, 0, 100, False), (1, 1, 0, 100, False)], ["0.1", "1.1"]),
}


@pytest.mark.parametrize("case", SHARED)
def test_the_work_is_that_of_steps_that_all_ranks_have_in_full(case):
    windows, names = SHARED[case]
    steps = [step(number, a, b, rank=rank) | {"complete": whole} for rank, number, a, b, whole in windows]
    rows = [kernel(a, b, name=f"{rank}.{number}", rank=rank, step=number) for rank, number, a, b, _ in windows]
    assert kernels(run_of(steps=steps, work=rows))["name"].to_list() == names
