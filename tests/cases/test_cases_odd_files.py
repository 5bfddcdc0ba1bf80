"""Hostile and odd files: read with what was wrong told, or refused in a sentence; nothing hangs or grows."""

from __future__ import annotations

import gzip
import io
import json
import os
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard
from kineto import COMMON, document, kernel, mark, span, write

import tracekit
from tracekit import cli
from tracekit.errors import InputError, UsageError
from tracekit.model.patterns import Pattern

pytestmark = pytest.mark.slow

TEXT = json.dumps(document(COMMON)).encode()
LONG = json.dumps(document([*COMMON, *(span(f"op {n}", n, 1) for n in range(1500))])).encode()
LONGER = json.dumps(document([*COMMON, *(span(f"op {n}", n, 1) for n in range(9000))])).encode()
DEPTH = 100_000


def zipped(files: list[tuple[str, bytes]], method: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, data in files:
            archive.writestr(name, data)
    return buffer.getvalue()


def with_wrong_sum(text: bytes, method: int = zipfile.ZIP_STORED, name: str = "rank0.json") -> bytes:
    """A zip whose member's checksum is that of another text."""
    data = zipped([(name, text)], method)
    at = data.rindex(b"PK\x01\x02") + 16
    wrong = struct.pack("<I", struct.unpack("<I", data[at : at + 4])[0] ^ 1)
    return data[:14] + wrong + data[18:at] + wrong + data[at + 4 :]


def of_claimed_size(data: bytes, size: int) -> bytes:
    at = data.rindex(b"PK\x01\x02") + 24
    return data[:at] + struct.pack("<I", size) + data[at + 4 :]


def of_other_local_name(data: bytes) -> bytes:
    return data[:30] + b"other" + data[35:]


def links() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, kind in (("rank1.json", tarfile.SYMTYPE), ("rank2.json", tarfile.LNKTYPE)):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "/etc/hostname"
            archive.addfile(info)
        info = tarfile.TarInfo("../rank0.json")
        info.size = len(TEXT)
        archive.addfile(info, io.BytesIO(TEXT))
    return buffer.getvalue()


def with_args(args: str) -> bytes:
    return TEXT.replace(b'"args": {}', f'"args": {args}'.encode(), 1)


def with_rows(*rows: dict[str, Any]) -> bytes:
    return json.dumps(document([*COMMON, *rows])).encode()


NESTED = b'{"a":' * DEPTH + b"1" + b"}" * DEPTH
HUGE = b"9" * 10_000


@pytest.mark.parametrize(
    ("name", "data", "told"),
    [
        # The times of the common fixture come out, with this among the repairs (or none at all).
        ("a.zip", with_wrong_sum(LONGER), "corrupt: data of the archive (Bad CRC-32"),
        ("a.zip", with_wrong_sum(LONGER, zipfile.ZIP_DEFLATED), "corrupt: data of the archive (Bad CRC-32"),
        ("a.zip", of_claimed_size(zipped([("rank0.json", TEXT)]), 0xFFFFFFF0), ""),
        ("a.tar", links(), "not a file but a link or a device"),
        ("rank0.json", with_args('{"x": ' + "[" * DEPTH + "]" * DEPTH + "}"), "corrupt: event cannot be read"),
        ("rank0.json", TEXT.replace(b'"schemaVersion": 1', b'"x": ' + NESTED), "corrupt: text before the events"),
        ("rank0.json", TEXT[:-1] + b', "x": ' + NESTED + b"}", "corrupt: text after the events"),
        ("rank0.json", with_rows(*(mark(f"ProfilerStep#{n}", 1300, 50) for n in ("9" * 40, "-3", "٣"))), "step marks"),
        ("rank0.json", with_rows({**COMMON[2], "dur": -5}, {**COMMON[2], "dur": "nan"}), "negative duration"),
        ("rank0.json", with_rows(*({**COMMON[0], "ts": t, "dur": None} for t in (True, [], {}))), "no start time"),
        ("rank0.json", TEXT.replace(b'"tid": 20', b'"tid": ' + HUGE), "number beyond 64 bits"),
        ("rank0.json", with_rows({**COMMON[2], "ts": 1e308}), "no start time"),
        ("rank0.json", json.dumps(document(COMMON, baseTimeNanoseconds=2**63 - 5)).encode(), "that no clock shows"),
        ("rank0.json", json.dumps(document(COMMON, rank=2**31 - 1, world_size=2**31)).encode(), "world size 2147"),
        ("rank0.json", TEXT.replace(b'"traceEvents": [', b'"traceEvents": [1, null, "x", [], {}, '), "text between"),
        ("rank0.json", b"\n".join(json.dumps(event).encode() for event in COMMON), "the start of the file is missing"),
        ("rank0.json", b"// a\n" + TEXT.replace(b"}, {", b"}, /* b */ {"), "text between events"),
        ("rank0.json", TEXT.replace(b"GEMM", b"G\xfcMM").replace(b"sgemm", b"sg\xe9mm"), "invalid UTF-8 in text"),
        ("rank0.json", with_rows(span("a\0b\x1b[31m", 1020, 1), span("x" * 10**6, 1030, 1)), ""),
        ("rank0.json", with_rows({"ph": "B", "name": "b", "pid": 1, "tid": 1, "ts": 1}), "begins without an end"),
        ("rank0.json", TEXT.replace(b'"args": {', b'"args": {"stream": 99}, "args": {', 1), ""),
        ("rank0.json.gz", gzip.compress(b"") * 2000 + gzip.compress(TEXT), ""),
        ("rank0.json.zst", b"\x50\x2a\x4d\x18\x04\0\0\0abcd" * 500 + zstandard.compress(TEXT), ""),
        ("ra\nnk\u202e0\U0001f980.json", TEXT, ""),
        ("x" * 245 + ".json", TEXT, ""),
    ],
)  # fmt: skip
@pytest.mark.parametrize("cache", [True, False])
def test_odd_files_are_read(tmp_path: Path, name: str, data: bytes, told: str, cache: bool) -> None:
    (tmp_path / name).write_bytes(data)
    run = tracekit.open(tmp_path / name, cache=cache)
    # Of the mark that is lost with its event nothing else is.
    assert run.table("overlap", by=["rank"])["exposed_ns"].sum() == 50_000
    found = run.repairs["what"].to_list()
    assert any(told in what for what in found) if told else found == []


GARBAGE = zipped([("rank0.json", TEXT)], zipfile.ZIP_DEFLATED)
WINDOW = bytearray(zstandard.ZstdCompressor(write_content_size=False).compress(TEXT))
WINDOW[5] = 0xA8  # 2 GiB


@pytest.mark.parametrize(
    ("name", "data", "why"),
    [
        ("a.zip", GARBAGE[:60] + bytes(99) + GARBAGE[159:], r"rank0.json: cannot be read \(Error -3.*copy the archive"),
        ("a.zip", with_wrong_sum(TEXT), r"rank0.json: cannot be read \(Bad CRC-32.*copy the archive again"),
        ("a.zip", with_wrong_sum(gzip.compress(TEXT), name="rank0.json.gz"), "json.gz: cannot be read .Bad CRC-32"),
        ("a.zip", of_other_local_name(zipped([("rank0.json", TEXT)])), "differ.*copy the archive again"),
        ("a.zip", zipped([("x/../rank0.json", TEXT), ("rank0.json", TEXT)]), "rank 0 is also in"),
        ("rank0.json.zst", bytes(WINDOW), "Frame requires too much memory"),
        ("rank0.json.gz", gzip.compress(gzip.compress(gzip.compress(TEXT))), "gzip inside a compressed file"),
        ("rank0.json.gz", gzip.compress(TEXT.decode().encode("utf-16")), "UTF-16"),
        ("rank0.json", b'{"traceEvents": "many"}', "not a Kineto trace"),
        ("rank0.json", b'{"traceEvents": {"0": {"ph": "X"}}}', "not a Kineto trace"),
        (
            "rank0.json",
            b"[" + TEXT + b"," + TEXT + b"]",
            "not a Kineto trace but a list of whole ones; give one file a rank",
        ),
        ("rank0.json", b"[" + TEXT + b"]", "not a Kineto trace but a list of whole ones; give one file a rank"),
        ("rank0.json", NESTED, "neither JSON nor a damaged trace"),
        ("rank0.json", b"[" * DEPTH, "the trace holds no events"),
        ("rank0.json", b"-" * 2**20, "neither JSON nor a damaged trace"),
        ("rank0.json", b"\0" * 2**20, "neither JSON nor a damaged trace"),
    ],
)
@pytest.mark.parametrize("cache", [[], ["--no-cache"]])
def test_odd_files_are_refused(
    tmp_path: Path, name: str, data: bytes, why: str, cache: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_bytes(data)
    assert cli.run(["show", "overlap", str(tmp_path / name), *cache]) == 2
    with pytest.raises(InputError, match=why):
        tracekit.open(tmp_path / name)
    assert capsys.readouterr().err.count("\n") == 1


def pipe(path: Path) -> None:
    os.mkfifo(path)


def loop(path: Path) -> None:
    path.symlink_to(path)


def up(path: Path) -> None:
    path.symlink_to(path.parent, target_is_directory=True)


def nowhere(path: Path) -> None:
    path.symlink_to("/nonexistent/there")


@pytest.mark.parametrize("make", [pipe, loop, up, nowhere, Path.mkdir, Path.touch])
@pytest.mark.parametrize(
    "place", ["rank1.json", "manifest.json", "rank1.meta.json", "tracekit-patterns.toml", "a.zip", ".tracekit-cache",
              ".tracekit-cache/rank0.json.zip"],
)  # fmt: skip
def test_what_is_no_file_costs_no_other(tmp_path: Path, place: str, make: Callable[[Path], None]) -> None:
    """A pipe would be waited for, and a link to the folder above walked without end."""
    (tmp_path / "rank0.json").write_bytes(LONG)
    (tmp_path / place).parent.mkdir(exist_ok=True)
    make(tmp_path / place)
    is_empty_manifest = place == "manifest.json" and make is Path.touch
    for _ in range(2):
        if is_empty_manifest:
            with pytest.raises(InputError, match="not a manifest"):
                tracekit.open(tmp_path)
            continue
        run = tracekit.open(tmp_path)
        assert run.ranks["rank"].to_list() == [0]
        assert run.table("overlap", by=["rank"])["exposed_ns"].to_list() == [50_000]


@pytest.mark.parametrize("pattern", ["^(a+)+$", "(a|aa)+$", "(a*)*b"])
def test_no_pattern_takes_forever(tmp_path: Path, pattern: str) -> None:
    rows = kernel("a" * 60 + "!", 1200, 5, stream=20, correlation=9, args={"Collective name": "allreduce"})
    path = write(tmp_path / "rank0.json", [*COMMON, *rows])
    run = tracekit.open(path, cache=False, patterns=[Pattern(pattern, "all_gather")])
    assert run.collectives["kind"].to_list() == ["all_gather", "all_reduce"]


@pytest.mark.parametrize("pattern", ["(?=look)", r"(a)\1", "(?P<open", "a{1000}{1000}{1000}"])
def test_patterns_that_cannot_be_searched_are_refused(tmp_path: Path, pattern: str) -> None:
    with pytest.raises(UsageError, match="is not a regular expression"):
        tracekit.open(write(tmp_path / "rank0.json", COMMON), patterns=[Pattern(pattern, "all_gather")])
