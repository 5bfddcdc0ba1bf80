from __future__ import annotations

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
        folder.claim(tmp_path, overwrite=False)
    assert (tmp_path / name).read_text() == "old"


def test_other_files_do_not_make_a_run(tmp_path):
    touch(tmp_path / "notes.txt", tmp_path / "report.json")
    folder.claim(tmp_path / "new" / "deeper", overwrite=False)
    folder.claim(tmp_path, overwrite=False)


def test_overwriting_removes_every_rank_and_cycle_and_nothing_else(tmp_path):
    touch(*(tmp_path / name for name in ("manifest.json", "rank0.json.gz", "rank7.json.gz", "rank7.meta.json")))
    touch(*(tmp_path / name for name in ("cycle0/rank0.json.gz", "cycle1/rank0.json.gz", "cycle1/mine.txt")))
    touch(tmp_path / "notes.txt", tmp_path / ".rank0.json.gz.tmp", tmp_path / "cycle0" / ".rank3.json.gz.plain.tmp")
    folder.claim(tmp_path, overwrite=True)
    left = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*"))
    assert left == ["cycle1", "cycle1/mine.txt", "notes.txt"]


def test_a_path_that_cannot_be_a_folder(tmp_path):
    touch(tmp_path / "file")
    with pytest.raises(RecordError, match="cannot be used as a run folder"):
        folder.claim(tmp_path / "file" / "run", overwrite=False)


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
