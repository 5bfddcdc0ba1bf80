"""Collectives of a CPU run whose file is damaged: the time and call that the whole file tells, or null."""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path

import polars as pl
import pytest
from kineto import GLOO, document, mark, span, step

import tracekit
from tracekit.model.collectives.backend_spans import UNSURE
from tracekit.model.run import Run

TRACES = Path(__file__).parents[2] / "traces"
RUNS = sorted(path.parent.name for path in TRACES.glob("*/rank0.json.gz"))
SHARES = [0.12, 0.3, 0.45, 0.62, 0.81, 0.93, 0.995]


@cache
def text_of(run: str) -> bytes:
    return gzip.decompress((TRACES / run / "rank0.json.gz").read_bytes())


def opened(tmp_path: Path, text: bytes) -> Run:
    (tmp_path / "rank0.json").write_bytes(text)
    return tracekit.open(tmp_path / "rank0.json", cache=False)


@cache
def whole(run: str, folder: Path) -> pl.DataFrame:
    return opened(folder, text_of(run)).collectives


def damaged(text: bytes, share: float, how: str) -> bytes:
    at, first = int(len(text) * share), text.index(b"[", text.index(b'"traceEvents"')) + 1
    if how == "ends early":
        return text[:at]
    if how == "lacks its start":
        return text[:first] + text[max(first, at) :]
    return text[:at] + text[at + len(text) // 10 :]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["ends early", "lacks its start", "has a hole"])
@pytest.mark.parametrize("run", RUNS)
def test_what_remains_has_the_time_of_the_whole_file_or_none(tmp_path: Path, run: str, how: str) -> None:
    right = whole(run, tmp_path).select("start_ns", "dur_ns", "issued_ns", "kind", "in_numel")
    for share in SHARES:
        rest = opened(tmp_path, damaged(text_of(run), share, how))
        ran = rest.collectives.drop_nulls("start_ns")
        beside = ran.join(right, on="start_ns", how="left", suffix="_right")
        assert beside["dur_ns"].to_list() == beside["dur_ns_right"].to_list()
        told = beside.drop_nulls("issued_ns")
        assert told["issued_ns"].to_list() == told["issued_ns_right"].to_list()
        # A call and its span that could not be put together are not counted with their bytes twice.
        sizes = rest.collectives.drop_nulls("payload_bytes")
        assert sizes.height <= right.height
        if rest.repairs["what"].str.starts_with("corrupt").any():
            assert not rest.work.filter(pl.col("class") == "comm")["call"].count()


def test_ends_without_a_lost_event_lose_no_match(tmp_path: Path) -> None:
    text = text_of("fsdp2")
    right = whole("fsdp2", tmp_path)
    for end in (len(text) - 2, text.rindex(b'"traceName"')):
        found = opened(tmp_path, text[:end])
        assert found.repairs["what"].str.starts_with("ends early").any()
        assert found.collectives["dur_ns"].to_list() == right["dur_ns"].to_list()


def call(at: float, numel: int) -> dict[str, object]:
    row = span("c10d::allreduce_", at, 1)
    row["args"] = {"Input Dims": [[[numel]], [], []], "Input type": ["float"]}
    return row


def ran(at: float, numel: int, tid: int) -> dict[str, object]:
    row = mark("gloo:all_reduce", at, 8, tid=tid)
    row["args"] = {"Input Dims": [[numel]], "Input type": ["float"]}
    return row


# Two steps: in the first two all-reduces of 64, which two threads of gloo run, in the second one of 64 and one of 32.
MAIN = [
    step(1, 0, 100),
    call(10, 64),
    call(20, 64),
    step(2, 100, 100),
    call(110, 64),
    call(120, 32),
    span("op", 190, 5),
]
FIRST = [ran(12, 64, GLOO), ran(113, 64, GLOO), ran(122, 32, GLOO)]
SECOND = [ran(23, 64, GLOO + 1)]


@pytest.mark.parametrize(
    ("rows", "calls"),
    [
        # The second thread is lost: in the first step its span is missing, in the second none.
        ([*MAIN, *FIRST, SECOND[0]], {12: None, 113: 110, 122: 120}),
        # The file ends in the calling thread: spans after its last event have no call in it.
        ([*SECOND, *FIRST, *MAIN[:5], MAIN[5]], {12: 10, 23: 20, 113: None, 122: None}),
        ([*SECOND, *FIRST, *MAIN[:3], MAIN[3]], {12: None, 23: None, 113: None, 122: None}),
        # The file ends behind the last span: whatever is lost is no span.
        ([*MAIN, *FIRST, *SECOND, span("op", 12, 1, tid=GLOO + 1)], {12: 10, 23: 20, 113: 110, 122: 120}),
        # No call is left: times and sizes stay.
        ([*FIRST, *SECOND, step(1, 0, 100)], {12: None, 23: None, 113: None, 122: None}),
    ],
)
def test_files_that_end_early(tmp_path: Path, rows: list[dict[str, object]], calls: dict[int, int | None]) -> None:
    *kept, lost = rows
    text = json.dumps(document(rows)).encode()
    cut = text.rindex(json.dumps(lost).encode()) + 20
    assert len(kept) == text[:cut].count(b'"ph"') - 1
    run = opened(tmp_path, text[:cut])
    table = run.collectives.drop_nulls("start_ns").select("start_ns", "issued_ns", "dur_ns", "payload_bytes")
    found = {start // 1000: (issued, took, size) for start, issued, took, size in table.rows()}
    assert {start: None if issued is None else issued // 1000 for start, (issued, _, _) in found.items()} == {
        start: of for start, of in calls.items() if start in found
    }
    assert {took for _, took, _ in found.values()} == {8000}
    has_calls = run.collectives["call"].count() > 0
    unknown = [size is None for issued, _, size in found.values() if issued is None]
    assert unknown == [has_calls] * len(unknown)
    unsure = run.work.filter(linked_by=UNSURE)
    assert unsure.height == (len(unknown) if has_calls else 0)
