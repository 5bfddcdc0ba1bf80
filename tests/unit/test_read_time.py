from __future__ import annotations

from pathlib import Path

import msgspec
import polars as pl
import pytest
from kineto import span, write

from tracekit.read import clock
from tracekit.read.decode import decode


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
    assert sorted(f.what for f in one.findings) == sorted(
        ["something else where a time belongs", f"{what}, or an impossible one"]
    )


def test_absolute_fractional_times_keep_every_digit(tmp_path: Path) -> None:
    # As floats these two would be .000 and .250, with a gap or an overlap that is not there.
    text = b'[{"ph":"X","cat":"kernel","name":"a","pid":0,"tid":7,"ts":1699236267071058.123,"dur":0.100},'
    text += b'{"ph":"X","cat":"kernel","name":"b","pid":0,"tid":7,"ts":1699236267071058.223,"dur":0.100}]'
    path = tmp_path / "r.json"
    path.write_bytes(text)
    events = decode(path).columns.events
    assert events["ts_ns"].to_list() == [1699236267071058123, 1699236267071058223]
    assert events["dur_ns"].sum() == 200


def test_base_time_is_added(tmp_path: Path) -> None:
    base = 1_790_857_026_000_000_000
    early = write(tmp_path / "a.json", [span("op", 10.5, 1)], baseTimeNanoseconds=base)
    late = write(tmp_path / "b.json", [span("op", 1_000_010.5, 1)], baseTimeNanoseconds=base - 1_000_000_000)
    times = [decode(p).columns.events["ts_ns"].item() for p in (early, late)]
    assert times == [base + 10_500, base + 10_500]


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"dur": 9.2e15}, "no duration, or an impossible one"),
        ({"dur": 10**13}, "no duration, or an impossible one"),
        ({"ts": 4.7e15}, "no start time, or an impossible one"),
    ],
)
def test_times_that_cannot_be_are_set_aside(tmp_path: Path, change: dict[str, float], what: str) -> None:
    one = decode(write(tmp_path / "a.json", [span("good", 10, 1), span("op", 20, 1) | change]))
    assert [(f.what, f.count) for f in one.findings] == [(what, 1)]
    usable = one.columns.events.filter(pl.col("ts_ns").is_not_null(), pl.col("dur_ns").is_not_null())
    assert usable["name"].to_list() == ["good"]


def test_a_base_time_that_no_clock_shows_is_left_out(tmp_path: Path) -> None:
    one = decode(write(tmp_path / "a.json", [span("good", 10, 1)], baseTimeNanoseconds=2**63 - 1))
    assert one.columns.events["ts_ns"].to_list() == [10_000]
    assert [f.what for f in one.findings] == ["baseTimeNanoseconds that no clock shows"]
