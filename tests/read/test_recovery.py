"""Damaged files: what was whole is kept, what could be mended is mended, and both are told with their place."""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path
from typing import Any

import pytest
import zstandard
from kineto import COMMON, document, kernel, memory, span, step

import tracekit
from tracekit.model.run import Run
from tracekit.read import decode
from tracekit.read.decoding import batches, content

PLAIN = json.dumps(document(COMMON), indent=2).encode()
COPY = kernel(
    "Memcpy HtoD", 1020, 5, stream=9, correlation=7, cat="gpu_memcpy", args={"memory bandwidth (GB/s)": "BANDWIDTH"}
)


def opened(tmp_path: Path, data: bytes, name: str = "rank0.json") -> Run:
    (tmp_path / name).write_bytes(data)
    return tracekit.open(tmp_path / name)


def repairs(run: Run) -> list[tuple[str, int]]:
    return run.repairs.select("what", "count").rows()


def test_damage_in_one_batch_of_many_costs_one_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content, "BLOCK_BYTES", 4096)
    monkeypatch.setattr(batches, "BATCH_BYTES", 4096)
    monkeypatch.setattr(batches, "_SEARCH_BYTES", 512)
    events = [step(1, 0, 1e6), *(span(f"op {i}", i, 1) for i in range(2000))]
    text = json.dumps(document(events)).encode()
    whole = opened(tmp_path, text)
    assert (whole.events.height, repairs(whole)) == (2001, [])
    broken = text.replace(b'"name": "op 777", "pid"', b'"name" "op 777" "pid"')
    run = opened(tmp_path, broken)
    assert run.events.height == 2000
    assert set(whole.events["name"]) - set(run.events["name"]) == {"op 777"}


def rows(run: Run) -> list[tuple[str, int, int]]:
    return run.events.filter(ph="X").select("name", "ts_ns", "dur_ns").rows()


ABSOLUTE = [
    f'{{"ph": "X", "cat": "cpu_op", "name": "op {n}", "pid": 1, "tid": 1, "ts": 169923626707105{n}.12{n}, "dur": 0.1}}'
    for n in range(4)
]
EXACT = [(f"op {n}", 1_699_236_267_071_050_120 + 1001 * n, 100) for n in range(4)]


def test_absolute_times_stay_exact_where_a_neighbour_is_damaged(tmp_path: Path) -> None:
    # Damaged and intact events of one stretch, with the digits that no float holds.
    text = "[" + ", ".join([ABSOLUTE[0], ABSOLUTE[1].replace("op 1", "op\n1"), *ABSOLUTE[2:]]) + "]"
    run = opened(tmp_path, text.encode())
    assert rows(run) == [EXACT[0], ("op\n1", *EXACT[1][1:]), *EXACT[2:]]


def test_events_after_the_end_of_the_list_are_kept(tmp_path: Path) -> None:
    text = "[" + ", ".join(ABSOLUTE[:2]) + "]" + ', "note": 1, ' + ", ".join(ABSOLUTE[2:]) + "]"
    run = opened(tmp_path, text.encode())
    assert rows(run) == EXACT
    assert repairs(run) == [("corrupt: text between events", 1)]


@pytest.mark.parametrize("between", [" ", ", \v ", ",,", ", [], "])
def test_damage_between_events_costs_none_and_is_told(tmp_path: Path, between: str) -> None:
    text = "[" + ", ".join(ABSOLUTE[:2]) + between + ", ".join(ABSOLUTE[2:]) + "]"
    run = opened(tmp_path, text.encode())
    assert rows(run) == EXACT
    assert repairs(run) == [("corrupt: text between events", 1)]


@pytest.mark.parametrize("key", [b"traceEvents", b'"traceEvents"', b'{"schemaVersion": 1'])
def test_a_damaged_head_costs_no_event(tmp_path: Path, key: bytes) -> None:
    text = json.dumps(document(COMMON)).encode()
    assert key in text
    run = opened(tmp_path, text.replace(key, b"?" * len(key)))
    assert run.events.height == len(COMMON)
    assert all(what.startswith("corrupt") for what, _ in repairs(run))


