"""Kind B of the reported cases, time: a row is an event or a few, with its exact place in nanoseconds.

Numbers in the ids are those of the cases; the public threads behind them stand above each table.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cases import TRUTH, compute_and_comm, opened, reported, rows
from gpu import Rank
from kineto import BACKWARD, COMMON, document, flow, kernel, span, step, write

import tracekit
from tracekit.analyzers.breakdown import breakdown
from tracekit.analyzers.overlap import overlap
from tracekit.analyzers.skew import skew
from tracekit.model.run import Run

pytestmark = pytest.mark.slow

US = 1_000
NO_START, NO_LENGTH = "no start time, or an impossible one", "no duration, or an impossible one"
NEGATIVE, ODD, LARGE = "negative duration", "number that JSON does not know (inf, nan)", "number beyond 64 bits"
TEXT = json.dumps(document([*COMMON, span("op", 7777, 5)])).encode()
AT = TEXT.rindex(b'{"ph"')


def op(run: Run) -> tuple[int | None, int | None]:
    """Start and duration of the event `op`."""
    return run.events.filter(name="op").select("ts_ns", "dur_ns").row(0)


# pytorch/kineto#853, #890, #919; pytorch/pytorch#122425; google/perfetto#426
PAIRS: list[tuple[Any, ...]] = [
    ("B14 decimals", "1699236267071058.123", "1699236267071058.223"),
    ("B14 decimals as text", '"1699236267071058.123"', '"1699236267071058.223"'),
    ("B14 decimals and text", "1699236267071058.123", '"1699236267071058.223"'),
    ("B14 exponents", "1.699236267071058123e15", "169923626707105822300E-5"),
    ("B14 digits beyond nanoseconds", "1699236267071058.1232", "1699236267071058.2228"),
    ("B14 zeros at the end", "1699236267071058.123000", "1699236267071058.2230000000"),
    ("B14 whole and decimal", "1699236267071058", "1699236267071058.100"),
    ("B14 latest", "4611686018427387.703", "4611686018427387.803"),
    ("B14 before the epoch", "-1699236267071058.223", "-1699236267071058.123"),
]


@pytest.mark.parametrize("damage", [b"k", b"k\nk"])
@pytest.mark.parametrize(("first", "second"), rows(PAIRS))
def test_neighbours_of_a_tenth_of_a_microsecond_touch(tmp_path: Path, first: str, second: str, damage: bytes) -> None:
    row = '{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":%s,"dur":0.100,"args":{"device":0,"stream":7}}'
    run = opened(tmp_path, f"[{row % first},{row % second}]".encode().replace(b'"k"', b'"%s"' % damage))
    (start, length), (start_2, length_2) = run.work.select("start_ns", "dur_ns").rows()
    assert (start_2 - (start + length), length, length_2) == (0, 100, 100)
    assert breakdown(run).select("step_ns", "compute_ns", "idle_ns").rows() == [(200, 200, 0)]


STARTS: list[tuple[Any, ...]] = [
    ("B14 absolute", b"1699236267071058.123", 1_699_236_267_071_058_123, []),
    ("B14 absolute text", b'"1699236267071058.123"', 1_699_236_267_071_058_123, []),
    ("B14 whole", b"1694128201429795", 1_694_128_201_429_795_000, []),
    ("B14 a nanosecond", b"1e-3", 1, []),
    ("B14 less than half of one", b"0.0004", 0, []),
    ("B14 thousands of digits", b"1." + b"3" * 5000, 1_333, []),
    ("B14 negative", b"-7.5", -7_500, []),
    ("B14 minus nothing", b"-0", 0, []),
    ("B14 text with blanks", b'" 7.5 "', 7_500, []),
    ("B14 the latest", b"4611686018427387.903", 2**62 - 1, []),
    ("B14 later than that", b"4611686018427387.904", None, [(NO_START, None, 1)]),
    ("B14 beyond 64 bits", b"9223372036854775808", None, [(NO_START, None, 1)]),
    ("B17 no number", b'"soon"', None, [(NO_START, None, 1)]),
    ("B17 null", b"null", None, [(NO_START, None, 1)]),
    ("B17 true", b"true", None, [(NO_START, None, 1)]),
    ("B17 object", b"{}", None, [(NO_START, None, 1)]),
    ("B17 nan", b"nan", None, [(NO_START, None, 1), (ODD, AT, 1)]),
    ("B17 inf as text", b'"inf"', None, [(NO_START, None, 1)]),
    ("B17 beyond floats", b"1e999", None, [(NO_START, None, 1), (LARGE, AT, 1)]),
]


@pytest.mark.parametrize(("written", "ns", "repairs"), rows(STARTS))
def test_starts(tmp_path: Path, written: bytes, ns: int | None, repairs: list[Any]) -> None:
    run = opened(tmp_path, TEXT.replace(b"7777", written))
    assert (op(run), reported(run), compute_and_comm(run)) == ((ns, 5_000), repairs, TRUTH)


# pytorch/kineto#646, ROCm/rocm-systems#1568
LENGTHS: list[tuple[Any, ...]] = [
    ("B17 negative", b"-100", -100_000, [(NEGATIVE, None, 1)]),
    ("B17 negative by a nanosecond", b"-0.001", -1, [(NEGATIVE, None, 1)]),
    ("B17 negative text", b'"-5"', -5_000, [(NEGATIVE, None, 1)]),
    ("B17 null", b"null", None, [(NO_LENGTH, None, 1)]),
    ("B17 NaN", b"NaN", None, [(NO_LENGTH, None, 1), (ODD, AT, 1)]),
    ("B17 nan", b"nan", None, [(NO_LENGTH, None, 1), (ODD, AT, 1)]),
    ("B17 -inf", b"-inf", None, [(NO_LENGTH, None, 1), (ODD, AT, 1)]),
    ("B17 no number", b'"soon"', None, [(NO_LENGTH, None, 1)]),
    ("B17 true", b"true", None, [(NO_LENGTH, None, 1)]),
    ("B17 months", b"1e13", None, [(NO_LENGTH, None, 1)]),
    ("B17 end of 0", b"-1699236267071058", -1_699_236_267_071_058_000, [(NEGATIVE, None, 1)]),
    ("B17 beyond 64 bits", b"9223372036854775808", None, [(NO_LENGTH, None, 1)]),
    ("B17 beyond floats", b"1e999", None, [(NO_LENGTH, None, 1), (LARGE, AT, 1)]),
    ("B17 nothing is a length", b"0", 0, []),
]


@pytest.mark.parametrize("category", ["cpu_op", "kernel"])
@pytest.mark.parametrize(("written", "ns", "repairs"), rows(LENGTHS))
def test_lengths(tmp_path: Path, written: bytes, ns: int | None, repairs: list[Any], category: str) -> None:
    text = TEXT[:AT] + TEXT[AT:].replace(b'"dur": 5', b'"dur": ' + written).replace(b"cpu_op", category.encode())
    run = opened(tmp_path, text)
    assert (op(run), reported(run)) == ((7_777_000, ns), repairs)
    zero = [("compute", 7_777_000, 0)] if (category, ns) == ("kernel", 0) else []
    assert compute_and_comm(run) == [*TRUTH, *zero]
    assert overlap(run, by=["rank"]).select("comm_ns", "overlapped_ns", "exposed_ns").rows() == [
        (100_000, 50_000, 50_000)
    ]


@pytest.mark.parametrize("lacking", [["dur"], ["ts"], ["ts", "dur"]])
def test_an_event_without_a_time_is_set_aside(tmp_path: Path, lacking: list[str]) -> None:
    odd = [{k: v for k, v in row.items() if k not in lacking} for row in kernel("k", 1200, 5, stream=7, correlation=9)]
    run = tracekit.open(write(tmp_path / "rank0.json", [*odd, *COMMON]))
    assert compute_and_comm(run) == TRUTH
    assert dict(run.repairs.select("what", "count").rows()) == {
        {"ts": NO_START, "dur": NO_LENGTH}[k]: 2 for k in lacking
    }


# pytorch/kineto#928, #919
BASE = 1_790_857_026_000_000_000
BASES: list[tuple[Any, ...]] = [
    ("B15 number", BASE, BASE, None),
    ("B15 text", f'"{BASE}"', BASE, None),
    ("B15 text with blanks", f'" {BASE} "', BASE, None),
    ("B15 negative", -7_000, -7_000, None),
    ("B15 0", 0, 0, None),
    ("B15 null", "null", 0, None),
    ("B15 the latest", 2**62 - 10**9, 2**62 - 10**9, None),
    ("B15 later than that", 2**62, 0, "told"),
    ("B15 beyond 64 bits", 2**70, 0, "told"),
    ("B15 float", f"{BASE}.0", 0, "told"),
    ("B15 no number", '"soon"', 0, "told"),
    ("B15 true", "true", 0, "told"),
    ("B15 list", "[]", 0, "told"),
]


@pytest.mark.parametrize("place", ["before", "behind", "in a damaged head"])
@pytest.mark.parametrize(("written", "base", "fault"), rows(BASES))
def test_the_base_is_added_or_told(tmp_path: Path, written: Any, base: int, fault: str | None, place: str) -> None:
    fact = b'"baseTimeNanoseconds": %s' % str(written).encode()
    text = (
        TEXT[:-1] + b", " + fact + b"}" if place == "behind" else TEXT.replace(b'"schemaVersion"', fact + b', "schema"')
    )
    run = opened(tmp_path, text.replace(b'"schema": 1', b'"schema" 1') if place == "in a damaged head" else text)
    assert op(run) == (base + 7_777_000, 5_000)
    damage = [("corrupt: text before the events", 0, 1)] if place == "in a damaged head" else []
    assert reported(run) == ([("baseTimeNanoseconds that no clock shows", None, 1)] if fault else []) + damage


SAME: list[tuple[Any, ...]] = [
    ("B15 a second apart", [BASE, BASE - 10**9], [0, 1_000_000]),
    ("B15 a nanosecond apart", [BASE, BASE - 1], [0, 0.001]),
    ("B15 base and absolute", [BASE, None], [0, BASE // US]),
    ("B15 base and 0", [BASE, 0], [0.5, BASE / US + 0.5]),
    ("B15 one as text", [str(BASE), BASE + 10**9], [1_000_000, 0]),
    ("B15 neither", [None, None], [0, 0]),
]


@pytest.mark.parametrize(("bases", "shifts"), rows(SAME))
def test_ranks_with_different_bases_meet(tmp_path: Path, bases: list[Any], shifts: list[float]) -> None:
    for number, (base, shift) in enumerate(zip(bases, shifts, strict=True)):
        rank = Rank(number, 2)
        rank.step(1, 0, 3000)
        rank.collective("all_reduce", 1000, 500, issued=50, stream=24, shard=8)
        for event in rank.events:
            event["ts"] += shift
        facts = {} if base is None else {"baseTimeNanoseconds": base}
        write(tmp_path / f"rank{number}.json", rank.events, rank=number, world_size=2, **facts)
    run = tracekit.open(tmp_path)
    starts = run.collectives["start_ns"].unique().to_list()
    assert len(starts) == 1
    assert skew(run).select("transfer_ns", "wait_ns").rows() == [(500_000, 0), (500_000, 0)]
    assert reported(run) == []


# AMD-AGI/TraceLens#669, AMD-AGI/Hyperloom#1116, pytorch/kineto#136
def k(name: str, ts: float, dur: float, ident: int, stream: int = 7, **more: Any) -> list[dict[str, Any]]:
    return kernel(name, ts, dur, stream=stream, correlation=ident, **more)


NEXT, LONG = k("next", 1200, 100, 2), k("long", 1010, 3_400_000, 1)
CUT = 3_400_000 - 190
OVERRUNS: list[tuple[Any, ...]] = [
    ("B18 elementwise", [*LONG, *NEXT], {"long": 190, "next": 100}, [1, CUT]),
    ("B18 last in the file first", [*NEXT, *LONG], {"long": 190, "next": 100}, [1, CUT]),
    ("B18 past many", [*LONG, *NEXT, *k("more", 1300, 50, 3)], {"long": 190, "next": 100, "more": 50}, [1, CUT]),
    ("B18 one start", [*LONG, *k("short", 1010, 5, 3), *NEXT], {"long": 190, "short": 5, "next": 100}, [1, CUT]),
    ("B18 two, the later ends later", [*LONG, *k("longer", 1100, 3_500_000, 3), *NEXT],
     {"long": 90, "longer": 100, "next": 100}, [2, 3_400_000 - 90 + 3_500_000 - 100]),
    ("B18 two, the later ends first", [*LONG, *k("longer", 1100, 3_000_000, 3), *NEXT],
     {"long": 90, "longer": 100, "next": 100}, [2, 3_400_000 - 90 + 3_000_000 - 100]),
    ("B18 other stream", [*LONG, *k("next", 1200, 100, 2, 8)], {"long": 3_400_000, "next": 100}, None),
    ("B18 nothing after it", [*k("first", 1000, 5, 3), *LONG], {"first": 5, "long": 3_400_000}, None),
    ("B18 just too long", [*k("a", 1010, 390.001, 1), *NEXT], {"a": 190, "next": 100}, [1, 200.001]),
    ("B18 at the threshold", [*k("a", 1010, 390, 1), *NEXT], {"a": 390, "next": 100}, None),
    ("B18 drains into the next", [*k("a", 1010, 230, 1), *NEXT], {"a": 230, "next": 100}, None),
    ("B18 inside of another", [*k("a", 1190, 115, 1), *NEXT], {"a": 115, "next": 100}, None),
]  # fmt: skip


@pytest.mark.parametrize(("events", "lengths", "cut"), rows(OVERRUNS))
def test_an_end_past_a_later_row_of_the_stream_is_cut(
    tmp_path: Path, events: list[Any], lengths: dict[str, float], cut: list[float] | None
) -> None:
    gather = kernel("ncclDevKernel_AllGather", 1060, 100, stream=20, correlation=9)
    run = tracekit.open(write(tmp_path / "rank0.json", [step(5, 1000, 500), *events, *gather]))
    compute = run.work.filter(run.work["class"] == "compute")
    assert dict(compute.select("name", "dur_ns").rows()) == {name: US * dur for name, dur in lengths.items()}
    ends = f"ends cut at the next start, {round(US * cut[1])} ns in all" if cut else None
    assert run.repairs.select("count", "done").rows() == ([(cut[0], ends)] if cut else [])
    assert overlap(run, by=["rank"])["comm_ns"].to_list() == [100 * US]


# pytorch/kineto#1380, #1080; pytorch/pytorch#192021
MARKS = [step(4, 900, 100), step(5, 1000, 100), step(6, 1100, 100)]
EARLY: list[tuple[Any, ...]] = [
    ("B20 2 us", k("k", 1008, 5, 1, launch=1010), [5], (1, 2_000)),
    ("B20 in the step before", k("k", 990, 5, 1, launch=1002), [5], (1, 12_000)),
    ("B20 before all steps", k("k", 5, 5, 1, launch=1010), [5], (1, 1_005_000)),
    ("B20 other thread", k("k", 1008, 5, 1, launch=1010, tid=BACKWARD), [5], (1, 2_000)),
    ("B20 by a flow", [flow("s", 1, 1010, cat="ac2g"), *k("k", 1008, 5, 1, launch=-1)], [5], (1, 2_000)),
    ("B20 a copy", k("Memcpy HtoD", 1099, 5, 1, launch=1101, cat="gpu_memcpy"), [6], (1, 2_000)),
    ("B20 two", [*k("k", 1008, 5, 1, launch=1010), *k("k", 1020, 5, 2, launch=1029)], [5, 5], (2, 9_000)),
    ("B20 one of two", [*k("k", 1008, 5, 1, launch=1010), *k("k", 1120, 5, 2, launch=1029)], [5, 5], (1, 2_000)),
    ("B20 at the launch", k("k", 1010, 5, 1, launch=1010), [5], None),
    ("B20 without a launch", k("k", 1008, 5, 1, launch=-1), [5], None),
]


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize(("events", "steps", "early"), rows(EARLY))
def test_work_belongs_to_its_launch_and_early_starts_are_counted(
    tmp_path: Path, events: list[Any], steps: list[int], early: tuple[int, int] | None, order: int
) -> None:
    run = tracekit.open(write(tmp_path / "rank0.json", [*MARKS, *events][::order]))
    assert run.work["step"].to_list() == steps
    counted = [(early[0], f"linked by their ids all the same, up to {early[1]} ns early")] if early else []
    assert run.repairs.select("count", "done").rows() == counted


@pytest.mark.parametrize("shift", [0, -5000, -1100, 1.7e15, 4e15])
def test_the_order_of_the_file_and_the_clock_change_no_answer(tmp_path: Path, shift: float) -> None:
    events = [{**e, "ts": e["ts"] + shift} for e in [*COMMON, step(6, 1200, 100), *k("k", 1210, 5, 9)]]
    for name, listed in (("a", events), ("b", events[::-1])):
        run = tracekit.open(write(tmp_path / name / "rank0.json", listed))
        assert run.work.select("step", "start_ns", "dur_ns").rows() == [
            (number, int(at + shift) * US, dur * US)
            for number, at, dur in ((5, 1010, 100), (5, 1060, 100), (6, 1210, 5))
        ]
        assert overlap(run, by=["rank"]).select("overlapped_ns", "exposed_ns").rows() == [(50_000, 50_000)]
        assert reported(run) == []
