"""The cache: what it saves, and that nothing stale, damaged or foreign ever comes from it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest
from kineto import document, span, write
from polars.testing import assert_frame_equal

import tracekit
from tracekit import cli
from tracekit.errors import InputError
from tracekit.read import cache_entries as entries
from tracekit.read import trace_cache as cache
from tracekit.read.cache_entries import FOLDER
from tracekit.read.decode import Decoded, decode
from tracekit.read.trace_cache import MIN_EVENTS, Opened, read_file

DAMAGED = span("late", 2_000_000, -1)
EVENTS = [*(span(f"op{n}", n, 1, External_id=n) for n in range(MIN_EVENTS - 1)), DAMAGED]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A trace just large enough to be kept."""
    return write(tmp_path / "run" / "rank3.json.gz", EVENTS, rank=3, world_size=4, baseTimeNanoseconds=7)


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that were decoded, as it happens."""
    calls: list[Path] = []

    def counted(path: Path) -> Decoded:
        calls.append(path)
        return decode(path)

    monkeypatch.setattr(cache, "decode", counted)
    return calls


def entry_of(trace: Path) -> Path:
    return trace.parent / FOLDER / f"{trace.name}.zip"


def assert_same(one: Opened, other: Decoded) -> None:
    for left, right in zip(one.columns, other.columns, strict=True):
        assert_frame_equal(left, right)
    assert (one.metadata, one.findings) == (other.metadata, other.findings)


def test_the_second_opening_gives_the_same_without_decoding(trace: Path, decoded: list[Path]) -> None:
    assert_same(read_file(trace), decode(trace))
    assert_same(read_file(trace), decode(trace))
    assert decoded == [trace]
    assert [p.name for p in entry_of(trace).parent.iterdir() if p.name != ".gitignore"] == ["rank3.json.gz.zip"]


def test_the_entry_holds_repairs_and_facts(trace: Path) -> None:
    tables = [tracekit.open(trace.parent) for _ in range(2)]
    assert tables[1].repairs.select("rank", "what", "count").rows() == [
        (3, "negative duration", 1),
        (None, "no file of ranks 0-2: needs 4 of 4 ranks, has 1", 3),
    ]
    assert_frame_equal(tables[0].work, tables[1].work)


def test_a_file_rewritten_with_the_same_size_and_time_is_read_anew(tmp_path: Path, decoded: list[Path]) -> None:
    path = write(tmp_path / "r.json", EVENTS)
    read_file(path)
    stat = path.stat()
    text = path.read_bytes()
    path.write_bytes(text.replace(b'"op7"', b'"oq7"'))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns, path.stat().st_ino) == (
        stat.st_size,
        stat.st_mtime_ns,
        stat.st_ino,
    )
    assert read_file(path).columns.events["name"][7] == "oq7"
    assert len(decoded) == 2
    # The new entry has replaced the old one.
    read_file(path)
    assert len(decoded) == 2


def test_a_run_that_was_moved_keeps_its_cache(trace: Path, decoded: list[Path]) -> None:
    read_file(trace)
    moved = trace.parent.rename(trace.parent.with_name("moved"))
    read_file(moved / trace.name)
    assert decoded == [trace]


def test_small_files_are_not_kept(tmp_path: Path) -> None:
    path = write(tmp_path / "r.json", EVENTS[1:])
    read_file(path)
    assert not (tmp_path / FOLDER).exists()


def test_no_cache_neither_reads_nor_writes(trace: Path, decoded: list[Path]) -> None:
    tracekit.open(trace, cache=False)
    assert not (trace.parent / FOLDER).exists()
    tracekit.open(trace)
    entry_of(trace).write_bytes(b"poison")
    tracekit.open(trace, cache=False)
    assert entry_of(trace).read_bytes() == b"poison"


def damaged_entries() -> list[tuple[str, object]]:
    def flip(data: bytes, place: int) -> bytes:
        return data[:place] + bytes([data[place] ^ 0x40]) + data[place + 1 :]

    return [
        ("empty", lambda _: b""),
        ("no zip", lambda _: b"hello"),
        ("cut", lambda data: data[: len(data) // 2]),
        *((f"bit {n}/20", lambda data, n=n: flip(data, len(data) * n // 20)) for n in range(20)),
    ]


@pytest.mark.parametrize(("name", "damage"), damaged_entries())
def test_damaged_entries_are_ignored_and_rewritten(trace: Path, decoded: list[Path], name: str, damage) -> None:
    read_file(trace)
    whole = entry_of(trace).read_bytes()
    entry_of(trace).write_bytes(damage(whole))
    assert_same(read_file(trace), decode(trace))
    count = len(decoded)
    # Some bits of a zip file mean nothing: then the entry was whole.
    assert count == 2 or name.startswith("bit")
    read_file(trace)
    assert len(decoded) == count


@pytest.mark.parametrize("member", ["about.json", "events.parquet"])
def test_foreign_entries_are_ignored(trace: Path, decoded: list[Path], member: str) -> None:
    read_file(trace)
    with zipfile.ZipFile(entry_of(trace)) as entry:
        members = {name: entry.read(name) for name in entry.namelist()}
    members[member] = b"{}"
    with zipfile.ZipFile(entry_of(trace), "w") as entry:
        for name, data in members.items():
            entry.writestr(name, data)
    assert_same(read_file(trace), decode(trace))
    assert len(decoded) == 2


def test_an_entry_of_another_reader_is_rewritten(
    trace: Path, decoded: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    read_file(trace)
    monkeypatch.setattr(entries, "code_version", lambda: "later")
    read_file(trace)
    read_file(trace)
    assert len(decoded) == 2


@pytest.mark.parametrize("module", ["new.py", "read/decoding/new.py", "model/new.py", "model/collectives/deep/new.py"])
def test_the_version_is_that_of_all_code_that_decides_tables(tmp_path: Path, module: str) -> None:
    package = shutil.copytree(Path(entries.__file__).parent.parent, tmp_path / "tracekit")
    before = entries.digest_of_code(package)
    (package / "report" / "new.py").write_text("")
    assert entries.digest_of_code(package) == before == entries.code_version()
    (package / module).parent.mkdir(exist_ok=True)
    (package / module).write_text("")
    assert entries.digest_of_code(package) != before


def test_tables_are_made_by_no_code_outside_those_rooms() -> None:
    program = "import sys, tracekit.model.run; print(*(name for name in sys.modules if name.startswith('tracekit.')))"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    package = Path(entries.__file__).parent.parent
    loaded = {name.split(".")[1] for name in run.stdout.split()}
    assert {name for name in loaded if (package / name).is_dir()} == set(entries.DECIDING_ROOMS)


def test_where_the_folder_takes_nothing_the_users_cache_does(
    trace: Path, decoded: list[Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    trace.parent.chmod(0o555)
    try:
        read_file(trace)
        read_file(trace)
    finally:
        trace.parent.chmod(0o755)
    assert decoded == [trace]
    assert not (trace.parent / FOLDER).exists()
    assert len(list((tmp_path / "xdg" / "tracekit").rglob("*.zip"))) == 1


def test_no_place_to_keep_anything_is_fine(trace: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    (trace.parent / FOLDER).write_text("in the way")
    for _ in range(2):
        assert_same(read_file(trace), decode(trace))


def test_the_users_folder_does_not_grow_without_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setattr(entries, "MAX_USER_BYTES", 1)
    for name in ("a", "b"):
        path = write(tmp_path / name / "r.json", EVENTS)
        (path.parent / FOLDER).write_text("in the way")
        read_file(path)
    assert len(list((tmp_path / "xdg").rglob("*.zip"))) == 1


def test_a_file_that_changes_while_it_is_read_is_not_kept(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(path: Path) -> Decoded:
        done = decode(path)
        write(path, [*EVENTS, span("more", 1, 1)])
        return done

    monkeypatch.setattr(cache, "decode", slow)
    assert read_file(trace).columns.events.height == len(EVENTS)
    assert not entry_of(trace).exists()


def test_many_openings_at_once_agree(trace: Path) -> None:
    right, wrong = decode(trace), []

    def open_it() -> None:
        for _ in range(5):
            try:
                assert_same(read_file(trace), right)
            except BaseException as error:  # noqa: BLE001 - told by the main thread
                wrong.append(error)
            entry_of(trace).unlink(missing_ok=True)

    threads = [threading.Thread(target=open_it) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert not list(entry_of(trace).parent.glob("*.partial"))


def test_the_cache_is_no_part_of_the_run(trace: Path) -> None:
    for _ in range(2):
        assert tracekit.open(trace.parent).ranks["file"].to_list() == [str(trace)]
    assert (trace.parent / FOLDER / ".gitignore").read_text().endswith("*\n")


def test_the_digest_sees_every_byte(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    text = json.dumps(document(EVENTS)).encode() * 8
    digests: set[str] = set()
    for place in [None, 0, 2**18 - 1, 2**18, len(text) - 1]:
        changed = bytearray(text)
        if place is not None:
            changed[place] ^= 1
        path.write_bytes(changed)
        digests.add(cache._digest(path))
    # Also chunks that changed places.
    path.write_bytes(text[2**18 : 2**19] + text[: 2**18] + text[2**19 :])
    assert len({*digests, cache._digest(path)}) == 6


def test_the_commands_take_cycle_and_no_cache(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for cycle in (10, 20):
        write(tmp_path / f"iteration_{cycle}" / "rank0.json", EVENTS, rank=0)
    for cycle in (10, 20):
        assert cli.run(["show", "steps", str(tmp_path), "--cycle", str(cycle), "--no-cache", "-f", "json"]) == 0
        assert {row["cycle"] for row in json.loads(capsys.readouterr().out)["rows"]} == {cycle}
    assert not list(tmp_path.rglob(FOLDER))
    assert cli.run(["show", "steps", str(tmp_path)]) == 0
    assert [f.parent.name for f in tmp_path.rglob(FOLDER)] == ["iteration_20"]
    assert cli.run(["show", "steps", str(tmp_path), "--cycle", "5"]) == 2
    assert "cycle 5 is not in this run, which has the cycles 10, 20" in capsys.readouterr().err


def test_entries_that_may_not_be_read_are_none(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read_file(trace)

    def refused(*_args: object, **_kwargs: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(zipfile, "ZipFile", refused)
    assert_same(read_file(trace), decode(trace))


def test_a_trace_that_is_gone_is_refused_although_it_is_kept(trace: Path) -> None:
    read_file(trace)
    trace.unlink()
    with pytest.raises(InputError, match="cannot be read"):
        read_file(trace)


def test_what_a_killed_process_left_half_written_is_tidied_up(trace: Path) -> None:
    read_file(trace)
    old, new = (entry_of(trace).with_name(f"rank3.json.gz.zip.{pid}.7.partial") for pid in (1, 2))
    for partial in (old, new):
        partial.write_bytes(b"half")
    os.utime(old, (1, 1))
    entry_of(trace).unlink()
    read_file(trace)
    assert (old.exists(), new.exists()) == (False, True)


def test_an_entry_that_others_remove_meanwhile_does_no_harm(trace: Path) -> None:
    (trace.parent / FOLDER).mkdir()
    (trace.parent / FOLDER / "gone.zip").symlink_to("nowhere")
    assert_same(read_file(trace), decode(trace))
    assert entry_of(trace).exists()
