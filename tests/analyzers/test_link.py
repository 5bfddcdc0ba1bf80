"""Transfer times by size, and the fit beside them, of collectives written down by hand."""

from __future__ import annotations

import polars as pl
import pytest
from fakes import collective, run_of

from tracekit.analyzers.timing.link import LINK_SCHEMA, fits, link

KIB = 2**10


def call(match, start, transfer, *, kib=1, kind="all_gather", waits=(0, 0), lane="stream 20", **more):
    """One collective on both of its ranks: `transfer` µs from `start`, where a rank waits that many µs before it."""
    rows = []
    for rank, wait in enumerate(waits):
        row = collective(kind, lane, start - wait, start + transfer, numel=kib * KIB // 4, rank=rank, match=match)
        rows.append(
            row | {"axis": "dp_shard", "num_matched": 2, "num_needed": 2, "transfer_ns": transfer * 1000} | more
        )
    return rows


def table_of(*calls):
    return link(run_of(collectives=[row for rows in calls for row in rows]))


def test_a_row_a_size_with_the_median_and_the_fit_beside_it():
    table = table_of(
        call(1, 0, 1000, kib=1000),
        call(2, 2000, 1200, kib=1000, waits=(500, 0)),
        call(3, 4000, 1100, kib=1000),
        call(4, 6000, 2100, kib=2000),
    )
    assert table.select("kind", "axis", "group_size", "bytes", "num_calls", "num_shared", "transfer_ns").rows() == [
        ("all_gather", "dp_shard", 2, 1000 * KIB, 3, 0, 1_100_000),
        ("all_gather", "dp_shard", 2, 2000 * KIB, 1, 0, 2_100_000),
    ]
    assert table["fitted_ns"].to_list() == [1_100_000, 2_100_000]
    assert table["alpha_ns"].to_list() == pytest.approx([100_000] * 2)
    assert table["beta"].to_list() == pytest.approx([1_000_000 / (1000 * KIB)] * 2)
    assert table["fitted_on"].unique().to_list() == ["4 calls, 1,000.00 KiB to 1.95 MiB"]
    assert table["coverage"].to_list() == [1.0, 1.0]


def test_bandwidth_is_that_of_nccl_tests():
    # 8 KiB in 1 µs over a group of 2: an all-reduce crosses 2 × 1/2 times, a gather 1/2.
    table = table_of(call(1, 0, 1, kib=8), call(2, 10, 1, kib=8, kind="all_reduce"))
    rates = table.select("kind", "algbw", "busbw").rows()
    assert rates == [("all_gather", 8192 * 10**9 // 1000, 4096 * 10**6), ("all_reduce", 8192 * 10**6, 8192 * 10**6)]


def test_what_the_backend_ran_is_what_is_fitted():
    run = run_of(
        collectives=[
            *call(1, 0, 100, kib=8, kind="reduce_scatter", backend_kind="all_reduce"),
            *call(2, 200, 200, kib=16, kind="all_reduce"),
        ]
    )
    assert link(run).select("kind", "bytes").rows() == [("all_reduce", 8 * KIB), ("all_reduce", 16 * KIB)]
    assert list(fits(run)) == [("all_reduce", "dp_shard")]
    assert fits(run)["all_reduce", "dp_shard"].num_calls == 2


def test_calls_that_share_the_link_do_not_enter_the_fit_where_others_ran_alone():
    table = table_of(call(1, 0, 100, kib=100), call(2, 200, 400, kib=200), call(3, 300, 400, kib=300, lane="stream 21"))
    assert table.select("bytes", "num_shared").rows() == [(100 * KIB, 0), (200 * KIB, 1), (300 * KIB, 1)]
    assert table["fitted_on"].unique().to_list() == ["1 call, 100.00 KiB"]
    assert table["coverage"].unique().to_list() == [1 / 3]
    assert table["fitted_ns"].to_list() == [100_000, 200_000, 300_000]


def test_waiting_beside_another_transfer_shares_nothing():
    # Rank 0 waits in the second call while the first one runs.
    assert table_of(call(1, 0, 100), call(2, 100, 100, waits=(90, 0)))["num_shared"].to_list() == [0]


def test_where_all_calls_share_the_link_the_source_says_so():
    run = run_of(collectives=[*call(1, 0, 400, kib=200), *call(2, 100, 400, kib=300, lane="stream 21")])
    made = fits(run)["all_gather", "dp_shard"]
    assert made.num_calls == 2
    assert "2 calls ran beside others" in made.source


@pytest.mark.parametrize(
    "change",
    [
        {"transfer_ns": None},
        {"payload_bytes": None},
        {"payload_bytes": 0},
        {"batch": 3},
        {"kind": "other", "backend_kind": None},
        {"group_size": 1},
    ],
)
def test_calls_of_unknown_time_size_or_kind_are_left_out(change):
    rows = [row | change for row in call(1, 0, 100)]
    table = link(run_of(collectives=rows))
    assert table.schema == pl.Schema(LINK_SCHEMA)
    assert table.height == 0


def test_a_group_stands_where_the_axis_is_unknown():
    run = run_of(collectives=call(1, 0, 100, axis=None, group="7"))
    assert link(run).select("axis", "group").rows() == [(None, "7")]
    assert list(fits(run)) == [("all_gather", "7")]
    nameless = run_of(collectives=call(1, 0, 100, axis=None))
    assert list(fits(nameless)) == [("all_gather", "")]


def test_axes_have_fits_of_their_own():
    run = run_of(collectives=[*call(1, 0, 100), *call(2, 200, 300, axis="tp", group_size=2)])
    assert {key: made.time_ns(KIB)[0] for key, made in fits(run).items()} == {
        ("all_gather", "dp_shard"): 100_000,
        ("all_gather", "tp"): 300_000,
    }
