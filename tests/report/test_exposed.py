"""The sentence on exposed communication names what an experienced engineer would name first."""

from __future__ import annotations

import pytest
from fakes import collective, run_of, step, work

from tracekit.report.exposed import exposed
from tracekit.report.sentences import sentences

US = 1_000


def call(rank, start, end, *, seq, wait=None, kind="all_reduce", layer="layers.0", phase="forward", **more):
    """A collective of all ranks; those that came early wait."""
    matched = {} if wait is None else {"wait_ns": wait * US, "transfer_ns": (end - start - wait) * US}
    numbered = {"rank": rank, "group": "tp", "seq": seq, "match": seq, "matched_by": "seq", "num_matched": 8}
    place = {"layer": layer, "phase": phase, **more}
    return collective(kind, "stream 20", start, end, numel=8, issued_ns=start * US, **numbered, **place, **matched)


def tensor_parallel(late=(2, 5), *, ranks=8, transfer=10):
    """A step of 400 µs with 4 all-reduces over `tp`; the late ranks compute 90 µs before each, the others 40."""
    steps, kernels, calls = [], [], []
    for rank in range(ranks):
        steps.append(step(5, 0, 4 * (90 + transfer), rank=rank))
        for n in range(4):
            start = n * (90 + transfer)
            busy = 90 if rank in late else 40
            kernels.append(
                work("compute", "stream 7", start, start + busy, rank=rank, phase="forward", layer="layers.0")
            )
            wait = 90 - busy
            calls.append(call(rank, start + busy, start + 90 + transfer, seq=n, wait=wait, axis="tp"))
    known = [{"rank": rank, "host": "one", "num_events": 100} for rank in range(ranks)]
    return run_of(steps=steps, work=kernels, collectives=calls, ranks=known)


def test_two_late_ranks_of_eight_are_named():
    # 6 ranks wait 4 x 50 µs and all transfer 4 x 10: 150 + 40 a rank.
    assert exposed(tensor_parallel()) == (
        "Exposed communication took 190.0 µs of a step of 400.0 µs (48 %); "
        "150.0 µs of it waits for ranks 2 and 5, which come later than the others."
    )


def test_waiting_for_late_ranks_is_said_first_where_it_is_much_of_a_step():
    assert sentences(tensor_parallel())[0].startswith(
        "Exposed communication took 190.0 µs of a step of 400.0 µs (48 %); "
    )
    assert not sentences(tensor_parallel((2,), transfer=300))[0].startswith("Exposed communication")
    assert not sentences(deep(80))[0].startswith("Exposed communication")


def test_one_late_rank_is_named():
    assert "175.0 µs of it waits for rank 3, which comes later than the others." in str(exposed(tensor_parallel((3,))))


def test_many_late_ranks_are_not_listed():
    text = str(exposed(tensor_parallel((0, 1, 2, 3))))
    assert "waits for ranks that come later." in text


def test_where_the_transfer_is_most_nobody_is_late():
    text = str(exposed(tensor_parallel((2,), transfer=300)))
    assert "waits" not in text


def deep(num_layers, *, heavy=None):
    """A step with a gather of each layer, none hidden; that of `heavy` lasts ten times as long."""
    kernels, calls, now = [], [], 0
    for n in range(num_layers):
        lasts = 100 if n == heavy else 10
        calls.append(
            collective("all_gather", "stream 20", now, now + lasts, numel=8, layer=f"layers.{n}", phase="forward")
        )
        kernels.append(work("compute", "stream 7", now + lasts, now + lasts + 20, layer=f"layers.{n}", phase="forward"))
        now += lasts + 20
    return run_of(steps=[step(5, 0, now)], work=kernels, collectives=calls)


def test_of_eighty_layers_the_cause_is_named_and_not_one_of_them():
    text = str(exposed(deep(80)))
    assert text.startswith("Exposed communication took 800.0 µs of a step of 2.4 ms (33 %); ")
    assert "layers." not in text
    assert text.endswith("of it was issued when the device had run dry.")


@pytest.mark.parametrize(("num_layers", "named"), [(2, True), (8, True), (80, False)])
def test_a_heavy_layer_is_named_where_it_has_more_than_the_cause(num_layers, named):
    text = str(exposed(deep(num_layers, heavy=0)))
    assert ("the largest part, 100.0 µs, is all_gather of layers.0 in forward" in text) is named


def test_without_communication_there_is_no_sentence():
    assert exposed(run_of(steps=[step(5, 0, 100)], work=[work("compute", "stream 7", 0, 100)])) is None
