from __future__ import annotations

from fakes import collective, common_fixture, run_of, work
from hypothesis import given
from hypothesis import strategies as st

from tracekit.analyzers.hidden_by import HIDDEN_BY_SCHEMA, hidden_by
from tracekit.analyzers.overlap import overlap

US = 1_000


def test_the_common_fixture_is_hidden_by_its_gemm():
    row = hidden_by(common_fixture()).row(0, named=True)
    assert (row["kind"], row["overlapped_ns"], row["hidden_ns"]) == ("all_gather", 50 * US, 50 * US)
    assert row["hidden_by"] == common_fixture().work.row(0, named=True)["name"]


def test_each_name_layer_and_phase_has_its_share_and_the_first_to_run_has_the_crossing():
    run = run_of(
        work=[
            work("compute", "stream 7", 0, 40, layer="a", name="gemm"),
            work("compute", "stream 9", 30, 60, layer="b", name="gemm"),
            work("compute", "stream 7", 70, 75, layer="a", name="gemm"),
        ],
        collectives=[collective("all_gather", "stream 20", 10, 80)],
    )
    table = hidden_by(run).select("hidden_by", "hidden_by_layer", "hidden_ns", "overlapped_ns")
    assert table.rows() == [("gemm", "a", 35 * US, 55 * US), ("gemm", "b", 20 * US, 55 * US)]


def test_a_kernel_on_the_lane_of_the_collective_hides_nothing():
    run = run_of(
        work=[
            work("compute", "stream 20", 100, 200, name="own lane"),
            work("compute", "stream 7", 120, 320, name="other lane"),
        ],
        collectives=[collective("all_gather", "stream 20", 150, 250)],
    )
    assert hidden_by(run).select("hidden_by", "hidden_ns").rows() == [("other lane", 100 * US)]


def test_communication_that_nothing_hid_keeps_its_row():
    run = run_of(work=[work("compute", "stream 7", 0, 5)], collectives=[collective("all_gather", "stream 20", 10, 80)])
    assert hidden_by(run).select("hidden_by", "hidden_ns", "overlapped_ns").rows() == [(None, 0, 0)]


def test_without_communication_there_is_nothing():
    table = hidden_by(run_of(work=[work("compute", "stream 7", 0, 5)]))
    assert (table.height, table.schema) == (0, HIDDEN_BY_SCHEMA)


spans = st.tuples(st.integers(0, 40), st.integers(0, 15), st.sampled_from(["7", "9", "20"]))


@given(st.lists(spans, max_size=8), st.lists(spans, min_size=1, max_size=4))
def test_shares_add_up_to_the_overlap_of_every_piece(kernels, calls):
    computing = [work("compute", f"stream {lane}", s, s + d, name=f"k{s}") for s, d, lane in kernels]
    # One group each, so that the overlap table does not merge them.
    sent = [collective("all_gather", f"stream {lane}", s, s + d, group=str(n)) for n, (s, d, lane) in enumerate(calls)]
    run = run_of(work=computing, collectives=sent)
    pieces = hidden_by(run)
    assert pieces["hidden_ns"].sum() == overlap(run, by=["group"])["overlapped_ns"].sum()
