"""Kind A of the reported cases, broken or odd bytes: a row is a file, with what is read of it and what is told of it.

Numbers in the ids are those of the cases; the public threads behind them stand above each table.
"""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path
from typing import Any

import pytest
import zstandard
from cases import TRUTH, compute_and_comm, opened, reported, rows
from kineto import COMMON, document, kernel, span, step, write

import tracekit
from tracekit import cli
from tracekit.analyzers.complete_steps import complete_steps
from tracekit.analyzers.overlap import overlap
from tracekit.read.decoding import batches, content

EVENT = span("PLACE", 1100, 5, note="ARGUMENT")
TEXT = json.dumps(document([*COMMON, EVENT])).encode()
WHOLE = 6
AT = TEXT.rindex(b'{"ph"')
NAME_AT = TEXT.index(b"PLACE")
ODD = "number that JSON does not know (inf, nan)"
ESCAPE, CONTROL, UTF8 = "illegal escape in text", "raw control characters in text", "invalid UTF-8 in text"
UNCLOSED = "ends early: the list of events is not closed"
OPEN = "ends early: the text after the events is not closed"


# pytorch/kineto#105; pytorch/pytorch#98432; pytorch/pytorch#113001 and #130622, google/perfetto#598
TOKENS = ["inf", "-inf", "nan", "NaN", "Infinity", "-Infinity", "+inf", "INF", "1.#INF", "-1.#IND00", "-nan(ind)"]
TOKENS += ["[1, inf, [nan]]", '{"a": {"b": -inf}}']
CHANGED: list[tuple[Any, ...]] = [
    *((f"A1 {token}", b'"ARGUMENT"', token.encode(), "PLACE", ODD) for token in TOKENS),
    ("A1 the word in a name", b"PLACE", b"loss: nan, inf", "loss: nan, inf", None),
    ("A1 word and token", b'PLACE", "pid": 1', b'nan", "pid": inf', "nan", ODD),
    ("A1 for a name", b'"PLACE"', b"nan", None, ODD),
    ("A2 no legal escape", b"PLACE", rb"torch\cuda\__init__.py(219): _lazy_init", None, ESCAPE),
    ("A2 legal escapes", b"PLACE", rb"a\new\table.py(1)", "a\new\table.py(1)", None),
    ("A2 u without digits", b"PLACE", rb"C:\users\x", None, ESCAPE),
    ("A2 u with digits", b"PLACE", rb"C:\u0041bc", "C:Abc", None),
    ("A2 share", b"PLACE", rb"\\host\share", r"\host\share", ESCAPE),
    ("A2 legal before illegal", b"PLACE", rb"C:\\a\q", r"C:\a\q", ESCAPE),
    ("A2 backslash at the end", b"PLACE", b"C:\\dir\\", "C:\\dir\\", ESCAPE),
    ("A2 in an argument", b"ARGUMENT", rb"C:\dir", "PLACE", ESCAPE),
    ("A2 in a key", b"note", rb"C:\dir", "PLACE", ESCAPE),
    ("A2 half a pair", b"PLACE", rb"a\ud800b", "a\ufffdb", "half of a surrogate pair in text"),
    ("A2 quote", b"PLACE", b'operator"" _s<int>', 'operator"" _s<int>', "unescaped quote in text"),
    *((f"A3 {byte:#04x}", b"PLACE", b"a%cb" % byte, f"a{chr(byte)}b", CONTROL) for byte in (0x0A, 0x01, 0x1F, 0, 9)),
    ("A3 two lines", b"PLACE", b"one\r\ntwo", "one\r\ntwo", CONTROL),
    ("A3 in a key", b"note", b"no\nte", "PLACE", CONTROL),
    ("A3 delete is legal", b"PLACE", b"a\x7fb", "a\x7fb", None),
    ("A3 line separator is legal", b"PLACE", "a\u2028b".encode(), "a\u2028b", None),
    ("A5 valid", b"PLACE", "Schritt Ψ".encode(), "Schritt Ψ", None),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "name", "what"), rows(CHANGED))
