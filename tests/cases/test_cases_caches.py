"""Reports on caches: an entry that came with a trace, that another user wrote or that was edited is not believed."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import msgspec
import polars as pl
import pytest
from kineto import COMMON, span, write

import tracekit
from tracekit.read import cache_entries, cache_seal
from tracekit.read.trace_cache import read_file

MANY = [*COMMON, *(span("aten::mm", 2000 + n, 1) for n in range(1200))]


@pytest.fixture
def entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    read_file(write(tmp_path / "run" / "rank0.json", MANY))
    found = tmp_path / "run" / cache_entries.FOLDER / "rank0.json.zip"
    assert cache_entries.entry_info(found)
    return found


def members(entry: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(entry) as file:
        return {name: file.read(name) for name in file.namelist()}


def rewrite(entry: Path, files: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> None:
    with zipfile.ZipFile(entry, "w", method) as file:
        for name, data in files.items():
            file.writestr(name, data)


def renamed(data: bytes) -> bytes:
    buffer = io.BytesIO()
    pl.read_parquet(io.BytesIO(data)).with_columns(name=pl.lit("gemm")).write_parquet(buffer)
    return buffer.getvalue()


def is_used(entry: Path) -> bool:
    info = cache_entries.entry_info(entry)
    if info is None:
        return False
    from tracekit.read.decoding.columns import SCHEMAS

    return cache_entries.load(entry, info.key, SCHEMAS) is not None


def test_an_entry_of_ones_own_is_used(entry: Path) -> None:
    assert is_used(entry)
    rewrite(entry, members(entry))
    assert is_used(entry)


@pytest.mark.parametrize("trusted", [False, True])
def test_edited_frames_are_noticed(entry: Path, trusted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if trusted:
        monkeypatch.setenv(cache_seal.TRUST, "1")
    files = members(entry)
    rewrite(entry, files | {"events.parquet": renamed(files["events.parquet"])})
    assert not is_used(entry)
    assert tracekit.open(entry.parent.parent / "rank0.json").events["name"].n_unique() > 1


@pytest.mark.parametrize("name", ["about.json", "events.parquet"])
def test_compressed_members_are_not_inflated(entry: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache_seal.TRUST, "1")
    files = members(entry)
    bomb = files | {name: files[name] + b" " * 2**24}
    rewrite(entry, bomb, zipfile.ZIP_DEFLATED)
    assert entry.stat().st_size < 2**20
    read: list[str] = []
    inflate = zipfile.ZipFile.read
    monkeypatch.setattr(zipfile.ZipFile, "read", lambda self, one, *more: read.append(one) or inflate(self, one, *more))
    assert not is_used(entry)
    assert read == []


def test_edited_metadata_is_noticed(entry: Path) -> None:
    files = members(entry)
    about = msgspec.json.decode(files["about.json"])
    for key, value in (("heights", {"events": 1}), ("more", None), ("seal", ""), ("digests", {})):
        rewrite(entry, files | {"about.json": msgspec.json.encode({**about, key: value})})
        assert not is_used(entry)


def test_an_entry_of_another_user_is_used_only_when_trusted(
    entry: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    assert not is_used(entry)
    monkeypatch.setenv(cache_seal.TRUST, "1")
    assert is_used(entry)


def test_the_secret_is_the_users_alone(entry: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = tmp_path / "home" / "tracekit" / "secret"
    assert kept.stat().st_mode & 0o777 == 0o600
    assert [file.name for file in kept.parent.iterdir() if file.is_file()] == ["secret"]
    # Where it cannot be kept, entries are made but not believed by the next process.
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert not is_used(entry)
