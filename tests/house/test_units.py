from __future__ import annotations

from tracekit import units


def test_bytes_are_told_in_the_largest_unit_that_they_fill():
    assert [units.size(number) for number in (0, 12, 1023, 1024, 1536, -1536, 3 * 2**30)] == [
        "0 B", "12 B", "1,023 B", "1.00 KiB", "1.50 KiB", "-1.50 KiB", "3.00 GiB",
    ]  # fmt: skip


def test_times_are_told_in_ms_or_less():
    assert [units.duration(ns) for ns in (999, 999_999, 1_000_000, 123_456_789)] == [
        "1.0 µs", "1000.0 µs", "1.0 ms", "123.5 ms",
    ]  # fmt: skip
    assert units.milliseconds(1_234) == "0.00 ms"


def test_shares_are_never_rounded_to_all_or_nothing():
    assert [units.share(part) for part in (0, 0.001, 0.264, 0.999, 1)] == [
        "0 %", "less than 1 %", "26 %", "more than 99 %", "100 %",
    ]  # fmt: skip
    assert units.percent(0.2645) == "26.5 %"


def test_counts():
    assert [units.count(number) for number in (12, 4_458_752, 7e9)] == ["12", "4.46 million", "7 billion"]
    assert [units.counted(number, "call") for number in (0, 1, 2, 2.5)] == ["0 calls", "1 call", "2 calls", "2.5 calls"]