def test_an_event_is_kept_with_what_can_be_read_of_it(
    tmp_path: Path, old: bytes, new: bytes, name: str | None, what: str | None
) -> None:
    name = new.decode() if what == ESCAPE and name is None else name
    run = opened(tmp_path, TEXT.replace(old, new))
    assert run.events.height == WHOLE
    assert run.events["name"][WHOLE - 1] == name
    assert reported(run) == ([(what, AT, 1)] if what else [])
    assert compute_and_comm(run) == TRUTH
    assert run.steps["complete"].to_list() == [True]


def test_the_same_fault_in_two_events_is_one_row(tmp_path: Path) -> None:
    run = opened(tmp_path, TEXT.replace(b'"tid": 100', b'"tid": nan'))
    assert reported(run) == [(ODD, TEXT.index(b'{"ph"'), TEXT.count(b'"tid": 100'))]


INFO = b'{"backend": "nccl", "rank": 0, "world_size": 1}'
AROUND: list[tuple[Any, ...]] = [
    ("A1 inf before", b'"schemaVersion": 1', b'"schemaVersion": inf', ODD, 0),
    ("A1 NaN before", b'"schemaVersion": 1', b'"schemaVersion": NaN', ODD, 0),
    ("A1 inf behind", b"}]}", b'}], "x": [-inf]}', ODD, len(TEXT) - 2),
    ("A2 before", b'"schemaVersion": 1', rb'"file": "C:\dir"', ESCAPE, 0),
    ("A3 behind", b"}]}", b'}], "x": "a\nb"}', CONTROL, len(TEXT) - 2),
    ("A5 before", b"schemaVersion", b"schema\xffVersion", UTF8, 8),
    ("A5 behind", b"}]}", b'}], "x": "\xe9"}', UTF8, len(TEXT) + 7),
    ("A13 no object", INFO, b"[0, 1]", "distributedInfo that is not an object", 0),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "what", "offset"), rows(AROUND))
def test_odd_text_around_the_events_costs_neither_event_nor_step(
    tmp_path: Path, old: bytes, new: bytes, what: str, offset: int
) -> None:
    run = opened(tmp_path, TEXT.replace(old, new))
    assert (run.events.height, reported(run)) == (WHOLE, [(what, offset, 1)])
    assert run.ranks.select("rank", "complete").rows() == [(0, True)]


# pytorch/kineto#80; facebookresearch/HolisticTraceAnalysis#324 and #64
INVALID: list[tuple[Any, ...]] = [
    ("A5 ff fe", b"a\xff\xfeb", "a\ufffd\ufffdb", 1, 1),
    ("A5 half a character", b"a\xce", "a\ufffd", 1, 1),
    ("A5 overlong", b"\xc0\xaf", "\ufffd\ufffd", 0, 1),
    ("A5 surrogate", b"\xed\xa0\x80", "\ufffd\ufffd\ufffd", 0, 1),
    ("A5 latin-1, twice", b"\xe9t\xe9", "\ufffdt\ufffd", 0, 2),
]


@pytest.mark.parametrize("block", [4 * 2**20, NAME_AT + 1, NAME_AT + 2])
@pytest.mark.parametrize(("written", "read", "place", "count"), rows(INVALID))
def test_bytes_that_are_no_text_are_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: bytes, read: str, place: int, count: int, block: int
) -> None:
    monkeypatch.setattr(content, "BLOCK_BYTES", block)
    monkeypatch.setattr(batches, "BATCH_BYTES", block)
    run = opened(tmp_path, TEXT.replace(b"PLACE", written))
    assert run.events["name"][WHOLE - 1] == read
    assert reported(run) == [(UTF8, NAME_AT + place, count)]
    assert opened(tmp_path, TEXT.replace(b"PLACE", "Ψ".encode())).repairs.is_empty()


@pytest.mark.parametrize("written", [b"a\nb", b"a\x01b", b"a\x1fb", b"a\xff\xfeb", "Ψ".encode(), rb"a\cb", b'a"b'])
def test_what_we_write_is_strict_json_in_utf_8(tmp_path: Path, written: bytes) -> None:
    path = tmp_path / "rank0.json"
    path.write_bytes(json.dumps(document(COMMON)).encode().replace(b"ampere_sgemm_128x64", written))
    out = tmp_path / "work.json"
    assert cli.run(["show", "work", str(path), "-f", "json", "-o", str(out)]) == 0
    names = [row["name"] for row in json.loads(out.read_bytes().decode())["rows"]]
    assert names[0] == written.decode("utf-8", "replace")


