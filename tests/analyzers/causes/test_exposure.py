"""One step on one GPU for each cause of exposed communication: compute on stream 7, communication on stream 20."""

from __future__ import annotations

import polars as pl
import pytest
from fakes import SMALL, collective, manifest_of, run_of, step, work

from tracekit.analyzers.causes.advice import ADVICE
from tracekit.analyzers.causes.exposure import exposure, ideal
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
    "link": ([compute(0, 100), compute(300, 400, layer="b")], [comm("all_gather", 50, 300)]),
}


@pytest.mark.parametrize("cause", CAUSES)
def test_each_cause_has_a_step_that_shows_it(cause):
    kernels, calls = CAUSES[cause]
    table = exposure(run_of(steps=[STEP], work=kernels, collectives=calls))
    largest = table.sort("exposed_ns", descending=True).row(0, named=True)
    assert (largest["cause"], largest["advice"]) == (cause, ADVICE[cause].text)


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


def slowed(factor):
    """A step of FSDP2 without prefetch whose transfers take `factor` times as long: two gathers, two reductions."""
    place = {"device": "cpu", "lane": "thread 1"}
    kernels, calls, now = [], [], 0
    parts = [("all_gather", "forward", "a"), ("all_gather", "forward", "b"), ("reduce_scatter", "backward", "b")]
    for kind, phase, layer in [*parts, ("reduce_scatter", "backward", "a")]:
        taken = 10 * factor
        calls.append(comm(kind, now, now + taken, layer=layer, phase=phase) | place)
        now += taken
        kernels.append(compute(now, now + 20, layer=layer, phase=phase) | place)
        now += 20
    return run_of(steps=[step(5, 0, now)], work=kernels, collectives=calls)


def by_cause(run):
    return dict(exposure(run, by=["cause"]).select("cause", "exposed_ns").iter_rows())


@pytest.mark.parametrize("factor", [4, 8, 16])
def test_the_cause_that_grows_with_a_slower_link_is_the_link(factor):
    fast, slow = by_cause(slowed(1)), by_cause(slowed(factor))
    grown = {cause: slow[cause] - fast.get(cause, 0) for cause in slow}
    assert "link" not in fast
    assert max(grown, key=lambda cause: grown[cause]) == "link"
    # 80 µs of compute could hide so much; no order of the step hides more.
    assert slow["link"] == (40 * factor - 80) * US
    assert sum(slow.values()) == 40 * factor * US


def test_what_the_compute_of_a_step_could_hide_keeps_its_cause():
    assert by_cause(slowed(2)) == {"first use": 20 * US, "no prefetch": 20 * US, "synchronous": 40 * US}


def test_shares_of_the_link_add_up_in_whole_ns():
    place = {"device": "cpu", "lane": "thread 1"}
    calls = [comm("all_reduce", 10 + 7 * n, 10 + 7 * n + 7, phase="backward") | place for n in range(7)]
    kernels = [compute(0, 10) | place, compute(70, 71, phase="backward") | place]
    found = by_cause(run_of(steps=[STEP], work=kernels, collectives=calls))
    assert found == {"link": 38 * US, "synchronous": 11 * US}


def test_a_device_that_computes_nothing_has_nothing_to_compare():
    assert by_cause(run_of(steps=[STEP], work=[], collectives=[comm("all_gather", 0, 100)])) == {"first use": 100 * US}


def test_the_advice_of_a_group_is_that_of_its_longest_part():
    manifest = manifest_of("fsdp2", SMALL, options={"forward_prefetch": 0, "backward_prefetch": 0})
    place = {"device": "cpu", "lane": "thread 1"}
    kernels = [compute(0, 100, layer="x"), compute(200, 300, layer="b"), compute(310, 400, layer="b")]
    calls = [comm("all_gather", 100, 200), comm("all_gather", 300, 310, phase="backward")]
    run = run_of(
        manifest, steps=[STEP], work=[row | place for row in kernels], collectives=[row | place for row in calls]
    )
    (row,) = exposure(run, by=["cause"]).rows(named=True)
    assert row["cause"] == "no prefetch"
    assert "set_modules_to_forward_prefetch" in row["advice"]
    assert "set_modules_to_backward_prefetch" not in row["advice"]
