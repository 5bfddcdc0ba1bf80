"""Tables kept from one opening to the next: the same as made, and made again whenever what decides them changes."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import polars as pl
import pytest
from kineto import kernel, span, step, write
from polars.testing import assert_frame_equal

import tracekit
from tracekit.errors import InputError
from tracekit.model import table_builder
from tracekit.read.cache_entries import FOLDER
from tracekit.read.trace_cache import MIN_EVENTS

pytestmark = pytest.mark.slow

NAMES = ("steps", "work", "collectives", "allocations", "repairs")
SAMPLES = Path(__file__).parents[2] / "traces"
RING = "my_ring_exchange"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two ranks, just large enough to be kept."""
    for rank in (0, 1):
        fill = [span(f"op{n}", 1010 + n, 1, External_id=n) for n in range(MIN_EVENTS)]
        work = kernel(RING, 1050 + rank, 10, stream=7, correlation=5, launch=1040)
        write(tmp_path / "run" / f"rank{rank}.json.gz", [step(3, 1000, 5000), *fill, *work], rank=rank, world_size=2)
    return tmp_path / "run"


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tables that were made, as it happens."""
    names: list[str] = []

    def counted(name: str):
        known = table_builder.Tables.__dict__[name]
        make = getattr(known, "func", known)

        def count(self: table_builder.Tables, *given: object) -> pl.DataFrame:
            names.append(name)
            return make(self, *given)

        return count if make is known else property(count)

    for name in ("steps", "work", "collectives", "allocations", "faults"):
        monkeypatch.setattr(table_builder.Tables, name, counted(name))
    return names


def all_tables(path: Path, **options: object) -> dict[str, pl.DataFrame]:
    run = tracekit.open(path, **options)
    return {name: getattr(run, name) for name in NAMES}


def assert_same(one: dict[str, pl.DataFrame], other: dict[str, pl.DataFrame]) -> None:
    for name in NAMES:
        assert_frame_equal(one[name], other[name])


def test_nothing_is_made_twice(folder: Path, made: list[str]) -> None:
    first = all_tables(folder)
    assert made
    made.clear()
    assert_same(all_tables(folder), first)
    assert made == []
    assert_same(all_tables(folder, cache=False), first)


@pytest.mark.parametrize("sample", sorted(p.name for p in SAMPLES.iterdir() if p.is_dir()))
def test_kept_tables_are_those_of_real_runs(tmp_path: Path, sample: str) -> None:
    path = shutil.copytree(SAMPLES / sample, tmp_path / sample, ignore=shutil.ignore_patterns(FOLDER))
    first = all_tables(path)
    assert_same(all_tables(path), first)
    assert_same(all_tables(path, cache=False), first)


def test_another_manifest_is_another_run(tmp_path: Path, made: list[str]) -> None:
    path = shutil.copytree(SAMPLES / "hsdp", tmp_path / "hsdp", ignore=shutil.ignore_patterns(FOLDER))
    before = tracekit.open(path).collectives
    manifest = json.loads((path / "manifest.json").read_text())
    for axis in manifest["mesh"]:
        axis["axis"] = {"dp_shard": "other"}.get(axis["axis"], axis["axis"])
    (path / "manifest.json").write_text(json.dumps(manifest))
    made.clear()
    after = tracekit.open(path).collectives
    assert "collectives" in made
    assert "dp_shard" in before["axis"].to_list()
    assert "dp_shard" not in after["axis"].to_list()


def test_patterns_of_the_user_count(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert all_tables(folder)["collectives"].is_empty()
    path = tmp_path / "patterns.toml"
    path.write_text(f'[[communication]]\nname = "^{RING}"\nkind = "all_reduce"\n')
    monkeypatch.setenv("TRACEKIT_PATTERNS", str(path))
    assert all_tables(folder)["collectives"]["kind"].to_list() == ["all_reduce", "all_reduce"]
    monkeypatch.delenv("TRACEKIT_PATTERNS")
    assert all_tables(folder)["collectives"].is_empty()


def test_one_rank_and_all_of_them_do_not_push_each_other_out(folder: Path, made: list[str]) -> None:
    assert all_tables(folder)["work"].height == 2
    assert all_tables(folder / "rank0.json.gz")["work"].height == 1
    made.clear()
    assert all_tables(folder)["work"].height == 2
    assert all_tables(folder / "rank0.json.gz")["work"].height == 1
    assert made == []


def test_a_changed_rank_changes_the_tables(folder: Path) -> None:
    before = all_tables(folder)["work"]
    text = (folder / "rank1.json.gz").read_bytes()
    (folder / "rank1.json.gz").write_bytes((folder / "rank0.json.gz").read_bytes())
    with pytest.raises(InputError, match="rank 0 is also in"):
        tracekit.open(folder)
    (folder / "rank1.json.gz").unlink()
    assert all_tables(folder)["work"].height == 1
    (folder / "rank1.json.gz").write_bytes(text)
    assert_frame_equal(all_tables(folder)["work"], before)


@pytest.mark.parametrize("place", range(0, 20, 3))
def test_damaged_tables_are_made_again(folder: Path, place: int) -> None:
    first = all_tables(folder)
    for entry in (folder / FOLDER).glob("run-*.zip"):
        data = bytearray(entry.read_bytes())
        data[len(data) * place // 20] ^= 0x40
        entry.write_bytes(data)
    assert_same(all_tables(folder), first)


def test_without_a_cache_nothing_is_written(folder: Path) -> None:
    all_tables(folder, cache=False)
    assert not (folder / FOLDER).exists()


def test_frames_that_are_gone_are_decoded_again(folder: Path) -> None:
    right = tracekit.open(folder, cache=False).events
    tracekit.open(folder)
    run = tracekit.open(folder)
    shutil.rmtree(folder / FOLDER)
    assert_frame_equal(run.events, right)


def test_a_trace_that_changes_after_it_was_opened_is_refused(folder: Path) -> None:
    tracekit.open(folder)
    run = tracekit.open(folder)
    shutil.rmtree(folder / FOLDER)
    path = folder / "rank1.json.gz"
    write(path, [span(f"other{n}", n, 1) for n in range(MIN_EVENTS)], rank=1, world_size=2)
    with pytest.raises(InputError, match="was changed while it was being read; open it again"):
        _ = run.work


def test_processes_may_read_the_files(folder: Path) -> None:
    # A forked process would inherit polars' locks without its threads.
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        made = [all_tables(folder, executor=pool, cache=cache) for cache in (False, True, True)]
    assert_same(made[0], made[1])
    assert_same(made[1], made[2])


def test_a_short_rank_does_not_keep_the_others_from_being_kept(folder: Path, made: list[str]) -> None:
    write(folder / "rank1.json.gz", [step(3, 1000, 5000), span("op", 1010, 1)], rank=1, world_size=2)
    first = all_tables(folder)
    made.clear()
    assert_same(all_tables(folder), first)
    assert made == []


def test_any_damage_of_the_names_in_an_entry_is_seen(folder: Path) -> None:
    first = all_tables(folder)
    for entry in (folder / FOLDER).glob("run-*.steps.zip"):
        data = entry.read_bytes()
        place = data.rindex(b"steps.parquet")
        entry.write_bytes(data[:place] + b"x" + data[place + 1 :])
    assert_same(all_tables(folder), first)


def test_edited_patterns_count_at_once(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "patterns.toml"
    monkeypatch.setenv("TRACEKIT_PATTERNS", str(path))
    for name, kind in ((RING, "comm"), ("nothing", "compute")):
        path.write_text(f'[[communication]]\nname = "^{name}"\n')
        assert tracekit.open(folder).work["class"].unique().to_list() == [kind]