def test_annotations_that_lost_their_names_are_counted(tmp_path: Path) -> None:
    lost = [span("unknown", 1010 + n, 1, cat="user_annotation") for n in range(3)]
    run = tracekit.open(write(tmp_path / "rank0.json", [*COMMON, *lost]))
    assert [(what, count) for what, count in run.repairs.select("what", "count").rows()] == [
        ('events named "unknown", as the profiler calls names that it cannot print', 3)
    ]


# bazelbuild/bazel#11863, gaogaotiantian/viztracer#231, google/trace-viewer#145, mlcommons/chakra#192
LATE = "späte Schicht"
TWO_STEPS = [*COMMON, step(6, 1200, 200), *kernel(LATE, 1210, 10, stream=7, correlation=9)]
TWO = json.dumps(document(TWO_STEPS), ensure_ascii=False).encode()
ASCII = json.dumps(document(TWO_STEPS)).encode()
LIST = json.dumps(TWO_STEPS).encode()
LAST = TWO.rindex(b'{"ph"')
CUTS: list[tuple[Any, ...]] = [
    ("A6a between events", TWO[: LAST - 2], 7, UNCLOSED),
    ("A6a after a comma", TWO[:LAST], 7, UNCLOSED),
    ("A6b inside a string", TWO[: TWO.rindex(b"Schicht") + 3], 7, UNCLOSED),
    ("A6b inside a key", TWO[: TWO.rindex(b'"tid"') + 2], 7, UNCLOSED),
    ("A6b inside an escape", ASCII[: ASCII.rindex(b"\\u00e4") + 3], 7, UNCLOSED),
    ("A6c inside a number", TWO[: TWO.rindex(b"1210") + 2], 7, UNCLOSED),
    ("A6 inside arguments", TWO[: TWO.rindex(b'"stream"')], 7, UNCLOSED),
    ("A6 after the arguments", TWO[: TWO.rindex(b"}]}")], 7, UNCLOSED),
    ("A6 before ]}", TWO[:-2], 8, UNCLOSED),
    ("A6 before }", TWO[:-1], 8, OPEN),
    ("A6 in the text behind", TWO[:-1] + b', "traceName": "/t', 8, OPEN),
    ("A6 list before ]", LIST[:-1], 8, UNCLOSED),
    ("A6 list inside a string", LIST[: LIST.rindex(b"Schicht") + 3], 7, UNCLOSED),
]  # fmt: skip


@pytest.mark.parametrize(("data", "kept", "what"), rows(CUTS))
def test_a_file_that_ends_early_keeps_every_complete_event(tmp_path: Path, data: bytes, kept: int, what: str) -> None:
    run = opened(tmp_path, data)
    assert (run.events.height, reported(run)) == (kept, [(what, len(data), 1)])
    assert run.steps.select("step", "complete", "reason").rows() == [(5, True, None), (6, False, what)]
    assert complete_steps(run).rows() == [(0, 5)]
    assert overlap(run).select("step", "overlapped_ns", "exposed_ns").rows() == [(5, 50_000, 50_000)]


