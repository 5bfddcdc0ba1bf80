"""The same collective on all ranks: sequence numbers that ranks do not share, steps, clocks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from cases import rows
from kineto import kernel, step, write

import tracekit
from tracekit.analyzers.complete_steps import of_complete_steps
from tracekit.model.collectives.matching import SEQ_DIFFERS
from tracekit.model.run import Run
from tracekit.report.caveats import caveats


def reduce(at: int, dur: int, correlation: int, seq: int | None = None, numel: int = 1000, **more: Any) -> list[Any]:
    told = {"Collective name": "allreduce", "In msg nelems": numel, "Out msg nelems": numel, "dtype": "Float"}
    told |= {"Group size": 2, "Process Group Name": "0"} | ({} if seq is None else {"Seq": seq}) | more
    return kernel("ncclDevKernel_AllReduce", at, dur, stream=20, correlation=correlation, args=told)


def opened(folder: Path, *ranks: list[Any]) -> Run:
    for rank, events in enumerate(ranks):
        write(folder / f"rank{rank}.json", events, rank=rank, world_size=len(ranks))
    return tracekit.open(folder, cache=False)


def numbered(seqs: list[int | None], *, late: int = 0) -> list[Any]:
    """Step 5 with an all-reduce of each number: 130 us, or `late` by so much and shorter, so that all end together."""
    events = [reduce(1010 + 300 * n + late, 130 - late, n + 1, seq) for n, seq in enumerate(seqs)]
    return [step(5, 1000, 2000), *(event for part in events for event in part)]


@pytest.mark.parametrize(
    ("first", "second", "how", "waits"),
    rows(
        [
            ("other numbers", [9, 11], [13, 17], SEQ_DIFFERS, [100_000] * 2),
            ("the same numbers", [9, 11], [9, 11], "seq", [100_000] * 2),
            ("numbers that meet by chance", [9, 11], [11, 13], SEQ_DIFFERS, [100_000] * 2),
            ("many others", [1, 2, 3], [51, 52, 53], SEQ_DIFFERS, [100_000] * 3),
            ("none", [None, None], [None, None], "order", [100_000] * 2),
            ("another count", [9, 11], [13, 17, 19], None, [None] * 2),
        ]
    ),
)
def test_numbers_that_ranks_do_not_share_give_way_to_order(
    tmp_path: Path, first: list[int | None], second: list[int | None], how: str | None, waits: list[int | None]
) -> None:
    run = opened(tmp_path, numbered(first), numbered(second, late=100))
    assert set(run.collectives["matched_by"]) == {how}
    assert run.collectives.filter(rank=0)["wait_ns"].to_list() == waits
    assert any("Seq disagrees" in sentence for sentence in caveats(run)) == (how == SEQ_DIFFERS)
    if waits[0] is not None:
        assert run.table("stragglers").select("rank", "num_last").rows() == [(0, 0), (1, len(waits))]
        assert run.table("skew").group_by("seq").len()["len"].to_list() == [2] * len(waits)


def test_groups_agree_or_disagree_each_for_itself(tmp_path: Path) -> None:
    def events(a: int, b: int, late: int) -> list[Any]:
        other = {"Process Group Name": "1"}
        both = [*reduce(1010 + late, 130 - late, 1, a), *reduce(1310 + late, 130 - late, 2, b, **other)]
        return [step(5, 1000, 2000), *both]

    run = opened(tmp_path, events(3, 8, 0), events(3, 9, 100))
    assert run.collectives.sort("rank", "start_ns")["matched_by"].to_list() == ["seq", SEQ_DIFFERS] * 2
    assert run.collectives.filter(rank=0)["wait_ns"].to_list() == [100_000] * 2


# -- which steps are compared ---------------------------------------------------------------------------------------


def steps(numbers: list[int], late: dict[int, int]) -> list[Any]:
    """Steps of 1 ms, each with an all-reduce that ends 500 us into it, and which this rank enters `late` by so much."""
    events: list[Any] = []
    for number in numbers:
        at, wait = 1000 * number, late.get(number, 0)
        events += [step(number, at, 1000), *reduce(at + 100 + wait, 400 - wait, number)]
    return events


@pytest.mark.parametrize(
    ("first", "second", "late", "ranking"),
    rows(
        [
            # (num_last, num_left_out, made_others_wait_ns) of rank 1.
            ("alike", [5, 6, 7], [5, 6, 7], {6: 300}, (1, 2, 300_000)),
            ("one step more", [4, 5, 6, 7], [5, 6, 7], {6: 300}, (1, 2, 300_000)),
            ("late in all", [5, 6], [5, 6], {5: 300, 6: 200}, (2, 0, 500_000)),
            ("none in common", [5], [6], {}, None),
        ]
    ),
)
def test_ranking_and_means_are_of_steps_that_all_ranks_have(
    tmp_path: Path, first: list[int], second: list[int], late: dict[int, int], ranking: tuple[int, ...] | None
) -> None:
    run = opened(tmp_path, steps(first, {}), steps(second, late))
    table = run.table("stragglers").filter(rank=1).select("num_last", "num_left_out", "made_others_wait_ns").rows()
    if ranking is not None:
        assert table == [ranking]
        shared = of_complete_steps(run, run.table("breakdown"))
        assert sorted(shared["step"].unique()) == sorted({*first} & {*second})
        assert shared.height == 2 * len({*first} & {*second})


@pytest.mark.parametrize(
    ("wait", "usual", "flagged"),
    rows(
        [
            ("seconds", 3_000_000, 100, True),
            ("not a second", 900_000, 100, False),
            ("seconds each time", 3_000_000, 2_500_000, False),
        ]
    ),
)
def test_a_first_collective_that_holds_seconds_is_told_apart(
    tmp_path: Path, wait: int, usual: int, flagged: bool
) -> None:
    def events(late: bool) -> list[Any]:
        found: list[Any] = []
        for number, waited in enumerate([wait, usual, usual], 1):
            at = 10_000_000 * number
            found += [step(number, at, 10_000_000), *reduce(at + 10 + late * waited, 50 + (not late) * waited, number)]
        return found

    run = opened(tmp_path, events(late=False), events(late=True))
    assert any("The first collective" in sentence for sentence in caveats(run)) == flagged
    made = run.table("stragglers").filter(rank=1).select("num_last", "made_others_wait_ns", "num_left_out").row(0)
    whole = (3, (wait + 2 * usual) * 1000, 0)
    assert made == ((2, 2 * usual * 1000, 1) if flagged else whole)


# -- clocks ---------------------------------------------------------------------------------------------------------

EPOCH = 1_700_000_000_000_000


def on_hosts(folder: Path, hosts: list[str], ends: list[list[int]], durations: list[list[int]]) -> Run:
    """Ranks on hosts whose all-reduces end so many ns after a base of 1.7e18 ns, each after so many ns."""
    for rank, (host, of_rank, lasts) in enumerate(zip(hosts, ends, durations, strict=True)):
        events: list[Any] = [step(5, 0, 100_000)]
        for number, (end, dur) in enumerate(zip(of_rank, lasts, strict=True), 1):
            events += reduce(0, 0, number, number, **{"Group size": len(hosts)})
            events[-1] |= {"ts": (end - dur) / 1000, "dur": dur / 1000}
        facts = {"host_name": host, "baseTimeNanoseconds": EPOCH * 1000}
        write(folder / f"rank{rank}.json", events, rank=rank, world_size=len(hosts), **facts)
    return tracekit.open(folder, cache=False)


@pytest.mark.parametrize(
    ("hosts", "shifts", "offsets"),
    rows(
        [
            ("two hosts", ["a", "b"], [0, 8_500], [("a", 0, 0), ("b", 8_500, 0)]),
            ("three hosts", ["a", "b", "c"], [0, 8_500, 8_000], [("a", 0, 0), ("b", 8_500, 0), ("c", 8_000, 0)]),
            ("behind", ["a", "b"], [0, -8_501], [("a", 0, 0), ("b", -8_501, 0)]),
            ("one clock a host", ["a", "a", "b"], [0, 0, 7], [("a", 0, 0), ("b", 7, 0)]),
        ]
    ),
)
def test_offsets_are_exact_integers(
    tmp_path: Path, hosts: list[str], shifts: list[int], offsets: list[tuple[str, int, int]]
) -> None:
    ends = [[20_000_001 + shift, 40_000_003 + shift, 60_000_005 + shift] for shift in shifts]
    run = on_hosts(tmp_path, hosts, ends, [[1_000_000] * 3] * len(hosts))
    assert run.table("clocks").select("host", "offset_ns", "spread_ns").rows() == offsets


def test_the_spread_of_the_two_hosts_decides_whether_a_wait_is_told(tmp_path: Path) -> None:
    """Host b's clock wanders by 40 us; ranks 0 and 1 share host a, where a wait of 10 us is one."""
    ends = [[20_000_000, 40_000_000, 60_000_000]] * 2 + [[20_000_000, 40_040_000, 59_960_000]]
    durations = [[1_000_000] * 3, [990_000] * 3, [1_000_000] * 3]
    table = on_hosts(tmp_path, ["a", "a", "b"], ends, durations).table("stragglers")
    assert table.select("rank", "num_last", "num_left_out", "made_others_wait_ns").rows() == [
        (0, 0, 0, 0),
        (1, 3, 0, 30_000),
        (2, 0, 0, 0),
    ]
    # The last one is on the other host now: 10 us are within what its clock wanders.
    others = on_hosts(tmp_path / "far", ["a", "a", "b"], ends, [durations[0], durations[0], durations[1]])
    others = others.table("stragglers")
    assert others["num_last"].to_list() == [0, 0, 0]
    assert others["num_left_out"].to_list() == [3, 3, 3]


# -- at the same time -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gather", "scatter", "group", "found"),
    rows(
        [
            ("beside one another", (100, 50), (120, 50), "0", [("0 all_gather", "0 all_reduce", 50, 50, 30)]),
            ("one in the other", (100, 80), (120, 20), "0", [("0 all_gather", "0 all_reduce", 80, 20, 20)]),
            ("one after the other", (100, 20), (120, 20), "0", []),
            ("of two groups", (100, 50), (120, 50), "1", [("0", "1", 50, 50, 30)]),
        ]
    ),
)
def test_kinds_of_one_group_at_the_same_time(
    tmp_path: Path, gather: tuple[int, int], scatter: tuple[int, int], group: str, found: list[tuple[Any, ...]]
) -> None:
    told = {"Collective name": "_allgather_base"}
    both = [*reduce(*gather, 1, **told), *reduce(*scatter, 2, **{"Process Group Name": group, "stream": 21})]
    run = opened(tmp_path, [step(5, 0, 1000), *both])
    table = run.table("concurrency").select(pl.exclude("rank", "step"))
    assert table.rows() == [(a, b, x * 1000, y * 1000, z * 1000) for a, b, x, y, z in found]
