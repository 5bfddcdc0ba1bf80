"""Kind A of the reported cases, sound bytes of an odd shape: names, empty files, duplicate keys, mixed types, bombs."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import zstandard
from cases import TRUTH, compute_and_comm, opened, refused, reported, rows
from kineto import COMMON, GEMM, document, span, step, write

import tracekit
from tracekit.read.decoding import batches, content

TEXT = json.dumps(document(COMMON)).encode()
LIST = json.dumps(COMMON).encode()
EVENTS = TEXT[TEXT.index(b"[") + 1 : -2]
N = len(COMMON)

# stanford-crfm/helm#660, meta-pytorch/torchtune#1825
NAMES = ["r0.json", "r0.json.gz", "r0.pt.trace.json.gz", "r0.gzip", "r0.json.zst", "R0.JSON.GZ"]
PACKED = {
    "plain": TEXT,
    "gzip": gzip.compress(TEXT),
    "gzip members": gzip.compress(TEXT[:200]) + gzip.compress(TEXT[200:]),
    "zstd": zstandard.compress(TEXT),
}


@pytest.mark.parametrize("data", [pytest.param(data, id=f"A8 {name}") for name, data in PACKED.items()])
@pytest.mark.parametrize("name", NAMES)
def test_content_decides_not_the_suffix(tmp_path: Path, name: str, data: bytes) -> None:
    assert opened(tmp_path, data, name).events.height == N
    run = tracekit.open(tmp_path)
    assert run.ranks.select("rank", "rank_from", "num_events").rows() == [(0, "distributedInfo", N)]
    assert reported(run) == []


# google/perfetto#432, pytorch/kineto#760
NOTHING, FOREIGN, EMPTY = "the trace holds no events", "not a Kineto trace", "the file is empty"
UNUSABLE: list[tuple[Any, ...]] = [
    ("A9 0 bytes", b"", EMPTY),
    ("A9 blanks", b" \r\n\t", EMPTY),
    ("A9 gzip of nothing", gzip.compress(b""), EMPTY),
    ("A9 zstd of nothing", zstandard.compress(b""), EMPTY),
    ("A9 []", b"[]", NOTHING),
    ("A9 [", b"[", f"{NOTHING} (ends early"),
    ("A9 [null]", b"[null]", f"{NOTHING} (corrupt"),
    ("A9 [1, 2]", b"[1, 2]", f"{NOTHING} (corrupt"),
    ("A9 [{}]", b"[{}]", f"{FOREIGN} (its 1 events"),
    ("A9 {}", b"{}", FOREIGN),
    ("A9 null", b"null", FOREIGN),
    ("A9 a number", b"7", FOREIGN),
    ("A9 text", b'"text"', FOREIGN),
    ("A9 no list", b'{"schemaVersion": 1}', FOREIGN),
    ("A9 empty list", b'{"traceEvents": []}', NOTHING),
    ("A9 null for a list", b'{"traceEvents": null}', FOREIGN),
    ("A9 object for a list", b'{"traceEvents": {"a": 1}}', FOREIGN),
    ("A9 gzip of {}", gzip.compress(b"{}"), FOREIGN),
    ("A9 traces in a list", b"[" + TEXT + b"]", FOREIGN),
    ("A9 metadata only", b'[{"ph":"M","name":"process_name","pid":1}]', "the phases 'M', none is a complete"),
    ("A9 begins and ends", b'[{"ph":"B","name":"a","ts":1},{"ph":"E","ts":2}]', "the phases 'B', 'E', none is"),
    ("A9 a word", b"hello", "neither JSON nor"),
    ("A9 zeros", bytes(100), "neither JSON nor"),
    ("A6d after the bracket", b'{"traceEvents": [', f"{NOTHING} (ends early"),
    ("A6 in the first event", b'{"traceEvents": [{"ph": "X", "na', f"{NOTHING} (ends early"),
    ("A6 before the events", b'{"schemaVersion": 1, "traceEv', "neither JSON nor"),
    ("A7 the first bytes of gzip", b"\x1f\x8b\x08\x00garbage", "nothing can be read (ends early: gzip"),
    ("A7 the first byte of zstd", zstandard.compress(TEXT)[:5], "nothing can be read (ends early: zstd"),
    ("A depth without end", b'{"traceEvents": [{"ph": "X", "args": ' + b"[" * 200_000, NOTHING),
    ("A objects without end", b'{"a":' * 100_000, "neither JSON nor"),
]  # fmt: skip


@pytest.mark.parametrize(("data", "sentence"), rows(UNUSABLE))
def test_a_file_without_events_gets_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], data: bytes, sentence: str
) -> None:
    path = tmp_path / "rank0.json"
    path.write_bytes(data)
    assert sentence in refused(path, capsys)
    assert sentence in refused(tmp_path, capsys)


COMMA, LOST = "comma behind the last event", "corrupt: event cannot be read"
ACCEPTED: list[tuple[Any, ...]] = [
    ("A9 list", LIST, [], True),
    ("A9 list, spaced", b"\r\n" + json.dumps(COMMON, indent=4).encode() + b"\n\n", [], True),
    ("A9 list with a mark of order", b"\xef\xbb\xbf" + LIST, [], True),
    ("A9 list with a last comma", LIST[:-1] + b",\n]", [(COMMA, len(LIST) - 1, 1)], True),
    ("A9 object with a last comma", TEXT[:-2] + b" , ]}", [(COMMA, len(TEXT) - 2, 1)], True),
    ("A9 object in the middle", b'{"a": [{"b": 1}], ' + TEXT[1:-1] + b', "z": {"c": []}}', [], True),
    ("A9 last event lost", TEXT[:-2] + b', {"ph": "X" 1}]}', [(LOST, len(TEXT), 1)], False),
    ("A9 list, last event lost", LIST[:-1] + b', {"ph": "X" 1}]', [(LOST, len(LIST) + 1, 1)], False),
]  # fmt: skip


@pytest.mark.parametrize(("data", "repairs", "complete"), rows(ACCEPTED))
def test_forms_of_the_list_of_events(tmp_path: Path, data: bytes, repairs: list[Any], complete: bool) -> None:
    run = opened(tmp_path, data, "rank3.json")
    assert (run.events.height, compute_and_comm(run), reported(run)) == (N, TRUTH, repairs)
    assert run.steps["complete"].to_list() == [complete]
    told_rank = b"distributedInfo" in data
    assert run.ranks.select("rank", "rank_from").rows() == [(0, "distributedInfo") if told_rank else (3, "file name")]


# pytorch/pytorch#33961. The last of equal keys counts, whichever way a file is read.
SEVEN = json.dumps(document([*COMMON, span("op", 7, 5, External_id=3)])).encode()
DUPLICATES: list[tuple[Any, ...]] = [
    ("A11 ts", b'"ts": 7', b'"ts": 9, "ts": 7'),
    ("A11 ts of another type", b'"ts": 7', b'"ts": "9.5", "ts": 7.0'),
    ("A11 ts with digits", b'"ts": 7', b'"ts": 1699236267071058.123, "ts": 7'),
    ("A11 dur", b'"dur": 5', b'"dur": null, "dur": 5'),
    ("A11 tid", b'"tid": 100, "ts": 7', b'"tid": 0, "tid": 100, "ts": 7'),
    ("A11 name", b'"name": "op"', b'"name": "other", "name": "op"'),
    ("A11 ph", b'"ph": "X", "cat": "cpu_op"', b'"ph": "M", "cat": "cpu_op", "ph": "X"'),
    ("A11 args", b'"args": {"External id": 3}', b'"args": {"External id": 9, "b": 1}, "args": {"External id": 3}'),
    ("A11 in args", b'"External id": 3', b'"External id": 9, "External id": 3'),
    ("A11 rank", b'"rank": 0', b'"rank": 9, "rank": 0'),
    ("A11 distributedInfo", b'"distributedInfo": {', b'"distributedInfo": {"rank": 9}, "distributedInfo": {'),
    ("A11 base", b'"schemaVersion"', b'"baseTimeNanoseconds": 9, "baseTimeNanoseconds": 0, "schemaVersion"'),
]


@pytest.mark.parametrize("damage", [b"op", b"o\\qp"])
@pytest.mark.parametrize(("old", "new"), rows(DUPLICATES))
def test_the_last_of_equal_keys_counts(tmp_path: Path, old: bytes, new: bytes, damage: bytes) -> None:
    run = opened(tmp_path, SEVEN.replace(old, new).replace(b'"op"', b'"%s"' % damage))
    assert run.events.filter(run.events["name"] == damage.decode()).select(
        "ph", "tid", "ts_ns", "dur_ns", "external_id"
    ).rows() == [("X", 100, 7000, 5000, 3)]
    assert run.ranks.select("rank", "rank_from").rows() == [(0, "distributedInfo")]
    assert [what for what, *_ in reported(run)] == ([] if damage == b"op" else ["illegal escape in text"])


def test_of_two_lists_the_same_is_kept_whatever_the_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = TEXT[:-1] + b', "traceEvents": [' + json.dumps(span("op", 1, 1)).encode() + b"]}"
    at_once = opened(tmp_path, data).events["name"].to_list()
    monkeypatch.setattr(content, "BLOCK_BYTES", 300)
    monkeypatch.setattr(batches, "BATCH_BYTES", 300)
    assert opened(tmp_path, data).events["name"].to_list() == at_once


# Ascend/pytorch#133, google/perfetto#393
PLACED = {"pid": 1, "tid": 100, "ts_ns": 1_150_000, "dur_ns": 3_000, "external_id": None, "correlation": None}
TYPES: list[tuple[Any, ...]] = [
    *((f"A13 pid {word}", {"pid": word}, {"pid": None}) for word in ("Spans", "Traces", None, 1.5, [1], 2**70)),
    ("A13 tid text", {"tid": "stream 7"}, {"tid": 7}),
    ("A13 tid text alone", {"tid": "17"}, {"tid": 17}),
    ("A13 pid of 64 bits", {"pid": 2**64 - 1}, {"pid": None}),
    ("A13 ts text", {"ts": "1150.5"}, {"ts_ns": 1_150_500}),
    ("A13 ts whole text", {"ts": "1150"}, {}),
    ("A13 ts float", {"ts": 1150.0}, {}),
    ("A13 dur text", {"dur": "3.25"}, {"dur_ns": 3_250}),
    ("A13 number for a category", {"cat": 3}, {}),
    ("A13 no category", {"cat": None}, {}),
    ("A13 id beyond 64 bits", {"id": 2**70}, {}),
    *((f"A13 args {args!r}", {"args": args}, {}) for args in (None, {}, {"stream": {}, "device": [], "Input Dims": 3})),
    ("A13 ids as text", {"args": {"External id": "7", "correlation": "9"}}, {"external_id": 7, "correlation": 9}),
    ("A13 ids as floats", {"args": {"External id": 7.0, "correlation": 9.5}}, {"external_id": 7}),
    ("A13 ids beyond 64 bits", {"args": {"External id": 2**64, "correlation": -(2**63) - 1}}, {}),
    ("A13 an id of 64 bits", {"args": {"External id": 2**64 - 2}}, {}),
]  # fmt: skip


@pytest.mark.parametrize(("changed", "read"), rows(TYPES))
def test_a_field_of_another_type_costs_no_event(tmp_path: Path, changed: dict[str, Any], read: dict[str, Any]) -> None:
    run = tracekit.open(write(tmp_path / "rank0.json", [*COMMON, {**span("op", 1150, 3), **changed}]))
    assert run.events.filter(name="op").select(list(PLACED)).row(0, named=True) == PLACED | read
    assert (compute_and_comm(run), reported(run)) == (TRUTH, [])


@pytest.mark.parametrize("args", [[], "text", 7, True])
def test_arguments_that_are_no_object_are_told(tmp_path: Path, args: Any) -> None:
    run = tracekit.open(write(tmp_path / "rank0.json", [*COMMON, span("op", 1150, 3) | {"args": args}]))
    assert (run.events.height, compute_and_comm(run)) == (N + 1, TRUTH)
    assert [(what, count) for what, _, count in reported(run)] == [("arguments that cannot be read", 1)]


@pytest.mark.parametrize("ph", ["X", "i"])
def test_a_type_or_a_field_that_comes_late_is_kept(tmp_path: Path, ph: str) -> None:
    early = [{"ph": ph, "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1, "ts": n} for n in range(150)]
    run = tracekit.open(write(tmp_path / "rank0.json", [*early, span("late", 200.5, 3), span("later", "300", 1.5)]))
    assert run.events["ts_ns"].to_list() == [*range(0, 150_000, 1000), 200_500, 300_000]
    assert run.work.select("name", "start_ns", "dur_ns").rows() == [("late", 200_500, 3_000), ("later", 300_000, 1_500)]
    assert reported(run) == ([("no duration, or an impossible one", None, 150)] if ph == "X" else [])


DEEP = b'{"ph": "X", "name": "deep", "ts": 1, "dur": 1, "args": {"a": ' + b"[" * 50_000 + b"]" * 50_000 + b"}}, "
LONG = b'{"ph": "X", "name": "%s", "pid": 1, "tid": 1, "ts": 1100, "dur": 5}, '
START = TEXT.index(b"[") + 1
LARGE, CONTROL = "number beyond 64 bits", "raw control characters in text"
BOMBS: list[tuple[Any, ...]] = [
    ("A depth in an event", DEEP, N, [(LOST, START, 1)]),
    ("A long name", LONG % (b"x" * 5 * 2**20), N + 1, []),
    ("A long name with a line break", LONG % (b"\n" + b"x" * 2**20), N + 1, [(CONTROL, START, 1)]),
    ("A name without its end", LONG.replace(b'%s"', b"x" * 2**20), N, [(LOST, START, 1)]),
    ("A number of a million digits", LONG.replace(b"1100", b"1" * 10**6), N + 1,
     [("no start time, or an impossible one", None, 1), (LARGE, START, 1)]),
    ("A large exponent", LONG.replace(b"1100", b"1e999999999"), N + 1,
     [("no start time, or an impossible one", None, 1), (LARGE, START, 1)]),
    ("A many keys", b'{"ph": "M", %s "name": "a"}, ' % b"".join(b'"k%d": 1, ' % n for n in range(10**5)), N, []),
]  # fmt: skip


@pytest.mark.parametrize(("first", "kept", "repairs"), rows(BOMBS))
def test_an_event_made_to_exhaust_its_reader_costs_itself_only(
    tmp_path: Path, first: bytes, kept: int, repairs: list[tuple[Any, ...]]
) -> None:
    run = opened(tmp_path, TEXT[:START] + first + TEXT[START:])
    assert (run.events.height, compute_and_comm(run), reported(run)) == (kept, TRUTH, repairs)


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress])
@pytest.mark.slow
def test_a_bomb_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, pack: Any
) -> None:
    path = tmp_path / "rank0.json.gz"
    path.write_bytes(b"".join([pack(b'{"traceEvents": ['), *([pack(b" " * 2**22)] * 8), pack(EVENTS + b"]}")]))
    assert tracekit.open(path, cache=False).events.height == N
    monkeypatch.setattr(content, "_EXPANSION_MATTERS_FROM", 2**24)
    assert "over 400-fold; this is a decompression bomb, not a trace" in refused(path, capsys)


@pytest.mark.parametrize("between", [b"", b"\n", b","])
def test_two_ranks_in_one_file_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], between: bytes) -> None:
    first = json.dumps(document(COMMON, rank=0, world_size=2)).encode()
    second = json.dumps(document([step(6, 2000, 200), *GEMM], rank=1, world_size=2)).encode()
    path = tmp_path / "rank0.json"
    path.write_bytes(first + between + second)
    assert "several ranks wrote this file" in refused(path, capsys)