# ROCm/MAD#224
MANY = json.dumps(document([step(1, 0, 1e6), *(span(f"op {n * 7919 % 1000}", n, 1) for n in range(3000))])).encode()
HALF = len(MANY) // 2
TWO_MEMBERS = gzip.compress(MANY[:HALF]), gzip.compress(MANY[HALF:])
ENDLESS = [
    ("A7 without its trailer", gzip.compress(MANY)[:-8]),
    ("A7 one byte short", gzip.compress(MANY)[:-1]),
    ("A7 minus 30 %", gzip.compress(MANY)[: len(gzip.compress(MANY)) * 7 // 10]),
    ("A7 stored, minus 30 %", gzip.compress(MANY, 0)[: len(MANY) * 7 // 10]),
    ("A7 second member without its trailer", TWO_MEMBERS[0] + TWO_MEMBERS[1][:-8]),
    ("A7 second member minus 30 %", TWO_MEMBERS[0] + TWO_MEMBERS[1][: len(TWO_MEMBERS[1]) * 7 // 10]),
]


def inflated(data: bytes) -> bytes:
    """What the standard library makes of gzip members of which the last is cut."""
    text = b""
    while data:
        member = zlib.decompressobj(wbits=31)
        text += member.decompress(data)
        data = member.unused_data
    return text


@pytest.mark.parametrize("data", rows(ENDLESS))
def test_gzip_without_its_end_ends_early_and_is_not_corrupt(tmp_path: Path, data: bytes) -> None:
    text = inflated(data)
    run = opened(tmp_path, data, "rank0.json.gz")
    end = run.repairs["offset"][0]
    # A decompressor may hold back what could still become part of a longer match.
    assert end == len(text) if text == MANY else len(text) - 8 < end <= len(text)
    assert run.events.height == text[:end].count(b'"args": {}}')
    cut = [("ends early: gzip data without its end", end, 1), (UNCLOSED, end, 1)]
    assert reported(run) == cut[: 1 if text == MANY else 2]
    assert run.steps["complete"].to_list() == [False]


def flipped(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


PACKED, STORED, LARGE = gzip.compress(TEXT), gzip.compress(TEXT, 0), gzip.compress(MANY)
SUMMED_END = zstandard.ZstdCompressor(write_checksum=True).compress(TEXT[AT:])
SUMMED, FRAMES = (zstandard.ZstdCompressor(write_checksum=True).compress(text) for text in (TEXT, MANY))
CORRUPT: list[tuple[Any, ...]] = [
    ("A7 flipped byte", flipped(LARGE, len(LARGE) // 2), "gzip", None),
    ("A7 flipped byte of a second member", TWO_MEMBERS[0] + flipped(TWO_MEMBERS[1], 3000), "gzip", None),
    ("A7 flipped byte of a name", flipped(STORED, STORED.index(b"PLACE")), "gzip", WHOLE),
    ("A7 flipped byte of the sum", flipped(PACKED, len(PACKED) - 8), "gzip", WHOLE),
    ("A7 flipped byte of the size", flipped(PACKED, len(PACKED) - 4), "gzip", WHOLE),
    ("A7 zstd, flipped byte of the sum", flipped(SUMMED, len(SUMMED) - 1), "zstd", WHOLE),
    ("A7 zstd, flipped byte", flipped(FRAMES, len(FRAMES) * 9 // 10), "zstd", None),
]


@pytest.mark.parametrize(("data", "form", "kept"), rows(CORRUPT))
def test_corrupt_data_is_not_said_to_end_early(tmp_path: Path, data: bytes, form: str, kept: int | None) -> None:
    run = opened(tmp_path, data, "rank0.json.gz")
    assert [what.split(" (")[0] for what, _, _ in reported(run) if "data" in what] == [f"corrupt: {form} data"]
    assert not any(what.startswith("ends early") for what, _, _ in reported(run))
    assert run.events.height == kept if kept else 100 < run.events.height < 3001
    if kept:
        assert reported(run)[0][1:] == (len(TEXT), 1)
    assert run.steps["complete"].to_list() == [False]


SKIPPED = b"\x50\x2a\x4d\x18\x04\0\0\0size"
ZSTD: list[tuple[Any, ...]] = [
    ("A7 zstd without its sum", SUMMED[:-4], [("ends early: zstd data without its end", len(TEXT), 1)]),
    ("A7 zstd, second frame without its sum", zstandard.compress(TEXT[:AT]) + SUMMED_END[:-4],
     [("ends early: zstd data without its end", len(TEXT), 1)]),
    ("A7 zstd, two frames", zstandard.compress(TEXT[:AT]) + zstandard.compress(TEXT[AT:]), []),
    ("A7 zstd, frame to skip behind", SUMMED + SKIPPED, []),
]  # fmt: skip


@pytest.mark.parametrize(
    ("data", "repairs"),
    [
        *rows(ZSTD),
        pytest.param(SKIPPED + SUMMED, [], id="A7 zstd, frame to skip before"),
    ],
)
def test_zstd_frames(tmp_path: Path, data: bytes, repairs: list[tuple[Any, ...]]) -> None:
    run = opened(tmp_path, data, "rank0.json.zst")
    assert (run.events.height, reported(run)) == (WHOLE, repairs)
