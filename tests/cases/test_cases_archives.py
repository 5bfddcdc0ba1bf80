"""Reports on archives: members are files of the run, manifests inside are the run's, other formats are refused."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import pickle
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import zstandard
from kineto import COMMON, document, write

import tracekit
from tracekit.errors import InputError
from tracekit.read.decoding import content
from tracekit.read.discovery import manifests

pytestmark = pytest.mark.slow

RANKS = {f"rank{n}_trace.json": json.dumps(document(COMMON, rank=n, world_size=2)).encode() for n in range(2)}


def tar_of(files: dict[str, bytes], mode: Any = "w") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def zip_of(files: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return buffer.getvalue()


GZIPPED = {f"{name}.gz": gzip.compress(data) for name, data in RANKS.items()}
APART = [zip_of({name: data}, zipfile.ZIP_DEFLATED) for name, data in RANKS.items()]


@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize(
    "files",
    [
        {"traces.tar.gz": tar_of(RANKS, "w:gz")},
        {"traces.tgz": tar_of(RANKS, "w:gz")},
        {"traces.gz": tar_of(RANKS, "w:gz")},
        {"traces.tar": tar_of(RANKS)},
        {"traces.tar": tar_of(GZIPPED)},
        {"traces.tar.zst": zstandard.compress(tar_of(RANKS))},
        {"traces.zip": zip_of(RANKS)},
        {"traces.zip": zip_of(RANKS, zipfile.ZIP_DEFLATED)},
        {"traces.zip": zip_of({f"run/{name}": data for name, data in GZIPPED.items()})},
        {"a.zip": APART[0], "b.zip": APART[1]},
        {"rank0.zip": APART[0], "rank1_trace.json": RANKS["rank1_trace.json"]},
        {"out.zip": zip_of({"../../rank0.json": RANKS["rank0_trace.json"], "/rank1.json": RANKS["rank1_trace.json"]})},
    ],
)
def test_members_of_archives_are_files_of_the_run(tmp_path: Path, files: dict[str, bytes], cache: bool) -> None:
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    whole = [tmp_path] if len(files) > 1 else [tmp_path, tmp_path / next(iter(files))]
    for path in whole:
        run = tracekit.open(path, cache=cache)
        assert run.ranks["rank"].to_list() == [0, 1]
        assert run.table("overlap", by=["rank"])["exposed_ns"].to_list() == [50_000, 50_000]
        assert run.repairs.is_empty()
        assert {Path(file).parent.name for file in run.ranks["file"]} <= {*files, "run", tmp_path.name}


@pytest.mark.parametrize(
    ("name", "data", "what"),
    [
        ("a.zip", zip_of(RANKS, zipfile.ZIP_BZIP2), "packed by bzip2"),
        ("a.zip", zip_of(RANKS, zipfile.ZIP_LZMA), "packed by lzma"),
        ("a.zip", zip_of({"notes.txt": b"x"}), r"no trace in this archive \(it holds notes.txt\)"),
        ("a.zip", zip_of({}), r"no trace in this archive \(it holds nothing\)"),
        ("a.zip", zip_of(RANKS)[:-30], "the archive is damaged"),
        ("rank0.json.gz", tar_of(RANKS, "w:gz"), "a tar archive under another name"),
        ("a.json.bz2", bz2.compress(RANKS["rank0_trace.json"]), "bzip2"),
        ("a.xz", lzma.compress(RANKS["rank0_trace.json"]), "xz"),
        ("a.7z", b"7z\xbc\xaf\x27\x1c" + bytes(99), "a 7z archive"),
        ("a.nsys-rep", b"\x0a\x0bunknown" + bytes(99), "an nsys report"),
        ("a.et", b"\x0a\x0b\x12" + bytes(99), "a Chakra execution trace"),
        ("a.json", b'{"schema": "1.1.1-chakra.0.0.4", "nodes": []}', "a Chakra execution trace"),
        ("nccl_trace_rank_0", pickle.dumps({"entries": []}), "a pickle, such as .* the flight recorder"),
        ("a.json", b'{"version":"2.4","entries":[{"pg_id":0}]}', "a dump of the flight recorder"),
    ],
)
def test_other_archives_and_formats_are_refused_by_name(tmp_path: Path, name: str, data: bytes, what: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(InputError, match=f"{name}: .*{what}"):
        tracekit.open(tmp_path / name)


def test_what_a_folder_without_traces_holds_is_named(tmp_path: Path) -> None:
    for name in ("a.nsys-rep", "b.json.bz2", "c.et"):
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(InputError, match=r"a.nsys-rep is an nsys report .*; b.json.bz2 is bzip2 .*; c.et is a Chakra"):
        tracekit.open(tmp_path)


def test_an_archive_that_cannot_be_read_costs_no_other_file(tmp_path: Path) -> None:
    write(tmp_path / "rank0.json", COMMON)
    (tmp_path / "other.zip").write_bytes(zip_of(RANKS, zipfile.ZIP_BZIP2))
    run = tracekit.open(tmp_path)
    assert run.ranks["rank"].to_list() == [0]
    assert run.repairs["what"].str.contains("packed by bzip2").to_list() == [True]


def test_a_member_that_expands_beyond_all_measure_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content, "_EXPANSION_MATTERS_FROM", 2**20)
    for name, data in (("a.zip", zip_of({"rank0.json": b" " * 2**22}, zipfile.ZIP_DEFLATED)),
                       ("a.tar.gz", tar_of({"rank0.json": b" " * 2**23}, "w:gz"))):  # fmt: skip
        (tmp_path / name).write_bytes(data)
        with pytest.raises(InputError, match="decompression bomb"):
            tracekit.open(tmp_path / name)


OURS = {"format": 1, "strategy": "zero1", "world_size": 4, "psi": 9, "psi_train": 9, "ranks": [{"rank": 0, "pid": 7}]}
TOLD = json.dumps(OURS).encode()
OF_RANK_1 = json.dumps({"rank": 1, "host": "h", "pid": 8}).encode()
OTHERS = b'{"name": "a web page"}'


@pytest.mark.parametrize(
    ("files", "pids"),
    [
        ({"run.zip": zip_of({"manifest.json": TOLD, "rank1.meta.json": OF_RANK_1, **RANKS})}, [7, 8]),
        ({"run.zip": zip_of({"run/manifest.json": TOLD, **{f"run/{n}": d for n, d in RANKS.items()}}, 8)}, [7, None]),
        ({"run.tar": tar_of({"./run/manifest.json": TOLD, "./run/rank1.meta.json": OF_RANK_1, **RANKS})}, [7, 8]),
        ({"run.tgz": tar_of({"manifest.json": TOLD, **GZIPPED}, "w:gz")}, [7, None]),
        # Of two the higher one counts.
        ({"run.zip": zip_of({"a/b/manifest.json": OTHERS, "z/manifest.json": TOLD, **RANKS})}, [7, None]),
        # An archive a rank, each with the manifest; a manifest beside the archive counts more than none inside.
        ({f"{n}.zip": zip_of({"manifest.json": TOLD, n: d}) for n, d in RANKS.items()}, [7, None]),
        ({"manifest.json": TOLD, "run.zip": zip_of(RANKS)}, [7, None]),
    ],
)
def test_a_manifest_in_an_archive_is_the_runs(tmp_path: Path, files: dict[str, bytes], pids: list[int | None]) -> None:
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    archives = [tmp_path / name for name in files if name != "manifest.json"]
    for given in [tmp_path, archives]:
        run = tracekit.open(given, cache=False)
        assert run.manifest is not None
        assert (run.manifest.strategy, run.world_size, run.missing_ranks) == ("zero1", 4, [2, 3])
        assert run.ranks["pid"].to_list() == pids
        assert not run.repairs["what"].str.contains("manifest|archive").any()


def test_another_programs_manifest_in_an_archive_is_told(tmp_path: Path) -> None:
    (tmp_path / "run.zip").write_bytes(zip_of({"manifest.json": OTHERS, **RANKS}))
    for given in (tmp_path, tmp_path / "run.zip"):
        run = tracekit.open(given, cache=False)
        assert run.manifest is None
        told = run.repairs.filter(pl.col("what").str.contains("not a manifest that tracekit wrote"))
        assert told["file"].to_list() == [str(tmp_path / "run.zip" / "manifest.json")]


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"{", "not a manifest"),
        (TOLD.replace(b'"format": 1', b'"format": 9'), "manifest format 9 is newer than 1"),
        (TOLD.replace(b'"world_size": 4', b'"world_size": -4'), "not a manifest that tracekit wrote"),
    ],
)
def test_a_damaged_manifest_in_an_archive_is_refused(tmp_path: Path, data: bytes, what: str) -> None:
    (tmp_path / "run.zip").write_bytes(zip_of({"manifest.json": data, **RANKS}))
    with pytest.raises(InputError, match=f"run.zip/manifest.json: .*{what}"):
        tracekit.open(tmp_path / "run.zip")


def test_a_manifest_that_expands_beyond_all_measure_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifests, "_MOST_BYTES", 2**20)
    (tmp_path / "run.zip").write_bytes(zip_of({"manifest.json": TOLD + b" " * 2**21, **RANKS}, zipfile.ZIP_DEFLATED))
    with pytest.raises(InputError, match=r"run.zip/manifest.json: expands to more than 1,048,576 bytes"):
        tracekit.open(tmp_path / "run.zip")


@pytest.mark.parametrize("name", ["inner.zip", "inner.tar", "logs/inner.tar.gz", "inner.tgz"])
def test_an_archive_inside_an_archive_is_refused_by_name(tmp_path: Path, name: str) -> None:
    inner = zip_of(RANKS) if name.endswith("zip") else tar_of(RANKS, "w:gz" if "gz" in name else "w")
    (tmp_path / "run.zip").write_bytes(zip_of({name: inner}))
    with pytest.raises(InputError, match=f"run.zip: no trace in this archive .it holds {name}.*unpack the outer one"):
        tracekit.open(tmp_path / "run.zip")
    (tmp_path / "run.zip").write_bytes(zip_of({name: inner, **RANKS}))
    run = tracekit.open(tmp_path / "run.zip")
    assert run.ranks["rank"].to_list() == [0, 1]
    assert run.repairs.select("file", "what").rows() == [
        (str(tmp_path / "run.zip" / name), "an archive inside an archive: unpack the outer one")
    ]


@pytest.mark.parametrize("name", ["a.zip", "a.tar.gz", "stored.zip"])
@pytest.mark.parametrize(("most", "reads"), [("600", False), ("100000000", True)])
def test_the_bound_on_text_holds_for_archives_and_can_be_raised(
    tmp_path: Path, name: str, most: str, reads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / name
    one = {"rank0.json": RANKS["rank0_trace.json"]}
    method = zipfile.ZIP_STORED if name.startswith("stored") else zipfile.ZIP_DEFLATED
    path.write_bytes(tar_of(one, "w:gz") if name.endswith("gz") else zip_of(one, method))
    monkeypatch.setenv(content.MOST_VARIABLE, most)
    if reads or name == "stored.zip":
        assert tracekit.open(path, cache=False).ranks.height == 1
    else:
        with pytest.raises(InputError, match=r"expand to more than 6\d\d.*set TRACEKIT_MAX_TEXT_BYTES to a larger"):
            tracekit.open(path, cache=False)
