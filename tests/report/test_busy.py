"""What is said first of a run without communication; and of a first step that holds more than the others."""

from __future__ import annotations

import pytest
from fakes import common_fixture, run_of, step, work

from tracekit.report.busy import NO_COMMUNICATION, busy, is_without_communication, longest
from tracekit.report.caveats import caveats
from tracekit.report.drawing.device_rows import kernel_rows
from tracekit.report.sentences import sentences

US = 1_000


def kernel(start, end, *, issued, name="gemm", **more):
    row = work("compute", "stream 7", start, end, launched_ns=issued * US, linked_by="correlation", **more)
    return row | {"name": name}


def run_with(*kernels, end=1000):
    return run_of(steps=[step(5, 0, end)], work=list(kernels))


def test_busy_and_idle_come_first_with_the_cause():
    run = run_with(kernel(0, 100, issued=0), kernel(300, 400, issued=290))
    first = (
        "Devices were busy 50 % of a step of 400.0 µs; 100 % of the idle time passed because the CPU issued the next "
        "work after the device had run dry."
    )
    assert sentences(run)[:3] == [
        first,
        "The work that took longest, as a share of all of it: gemm (100 %).",
        NO_COMMUNICATION,
    ]


def test_a_device_that_was_never_idle_waited_for_nothing():
    assert busy(run_with(kernel(0, 400, issued=0))) == "Devices were busy 100 % of a step of 400.0 µs."


def test_several_devices_stand_apart():
    rows = [
        kernel(0, 100, issued=0),
        kernel(0, 50, issued=0, device="cuda:1"),
        kernel(90, 100, issued=80, device="cuda:1"),
    ]
    assert busy(run_with(*rows)) == (
        "Devices were busy 100 % of a step of 100.0 µs on cuda:0, 60 % of a step of 100.0 µs on cuda:1."
    )


def test_three_names_are_told_with_their_shares():
    names = ["void at::native::a<at::Half>(int)", "b", "c", "d"]
    rows = [kernel(100 * n, 100 * n + 40 - 10 * n, issued=0, name=name) for n, name in enumerate(names)]
    assert longest(run_with(*rows)) == (
        "The work that took longest, as a share of all of it: a<Half>(int) (40 %), b (30 %), c (20 %)."
    )


def test_many_small_ones_are_not_told():
    rows = [kernel(10 * n, 10 * n + 5, issued=0, name=f"k{n}") for n in range(40)]
    assert longest(run_with(*rows)) is None


def test_with_communication_the_volume_comes_first():
    run = common_fixture()
    assert not is_without_communication(run)
    assert NO_COMMUNICATION not in sentences(run)


def steps_of(*lengths):
    """A run whose steps last so many µs, each busy throughout."""
    steps, kernels, now = [], [], 0
    for number, length in enumerate(lengths):
        steps.append(step(number, now, now + length))
        kernels.append(kernel(now, now + length, issued=now, step=number))
        now += length
    return run_of(steps=steps, work=kernels)


@pytest.mark.parametrize(
    ("lengths", "told"),
    [
        ((400, 100, 100, 100), "Step 0, the first, took 400.0 µs on rank 0, 4.0 times the median of the others"),
        ((160, 100, 90, 100), "Step 0, the first, took 160.0 µs on rank 0, 1.6 times the median of the others"),
        ((140, 100, 100, 100), None),
        ((100, 400, 100, 100), None),
        ((400, 100), None),
        ((400,), None),
    ],
)
def test_a_first_step_that_holds_more_is_told(lengths, told):
    found = [text for text in caveats(steps_of(*lengths)) if "the first, took" in text]
    assert [text.startswith(str(told)) for text in found] == ([] if told is None else [True])


_ALIKE = "a_kernel_whose_name_is_long_and_goes_on_"


@pytest.mark.parametrize(
    ("names", "bars"),
    [
        ({"b": 30, f"{_ALIKE}1": 20, f"{_ALIKE}2": 20}, [0.04, 0.03]),
        ({"b": 50, f"{_ALIKE}1": 20, f"{_ALIKE}2": 20}, [0.05, 0.04]),
        ({"b": 30, "c": 20, "d": 20}, [0.03, 0.02, 0.02]),
        ({f"{_ALIKE}1": 20, f"{_ALIKE}2": 20}, [0.04]),
    ],
)
def test_bars_of_work_stand_by_length_also_where_names_are_shown_alike(names, bars):
    rows = [kernel(100 * n, 100 * n + lasts, issued=0, name=name) for n, (name, lasts) in enumerate(names.items())]
    drawn = kernel_rows(run_with(*rows)).rows
    assert drawn["ms"].to_list() == pytest.approx(bars)
    assert drawn["order"].to_list() == list(range(len(bars)))
