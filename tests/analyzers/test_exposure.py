"""One step on one GPU for each cause of exposed communication: compute on stream 7, communication on stream 20."""

from __future__ import annotations

import polars as pl
import pytest
from fakes import collective, run_of, step, work

from tracekit.analyzers.exposure import ADVICE, exposure, ideal
from tracekit.analyzers.overlap import overlap

US = 1_000
STEP = step(5, 0, 1000)


def compute(start, end, *, layer="a", phase="forward", **more):
    return work("compute", "stream 7", start, end, layer=layer, phase=phase, **more)


def comm(kind, start, end, *, issued=None, layer="b", phase="forward", **more):
    issued = start if issued is None else issued
    return collective(kind, "stream 20", start, end, numel=8, layer=layer, phase=phase, issued_ns=issued * US, **more)


CAUSES = {
    "first use": ([compute(100, 200)], [comm("all_gather", 0, 100)]),
    "end of step": ([compute(0, 100)], [comm("reduce_scatter", 150, 200)]),
    "serialised": (
        [compute(0, 300), compute(400, 500)],
        [comm("reduce_scatter", 100, 310), comm("reduce_scatter", 310, 400, issued=200)],
    ),
    "no prefetch": ([compute(0, 100), compute(200, 300, layer="b")], [comm("all_gather", 105, 200, issued=50)]),
    "launched late": ([compute(0, 100), compute(200, 300, layer="c")], [comm("reduce_scatter", 150, 200, issued=145)]),
    "bandwidth": ([compute(0, 100), compute(300, 400, layer="b")], [comm("all_gather", 50, 300)]),
}


@pytest.mark.parametrize("cause", CAUSES)
def test_each_cause_has_a_step_that_shows_it(cause):
    kernels, calls = CAUSES[cause]
    table = exposure(run_of(steps=[STEP], work=kernels, collectives=calls))
    largest = table.sort("exposed_ns", descending=True).row(0, named=True)
    assert (largest["cause"], largest["advice"]) == (cause, ADVICE[cause])


@pytest.mark.parametrize("cause", CAUSES)
def test_causes_add_up_to_the_exposed_time(cause):
    kernels, calls = CAUSES[cause]
    run = run_of(steps=[STEP], work=kernels, collectives=calls)
    assert exposure(run)["exposed_ns"].sum() == overlap(run, by=["rank", "step"])["exposed_ns"].sum()


def test_waiting_for_a_late_rank_comes_first():
    call = comm("all_reduce", 150, 400) | {"wait_ns": 200 * US, "transfer_ns": 50 * US, "num_matched": 2}
    table = exposure(run_of(steps=[STEP], work=[compute(0, 100), compute(500, 600)], collectives=[call]))
    assert dict(table.select("cause", "exposed_ns").iter_rows())["late rank"] == 200 * US
    assert table["exposed_ns"].sum() == 250 * US


def test_on_a_cpu_the_computing_thread_waited():
    kernels = [compute(0, 100), compute(200, 300, layer="c")]
    place = {"device": "cpu", "lane": "thread 1"}
    calls = [comm("reduce_scatter", 100, 200, layer="a", phase="backward") | place]
    table = exposure(run_of(steps=[STEP], work=[row | place for row in kernels], collectives=calls))
    assert table["cause"].to_list() == ["synchronous"]


def test_collectives_of_two_steps_at_once_count_in_both():
    steps = [step(5, 0, 100), step(6, 100, 300)]
    calls = [comm("reduce_scatter", 90, 150), comm("all_gather", 120, 180, step=6) | {"lane": "stream 21"}]
    run = run_of(steps=steps, work=[compute(0, 80), compute(200, 300, step=6)], collectives=calls)
    expected = overlap(run, by=["rank", "step"]).select("step", "exposed_ns").sort("step").rows()
    found = exposure(run).group_by("step").agg(pl.col("exposed_ns").sum()).sort("step").rows()
    assert found == expected == [(5, 60 * US), (6, 60 * US)]


def test_the_bound_hides_what_the_free_compute_can_hide():
    # Compute 0..100 and 290..300, exposed 100..250: 110 of the 150 exposed fit under compute.
    run = run_of(
        steps=[STEP], work=[compute(0, 100), compute(290, 300)], collectives=[comm("reduce_scatter", 100, 250)]
    )
    row = ideal(run).row(0, named=True)
    assert (row["step_ns"], row["exposed_ns"]) == (300 * US, 150 * US)
    assert (row["hideable_ns"], row["ideal_ns"]) == (110 * US, 190 * US)