def test_invalid_bytes_in_text_that_nobody_needs_are_told(tmp_path: Path) -> None:
    text = json.dumps(document([*COMMON, *COPY])).encode().replace(b"memory bandwidth", b"memory\xffbandwidth")
    assert repairs(opened(tmp_path, text)) == [("invalid UTF-8 in text", 1)]


@pytest.mark.parametrize("mended", ['a"b', "a\\qb", 'a "quoted" \\word" b'])
def test_the_search_goes_on_behind_a_mended_event(tmp_path: Path, mended: str) -> None:
    # Mending makes text longer, also behind the event where no boundary is seen: the place to go on is the written one.
    broken = '{"ph": "X", "name": "' + mended + '", "ts": 5, "dur": 1}'
    text = "[" + broken + " " + broken + " " + ", ".join(ABSOLUTE) + "]"
    run = opened(tmp_path, text.encode())
    assert rows(run)[-4:] == EXACT
    assert run.events.height == 6


def test_objects_in_arguments_are_no_places_to_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content, "BLOCK_BYTES", 1000)
    monkeypatch.setattr(batches, "BATCH_BYTES", 1000)
    listed = [{"id": n, "name": "part"} for n in range(60)]
    events = [span(f"op {n}", n, 1) | {"args": {"parts": listed}} for n in range(20)]
    run = opened(tmp_path, json.dumps(document(events)).encode())
    assert (run.events.height, repairs(run)) == (20, [])


def test_ends_of_files_that_differ(tmp_path: Path) -> None:
    text = json.dumps(document(COMMON)).encode()
    assert text.endswith(b"]}")
    found = {end: repairs(opened(tmp_path, text[:-2] + end)) for end in (b"]}", b"]", b"", b"]} tail", b"]}}")}
    assert {end: [what.split(":")[0] for what, _ in rows] for end, rows in found.items()} == {
        b"]}": [], b"]": ["ends early"], b"": ["ends early"], b"]} tail": ["corrupt"], b"]}}": ["corrupt"],
    }  # fmt: skip


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress])
@pytest.mark.parametrize("block", [700, 8 * 2**20])
def test_compressed_data_is_read_to_its_last_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pack: Any, block: int
) -> None:
    # Much text from few bytes: what the decompressor holds back for want of room comes too.
    monkeypatch.setattr(content, "BLOCK_BYTES", block)
    monkeypatch.setattr(batches, "BATCH_BYTES", block)
    text = json.dumps(document([step(1, 0, 1e6), *(span("op", n, 1) for n in range(2000))])).encode()
    packed = pack(text)
    assert opened(tmp_path, packed).events.height == 2001
    cut = opened(tmp_path, packed[:-5])
    assert cut.events.height == 2001 if pack is gzip.compress else cut.events.height > 0
    assert repairs(cut)[0][0].startswith("ends early")


