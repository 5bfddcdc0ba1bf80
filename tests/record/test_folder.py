from __future__ import annotations

import errno
import gzip
import json
from pathlib import Path

import pytest

from tracekit.record import RecordError, RunExistsError, folder


def touch(*paths):
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("old", encoding="utf-8")


def test_names():
    assert folder.trace_name(3, 0, 1) == "rank3.json.gz"
    assert folder.trace_name(3, 1, 2) == "cycle1/rank3.json.gz"
    assert folder.meta_name(3) == "rank3.meta.json"


FILES = ["manifest.json", "rank0.json.gz", "rank5.json.gz", "rank1.meta.json", "cycle1/rank2.json.gz"]


@pytest.mark.parametrize("name", FILES)
def test_a_folder_that_holds_any_file_of_a_run_is_refused(tmp_path, name):
    touch(tmp_path / name)
    with pytest.raises(RunExistsError, match=f"{tmp_path} holds a run already .{name}.; choose another"):
        folder.look(tmp_path, overwrite=False)
    assert (tmp_path / name).read_text() == "old"


def test_other_files_do_not_make_a_run(tmp_path):
    touch(tmp_path / "notes.txt", tmp_path / "report.json")
    folder.look(tmp_path / "new" / "deeper", overwrite=False)
    folder.look(tmp_path, overwrite=False)


def test_a_run_is_replaced_by_a_complete_one(tmp_path):
    old = tmp_path / "run"
    touch(*(old / name for name in ("manifest.json", "rank0.json.gz", "rank7.json.gz", "rank7.meta.json")))
    touch(*(old / name for name in ("cycle0/rank0.json.gz", "cycle1/rank0.json.gz", "cycle1/mine.txt", "notes.txt")))
    new = folder.look(old, overwrite=True)
    assert new == tmp_path / "run.new"
    for name in ("manifest.json", "rank0.json.gz", "cycle0/rank1.json.gz"):
        (new / name).parent.mkdir(exist_ok=True)
        (new / name).write_text("new", encoding="utf-8")
    assert (old / "manifest.json").read_text() == "old"
    folder.replace_run(old, new)
    files = {p.relative_to(old).as_posix(): p.read_text() for p in old.rglob("*") if p.is_file()}
    assert files == {
        "manifest.json": "new",
        "rank0.json.gz": "new",
        "cycle0/rank1.json.gz": "new",
        "cycle1/mine.txt": "old",
        "notes.txt": "old",
    }
    assert not new.exists()


def test_what_an_unfinished_replacement_left_goes(tmp_path):
    old, beside = tmp_path / "run", tmp_path / "run.new"
    touch(old / "manifest.json", beside / "manifest.json", beside / ".rank0.json.gz.tmp", beside / "notes.txt")
    assert folder.look(old, overwrite=True) == beside
    assert [path.name for path in beside.iterdir()] == ["notes.txt"]


def test_of_two_jobs_at_one_moment_one_gets_the_folder(tmp_path):
    folder.claim(tmp_path, {"job": 1})
    with pytest.raises(RunExistsError, match="another job began to record"):
        folder.claim(tmp_path, {"job": 2})
    assert folder.read_json(tmp_path / "manifest.json") == {"job": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["manifest.json"]


def test_a_name_with_a_newline_stays_on_one_line(tmp_path):
    odd = tmp_path / "a\nb"
    touch(odd / "manifest.json")
    with pytest.raises(RunExistsError) as caught:
        folder.look(odd, overwrite=False)
    assert "\n" not in str(caught.value)
    assert "a\\nb" in str(caught.value)


def full_disk(monkeypatch):
    def refuse(path, write):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(folder, "_write_atomically", refuse)


def test_a_description_finds_its_place_on_a_full_disk(tmp_path, monkeypatch):
    folder.write_json(tmp_path / "rank0.meta.json", {"ended": False})
    full_disk(monkeypatch)
    folder.write_json(tmp_path / "rank0.meta.json", {"ended": True, "reason": "No space left on device"})
    assert folder.read_json(tmp_path / "rank0.meta.json") == {"ended": True, "reason": "No space left on device"}
    with pytest.raises(OSError, match="No space"):
        folder.write_json(tmp_path / "rank0.meta.json", {"ended": "x" * 5000})
    with pytest.raises(OSError, match="No space"):
        folder.write_json(tmp_path / "manifest.json", {})


@pytest.mark.parametrize("text", ["", '{"traceEvents": [', '{"traceEvents": [{"ph": "X"}, {"na'])
def test_half_a_trace_of_the_profiler_is_none(tmp_path, text):
    with pytest.raises(OSError, match=f"a part of it only, {len(text)} bytes"):
        folder.write_trace(tmp_path / "rank0.json.gz", lambda plain: Path(plain).write_text(text, encoding="utf-8"))
    assert list(tmp_path.iterdir()) == []


def test_a_path_that_cannot_be_a_folder(tmp_path):
    touch(tmp_path / "file")
    with pytest.raises(RecordError, match="cannot be used as a run folder"):
        folder.look(tmp_path / "file" / "run", overwrite=False)


def test_a_trace_appears_whole_or_not_at_all(tmp_path):
    def export(plain):
        Path(plain).write_text('{"traceEvents": []}', encoding="utf-8")
        assert not (tmp_path / "rank0.json.gz").exists()

    def fail(plain):
        Path(plain).write_text("{", encoding="utf-8")
        raise OSError(28, "No space left on device")

    folder.write_trace(tmp_path / "rank0.json.gz", export)
    assert json.loads(gzip.decompress((tmp_path / "rank0.json.gz").read_bytes())) == {"traceEvents": []}
    with pytest.raises(OSError, match="No space"):
        folder.write_trace(tmp_path / "cycle1" / "rank0.json.gz", fail)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["rank0.json.gz"]


def test_a_failed_json_leaves_the_old_one(tmp_path):
    folder.write_json(tmp_path / "manifest.json", {"format": 1})
    with pytest.raises(TypeError):
        folder.write_json(tmp_path / "manifest.json", {"format": object()})
    assert folder.read_json(tmp_path / "manifest.json") == {"format": 1}
    assert list(tmp_path.iterdir()) == [tmp_path / "manifest.json"]


def test_unreadable_json_is_null(tmp_path):
    (tmp_path / "half.json").write_text('{"rank": ', encoding="utf-8")
    (tmp_path / "list.json").write_text("[]", encoding="utf-8")
    assert [folder.read_json(tmp_path / name) for name in ("half.json", "list.json", "none.json")] == [None, None, None]
