from __future__ import annotations

import polars as pl
import pytest

from tracekit.model.collectives.matching import with_matches, with_waits

INT, TEXT = pl.Int64, pl.String
SCHEMA = {
    "rank": pl.Int32,
    "cycle": pl.Int32,
    "turn": INT,
    "kind": TEXT,
    "group": TEXT,
    "mesh_group": TEXT,
    "members": TEXT,
    "src_rank": INT,
    "dst_rank": INT,
    "call": INT,
    "group_size": pl.Int32,
    "seq": INT,
    "in_numel": INT,
    "out_numel": INT,
    "issued_ns": INT,
    "dur_ns": INT,
}


def rows(*data: dict[str, object]) -> pl.DataFrame:
    plain = {"rank": 0, "cycle": 0, "turn": 1, "kind": "all_reduce", "in_numel": 8, "issued_ns": 0, "dur_ns": 10}
    return pl.DataFrame([{**plain, **row} for row in data], schema=SCHEMA)


def waits(frame: pl.DataFrame, world_size: int | None) -> list[tuple[int | None, int | None]]:
    return with_waits(with_matches(frame, world_size)).sort("rank").select("transfer_ns", "wait_ns").rows()


def test_the_last_rank_shows_the_transfer_and_the_others_wait() -> None:
    # All-reduces start at 0, 100, 200 and 900 us on four ranks and all end at 930.
    ranks = rows(*({"rank": r, "issued_ns": s, "dur_ns": 930 - s} for r, s in enumerate([0, 100, 200, 900])))
    assert waits(ranks, 4) == [(30, 900), (30, 800), (30, 700), (30, 0)]


@pytest.mark.parametrize("world_size", [None, 3, 8])
def test_without_all_ranks_nothing_is_claimed(world_size: int | None) -> None:
    assert waits(rows({"rank": 0}, {"rank": 1}), world_size) == [(None, None)] * 2


def test_the_groups_own_size_is_enough() -> None:
    pair = [{"rank": 0, "group_size": 2, "group": "tp"}, {"rank": 1, "group_size": 2, "group": "tp", "dur_ns": 4}]
    assert waits(rows(*pair), 64) == [(4, 6), (4, 0)]


def test_ranks_of_unnamed_smaller_groups_are_not_guessed() -> None:
    # Ranks 0 and 1 may be of one group, or of two whose other ranks have no file.
    assert waits(rows({"group_size": 2}, {"rank": 1, "group_size": 2, "dur_ns": 4}), 64) == [(None, None)] * 2


def test_the_mesh_tells_unnamed_groups_apart() -> None:
    # On a mesh of 2 x 2 ranks 0 and 1 meet, and 2 and 3; nobody waits for a rank of the other group.
    groups = ["dp_shard:0", "dp_shard:0", "dp_shard:2", "dp_shard:2"]
    durations = [10, 4, 100, 90]
    ranks = [
        {"rank": rank, "group_size": 2, "mesh_group": group, "dur_ns": dur}
        for rank, (group, dur) in enumerate(zip(groups, durations, strict=True))
    ]
    assert waits(rows(*ranks), 4) == [(4, 6), (4, 0), (90, 10), (90, 0)]


@pytest.mark.parametrize("kind", ["broadcast", "send", "recv", "reduce", "other"])
def test_kinds_that_do_not_bind_their_ranks_get_no_wait(kind: str) -> None:
    assert waits(rows({"rank": 0, "kind": kind}, {"rank": 1, "kind": kind, "dur_ns": 99}), 2) == [(None, None)] * 2


def test_a_rank_where_it_did_not_run_hides_the_transfer() -> None:
    assert waits(rows({"rank": 0}, {"rank": 1, "dur_ns": None}), 2) == [(None, None)] * 2


def matched(frame: pl.DataFrame) -> list[tuple[int, ...]]:
    """Row numbers that were matched, each set sorted."""
    numbered = with_matches(frame.with_row_index("row"), 2)
    return sorted(tuple(sorted(group["row"])) for _, group in numbered.group_by("match"))


