"""An output is either whole or absent, and never replaced unasked."""

from __future__ import annotations

import os
import subprocess
import sys
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


HOLDING = """
import sys, time
from pathlib import Path
from tracekit.export.files import open_output
with open_output(Path(sys.argv[1])) as stream:
    stream.write("half")
    stream.flush()
    print("ready", flush=True)
    time.sleep(60)
"""


def test_what_a_killed_writer_left_is_swept_by_the_next(tmp_path):
    path = tmp_path / "a"
    with subprocess.Popen([sys.executable, "-c", HOLDING, path], stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
        writer.kill()
    assert len(list(tmp_path.iterdir())) == 1
    other = tmp_path / ".b.0123456789ab.partial"
    other.touch()
    with files.open_output(path) as stream:
        stream.write("whole")
    assert sorted(tmp_path.iterdir()) == [other, path]


def test_a_writer_at_work_is_not_swept(tmp_path):
    path = tmp_path / "a"
    with files.open_output(path) as first:
        first.write("first")
        with files.open_output(path) as second:
            second.write("second")
        assert path.read_text() == "second"
    assert path.read_text() == "first"
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_device_is_one_sentence():
    with (
        pytest.raises(UsageError, match=r"^/dev/full cannot be written: no space left on device$"),
        files.open_output(Path("/dev/full")) as stream,
    ):
        stream.write("x")


def test_a_reader_of_a_pipe_that_goes_away_is_not_the_disk(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(BrokenPipeError), files.open_output(pipe) as stream:
        os.close(reader)
        stream.write("x")
        stream.flush()


def test_a_link_to_nothing_needs_force(tmp_path):
    path = tmp_path / "a"
    path.symlink_to(tmp_path / "missing")
    with pytest.raises(UsageError, match=r"a is a link to nothing: pass --force"), files.open_output(path):
        pass
    assert path.is_symlink()
    with files.open_output(path, force=True) as stream:
        stream.write("new")
    assert (path.is_symlink(), path.read_text()) == (False, "new")


def test_a_name_that_is_too_long_is_one_sentence(tmp_path):
    with (
        pytest.raises(UsageError, match="cannot be written: file name too long"),
        files.open_output(tmp_path / ("a" * 300)),
    ):
        pass