def test_zeros_and_members_behind_a_gzip_member(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    half = len(PLAIN) // 2
    first, second = gzip.compress(PLAIN[:half]), gzip.compress(PLAIN[half:])
    # The next member begins where a chunk of the file ends.
    monkeypatch.setattr(content, "_CHUNK_BYTES", len(first) + 1)
    assert repairs(opened(tmp_path, first + second)) == []
    assert repairs(opened(tmp_path, first + second + bytes(512))) == []
    assert repairs(opened(tmp_path, first + second + b"?")) == [("corrupt: bytes after the gzip data", 1)]


def test_damaged_zstd_is_read_up_to_the_damage(tmp_path: Path) -> None:
    half = PLAIN.rindex(b"},") + 2
    broken = bytearray(zstandard.compress(PLAIN[half:]))
    broken[-3] ^= 0xFF
    run = opened(tmp_path, zstandard.compress(PLAIN[:half]) + bytes(broken))
    assert run.events.height >= len(COMMON) - 1
    assert any(what.startswith("corrupt: zstd") for what, _ in repairs(run))


@pytest.mark.parametrize(
    "bomb", [b'{"a":' * 200_000, b'{"ph":' * 200_000, b'{"a": "' * 100_000, b'{"name": "\\q' * 50_000]
)
@pytest.mark.slow
def test_damage_made_to_be_searched_forever_ends(tmp_path: Path, bomb: bytes) -> None:
    begin = time.process_time()
    run = opened(tmp_path, b"[" + ABSOLUTE[0].encode() + b", " + bomb + b", " + ABSOLUTE[1].encode() + b"]")
    assert time.process_time() - begin < 20
    assert rows(run)[0] == EXACT[0]
    assert repairs(run) != []


def test_allocations_before_another_file_begins_are_kept(tmp_path: Path) -> None:
    instants = [memory(1100 + n, 64, 64, 64) for n in range(3)]
    tail = json.dumps(instants).encode()[1:-1]
    run = opened(tmp_path, tail + b", " + json.dumps(document(COMMON)).encode())
    assert run.events.filter(name="[memory]")["ts_ns"].to_list() == [1_100_000, 1_101_000, 1_102_000]
    assert run.events.height == len(COMMON) + 3


def test_a_trace_without_a_single_time_has_tables(tmp_path: Path) -> None:
    run = opened(tmp_path, json.dumps(document([{"ph": "X", "cat": "cpu_op", "name": "aten::mm"}])).encode())
    assert run.steps.select("step", "start_ns", "end_ns").rows() == [(None, None, None)]
    assert (run.work.height, run.collectives.height, run.allocations.height) == (0, 0, 0)


@pytest.mark.parametrize("inner", ["id", "name", "ph"])
@pytest.mark.parametrize("first", ["ph", "name", "cat"])
def test_objects_in_arguments_may_look_like_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str, inner: str
) -> None:
    monkeypatch.setattr(batches, "BATCH_BYTES", 3000)
    listed = [{inner: f"part {n}", "tid": n} for n in range(12)]
    plain = [span(f"op {n}", n, 1) | {"args": {"parts": listed, "External id": n}} for n in range(200)]
    events = [{first: event[first], **event} for event in plain]
    run = opened(tmp_path, json.dumps(document(events)).encode())
    assert repairs(run) == []
    assert run.events["external_id"].to_list() == [*range(200)]


def test_events_that_begin_with_another_key_later_do_not_pile_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "BATCH_BYTES", 3000)
    sizes: list[int] = []
    decode_batch = decode._undamaged

    def measured(batch: batches.Batch, *args: Any, **kwargs: Any) -> Any:
        sizes.append(len(batch.text))
        return decode_batch(batch, *args, **kwargs)

    monkeypatch.setattr(decode, "_undamaged", measured)
    others = [{"name": f"op {n}", **span(f"op {n}", n, 1)} for n in range(2000)]
    run = opened(tmp_path, json.dumps(document([*COMMON, *others])).encode())
    assert run.events.height == len(COMMON) + 2000
    assert max(sizes) < 40_000


def test_an_address_of_64_bits_is_the_same_where_its_event_is_mended(tmp_path: Path) -> None:
    instant = memory(1100, 64, 2**64 - 8, 64)
    text = json.dumps(document([*COMMON, instant])).encode()
    damaged = text.replace(b'"Device Id": -1', b'"Device Id": -1, "raw": "\x01"')
    assert [opened(tmp_path, t).allocations["address"].to_list() for t in (text, damaged)] == [[-8], [-8]]


def test_zeros_between_gzip_members_are_no_damage_of_a_later_one(tmp_path: Path) -> None:
    events = [span(f"op {n}", n, 1) for n in range(300)]
    text = json.dumps(document([*COMMON, *events])).encode()
    first, second = gzip.compress(text[:9000], mtime=0), gzip.compress(text[9000:], mtime=0)
    broken = bytearray(second)
    broken[-20] ^= 0x55
    run = opened(tmp_path, first + b"\0\0\0" + bytes(broken))
    bare = opened(tmp_path, first + bytes(broken), "rank1.json")
    assert run.events["name"].to_list() == bare.events["name"].to_list()
    assert run.events.height > 200