def test_sequence_numbers_decide_before_order() -> None:
    frame = rows(
        {"rank": 0, "group": "tp", "seq": 7, "issued_ns": 1},
        {"rank": 0, "group": "tp", "seq": 8, "issued_ns": 2},
        {"rank": 1, "group": "tp", "seq": 8, "issued_ns": 1, "turn": 2},
    )
    assert matched(frame) == [(0,), (1, 2)]


def test_groups_kinds_and_sizes_are_matched_apart() -> None:
    frame = rows(
        {"rank": 0, "group": "a"},
        {"rank": 0, "group": "b"},
        {"rank": 0, "group": "a", "kind": "all_gather"},
        {"rank": 1, "group": "b"},
        {"rank": 1, "group": "a", "in_numel": 9},
        {"rank": 1, "group": "a"},
    )
    assert matched(frame) == [(0, 5), (1, 3), (2,), (4,)]


def test_one_extra_collective_of_another_size_shifts_nothing() -> None:
    frame = rows(
        {"issued_ns": 1},
        {"issued_ns": 5, "in_numel": 16},
        {"rank": 1, "in_numel": 4},
        {"rank": 1},
        {"rank": 1, "in_numel": 16},
    )
    assert matched(frame) == [(0, 3), (1, 4), (2,)]


def test_one_extra_collective_of_the_same_size_makes_all_of_them_uncertain() -> None:
    frame = rows(
        {"issued_ns": 1}, {"rank": 1, "issued_ns": 1}, {"rank": 1, "issued_ns": 2}, {"turn": 2}, {"rank": 1, "turn": 2}
    )
    table = with_waits(with_matches(frame, 2))
    assert table["is_certain"].to_list() == [False, False, False, True, True]
    assert table["wait_ns"].to_list() == [None, None, None, 0, 0]


def test_sequence_numbers_make_an_extra_one_certain() -> None:
    frame = rows({"seq": 1}, {"rank": 1, "seq": 0}, {"rank": 1, "seq": 1, "dur_ns": 15})
    table = with_waits(with_matches(frame, 2))
    assert table["wait_ns"].to_list() == [0, None, 5]


def test_a_number_that_comes_twice_on_a_rank_is_certain_of_nothing() -> None:
    twice = [
        {"rank": rank, "seq": 1, "issued_ns": at, "dur_ns": dur} for rank in (0, 1) for at, dur in ((0, 9), (20, 5))
    ]
    assert waits(rows(*twice), 2) == [(None, None)] * 4


def test_a_name_that_two_groups_of_an_axis_share_does_not_match_them() -> None:
    names = ["dp_shard:0", "dp_shard:0", "dp_shard:2", "dp_shard:2"]
    pairs = [
        {"rank": rank, "group": "1", "group_size": 2, "mesh_group": name, "dur_ns": 10 + rank}
        for rank, name in enumerate(names)
    ]
    assert waits(rows(*pairs), 4) == [(10, 0), (10, 1), (12, 0), (12, 1)]
    assert waits(rows(pairs[0], pairs[3]), 4) == [(None, None)] * 2


def test_all_to_all_has_other_sizes_on_each_rank() -> None:
    assert matched(rows({"kind": "all_to_all"}, {"rank": 1, "kind": "all_to_all", "in_numel": 3})) == [(0, 1)]


def test_the_same_order_in_another_turn_is_another_collective() -> None:
    frame = rows({"turn": 2}, {"turn": 3}, {"rank": 1, "turn": 3}, {"rank": 1, "turn": 2})
    assert matched(frame) == [(0, 3), (1, 2)]


def test_nothing_and_one_row() -> None:
    assert with_waits(with_matches(rows().clear(), 2)).height == 0
    assert waits(rows({}), 1) == [(None, None)]
