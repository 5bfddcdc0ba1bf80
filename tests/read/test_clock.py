from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from kineto import span, write

from tracekit.read.decode import decode
from tracekit.read.decoding import clock


@pytest.mark.parametrize(
    ("written", "ns"),
    [
        (1694128201429795, 1694128201429795000),
        (4458677009853.422, 4458677009853422),
        (0.001, 1),
        (msgspec.Raw(b"1699236267071058.123"), 1699236267071058123),
        ("1699236267071058.223", 1699236267071058223),
        (-100, -100000),
        (None, None),
        (10**30, None),
        ("soon", None),
    ],
)
def test_microseconds_become_integer_ns(written: object, ns: int | None) -> None:
    assert clock.starts([written]).to_list() == [ns]


@pytest.mark.parametrize("others", [[], [None], [7], ["7.5"]])
def test_floats_that_lost_nanoseconds_are_not_taken_for_starts(others: list[object]) -> None:
    with pytest.raises(clock.RoundedError):
        clock.starts([*others, 1699236267071058.223])


def test_durations_beyond_a_hundred_days_are_none() -> None:
    assert clock.lengths([0.5, None, 2.0**43 - 1, "1.5"]).to_list() == [500, None, (2**43 - 1) * 1000, 1500]
    assert clock.lengths([2.0**44, float("inf"), 10**30]).to_list() == [2**44 * 1000, None, None]


@pytest.mark.parametrize("odd", [True, [1], {"a": 1}])
@pytest.mark.parametrize(("key", "what"), [("ts", "no start time"), ("dur", "no duration")])
def test_what_is_no_number_where_a_time_belongs_costs_its_event_alone(
    tmp_path: Path, key: str, what: str, odd: object
) -> None:
    one = decode(write(tmp_path / "a.json", [span("good", 10, 1), span("op", 20, 1) | {key: odd}, span("last", 30, 1)]))
    assert one.columns.events.drop_nulls(["ts_ns", "dur_ns"])["name"].to_list() == ["good", "last"]
    assert [(f.what, f.count) for f in one.findings] == [(f"{what}, or an impossible one", 1)]


@pytest.mark.parametrize("written", ["9223372036854775.808", "4611686018427387.904", "9999999999999999"])
def test_times_at_the_edge_of_64_bits_do_not_wrap(tmp_path: Path, written: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(f'[{{"ph":"X","name":"good","ts":1.5,"dur":1}},{{"ph":"X","name":"op","ts":{written},"dur":1}}]')
    one = decode(path)
    assert one.columns.events["ts_ns"].to_list() == [1500, None]
    assert [(f.what, f.count) for f in one.findings] == [("no start time, or an impossible one", 1)]


def test_a_start_that_only_the_base_takes_beyond_all_clocks_is_none(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", [span("good", 1, 1), span("op", 4e15, 1)], baseTimeNanoseconds=2**62 - 10**9)
    assert decode(path).columns.events["ts_ns"].to_list() == [2**62 - 10**9 + 1000, None]
