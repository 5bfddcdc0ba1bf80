"""An output is either whole or absent, and never replaced unasked."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tracekit.errors import UsageError
from tracekit.export import files


def test_content_appears_when_the_block_ends(tmp_path):
    path = tmp_path / "new" / "a.txt"
    with files.open_output(path) as stream:
        stream.write("Ψ")
        assert not path.exists()
    assert path.read_bytes() == "Ψ".encode()
    assert list(path.parent.iterdir()) == [path]


def test_a_failure_leaves_nothing(tmp_path):
    with pytest.raises(ZeroDivisionError), files.open_output(tmp_path / "a") as stream:
        stream.write("half")
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


def test_a_failure_leaves_what_was_there(tmp_path):
    path = tmp_path / "a"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), files.open_output(path, force=True) as stream:
        stream.write("half")
        raise ZeroDivisionError
    assert path.read_text() == "old"


def test_an_existing_file_needs_force(tmp_path):
    path = tmp_path / "a"
    path.write_text("old")
    with pytest.raises(UsageError, match=r"a exists already: pass --force"), files.open_output(path):
        pass
    with files.open_output(path, force=True, binary=True) as stream:
        stream.write(b"new")
    assert path.read_text() == "new"


def test_a_folder_is_refused_even_with_force(tmp_path):
    with pytest.raises(UsageError, match="is a folder"), files.open_output(tmp_path, force=True):
        pass


def test_a_file_in_place_of_a_parent_is_one_sentence(tmp_path):
    (tmp_path / "a").write_text("")
    with pytest.raises(UsageError, match=r"b\.csv cannot be written: "), files.open_output(tmp_path / "a" / "b.csv"):
        pass


def test_a_full_disk_is_one_sentence(tmp_path):
    with (
        pytest.raises(UsageError, match="cannot be written: no space left on device"),
        files.replacing(tmp_path / "a"),
        open("/dev/full", "w") as full,  # noqa: PTH123 - a device, not a file of ours
    ):
        full.write("x")
    assert list(tmp_path.iterdir()) == []


def test_another_files_error_is_not_about_this_output(tmp_path):
    with pytest.raises(FileNotFoundError), files.replacing(tmp_path / "a"):
        (tmp_path / "elsewhere").read_bytes()


def test_a_device_is_written_in_place():
    with files.open_output(Path(os.devnull)) as stream:
        stream.write("x")
    assert Path(os.devnull).is_char_device()


def test_announce_keeps_stdout_free(capsys, tmp_path):
    files.announce(tmp_path / "a")
    assert capsys.readouterr() == ("", f"wrote {tmp_path / 'a'}\n")
