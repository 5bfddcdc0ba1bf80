from __future__ import annotations

import polars as pl
from fakes import collective, run_of

from tracekit.analyzers.bandwidth import bandwidth
from tracekit.analyzers.skew import clocks, mismatches, skew, stragglers

US = 1_000


def met(match, rank, start, end, *, kind="all_reduce", transfer=None, **more) -> dict[str, object]:
    """One rank's part in a collective of two ranks, in µs; `transfer` is null where it is not certain that they met."""
    row = collective(kind, "stream 20", start, end, numel=more.pop("numel", 8), rank=rank, match=match, **more)
    row |= {"num_matched": 2, "num_needed": 2, "issued_ns": start * US}
    if transfer is not None:
        row |= {"transfer_ns": transfer * US, "wait_ns": (end - start - transfer) * US}
    return row


def hosts(*names) -> list[dict[str, object]]:
    return [{"rank": rank, "host": name, "num_events": 1} for rank, name in enumerate(names)]


PAIR = [met(1, 0, 0, 100, transfer=40), met(1, 1, 60, 100, transfer=40)]


def test_the_rank_that_came_last_is_named_and_the_other_waited():
    table = skew(run_of(collectives=PAIR, ranks=hosts("a", "a")))
    assert table.select("rank", "start_ns", "wait_ns", "last_rank").rows() == [(0, 0, 60 * US, 1), (1, 60 * US, 0, 1)]


def test_two_collectives_of_one_step_kind_and_group_have_waits_of_their_own():
    # The same sequence number twice: a warmup of the group and the group itself, or two groups without a name.
    rows = [*PAIR, met(2, 0, 210, 300, transfer=80), met(2, 1, 220, 300, transfer=80)]
    table = stragglers(run_of(collectives=[row | {"seq": 7} for row in rows], ranks=hosts("a", "a")))
    columns = ["rank", "num_last", "num_collectives", "waited_ns", "made_others_wait_ns"]
    assert table.select(columns).rows() == [(0, 0, 2, 70 * US, 0), (1, 2, 2, 0, 70 * US)]


def test_a_clock_that_is_ahead_shows_in_the_common_ends():
    rows = [
        met(n, rank, n * 100 + 5 * rank, n * 100 + 50 + 5 * rank, transfer=45) for n in (1, 2, 3) for rank in (0, 1)
    ]
    run = run_of(collectives=rows, ranks=hosts("a", "b"))
    assert clocks(run).select("host", "reference", "offset_ns", "spread_ns", "num_collectives").rows() == [
        ("a", "a", 0, 0, 3),
        ("b", "a", 5 * US, 0, 3),
    ]
    # On one clock both began together.
    assert skew(run)["start_ns"].to_list() == [n * 100 * US for n in (1, 1, 2, 2, 3, 3)]


def test_collectives_that_may_not_have_met_say_nothing_of_clocks():
    rows = [*PAIR, met(2, 0, 200, 300), met(2, 1, 900, 990)]
    table = clocks(run_of(collectives=rows, ranks=hosts("a", "b")))
    assert table["num_collectives"].to_list() == [1, 1]
    assert table["spread_ns"].to_list() == [0, 0]


def test_nobody_is_last_by_less_than_the_clocks_can_tell():
    # Two collectives end 0 and 20 µs apart on the clocks of two hosts: the spread is 10, a wait of 8 tells nothing.
    rows = [
        met(1, 0, 0, 100, transfer=92),
        met(1, 1, 8, 100, transfer=92),
        met(2, 0, 200, 300, transfer=100),
        met(2, 1, 220, 320, transfer=100),
    ]
    table = stragglers(run_of(collectives=rows, ranks=hosts("a", "b")))
    assert table["num_last"].to_list() == [0, 0]


def test_ranks_with_other_numbers_of_the_same_collective_are_named():
    steps = [{"rank": rank, "step": 5, "start_ns": 0, "end_ns": US, "complete": True} for rank in (0, 1, 2)]
    rows = [met(1, 0, 0, 1), met(1, 1, 0, 1), met(1, 2, 0, 1), met(2, 2, 2, 3)]
    table = mismatches(run_of(steps=steps, collectives=rows))
    assert table.select("step", "kind", "rank", "num_collectives", "num_elsewhere").rows() == [
        (5, "all_reduce", 2, 2, 1)
    ]


def test_bandwidth_is_of_the_transfer_and_holds_for_payloads_beyond_64_bits_of_nanoseconds():
    # 40 GB in 1 s: 40 GB/s; an all-reduce of 2 ranks: times 2(n-1)/n = 1.
    rows = [met(1, rank, 0, 1_000_000, numel=10**10, transfer=1_000_000) for rank in (0, 1)]
    table = bandwidth(run_of(collectives=rows))
    rates = table.select("payload_bytes", "algorithm_bytes_per_s", "bus_bytes_per_s").rows()
    assert rates == [(4 * 10**10, 4 * 10**10, 4 * 10**10)]


def test_empty_runs_have_empty_tables():
    run = run_of()
    for table in (skew(run), clocks(run), stragglers(run), mismatches(run), bandwidth(run)):
        assert table.height == 0
        assert isinstance(table, pl.DataFrame)
