"""Other files in a folder of traces cost no trace, and paths that cannot be a run are named by their kind."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from kineto import COMMON, write

import tracekit
from tracekit import cli
from tracekit.errors import InputError
from tracekit.read.discovery.cycles import split_cycles, without_strays
from tracekit.read.discovery.sources import Source, find_sources

TABLE = '{"format":1,"table":"overlap","run":"x","rows":[\n{"rank":0}\n]}\n'


def test_an_output_in_the_runs_folder_leaves_the_run_readable(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "rank0.json", COMMON)
    output = tmp_path / "overlap.json"
    assert cli.run(["show", "ranks", str(tmp_path), "-o", str(output)]) == 0
    capsys.readouterr()
    run = tracekit.open(tmp_path)
    assert run.ranks["rank"].to_list() == [0]
    assert run.repairs.select("file", "rank", "what", "done").rows() == [
        (str(output), None, "not a Kineto trace (no events in it)", "file left out")
    ]


def test_strays_are_no_cycle_of_their_own(tmp_path: Path) -> None:
    for cycle in (0, 1):
        for rank in (0, 1):
            write(tmp_path / f"cycle{cycle}" / f"rank{rank}.json", COMMON, rank=rank, world_size=2)
    for name in ("a", "b", "c"):
        (tmp_path / f"{name}.json").write_text(TABLE)
    run = tracekit.open(tmp_path)
    assert run.ranks.select("cycle", "rank", "num_events").rows() == [
        (0, 0, None), (0, 1, None), (1, 0, len(COMMON)), (1, 1, len(COMMON))
    ]  # fmt: skip
    assert run.repairs["done"].to_list() == ["file left out"] * 3


def test_strays_do_not_hide_the_steps_of_a_flat_folder(tmp_path: Path) -> None:
    for step in (10, 20):
        write(tmp_path / f"worker0_step_{step}.json", COMMON)
    (tmp_path / "config.json").write_text("{}")
    sources, strays = without_strays(find_sources([tmp_path]))
    assert [s.cycle for s in split_cycles(sources)] == [10, 20]
    assert [s.path.name for s in strays] == ["config.json"]


def test_a_stray_that_is_named_or_alone_is_read_and_refused(tmp_path: Path) -> None:
    path = tmp_path / "overlap.json"
    path.write_text(TABLE)
    with pytest.raises(InputError, match=r"overlap\.json: not a Kineto trace"):
        tracekit.open(tmp_path)
    write(tmp_path / "rank0.json", COMMON)
    with pytest.raises(InputError, match=r"overlap\.json: not a Kineto trace"):
        tracekit.open([path, tmp_path / "rank0.json"])


def test_traces_by_any_name_are_no_strays(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write(tmp_path / f"{name}.json", COMMON, rank=None)
    (tmp_path / "c.json").write_text('[{"ph": "X", "name": "x", "ts": 1, "dur": 1, "pid": 1, "tid": 1}]')
    assert without_strays(find_sources([tmp_path]))[1] == []
    nothing: list[Source] = []
    assert without_strays(nothing) == ([], [])


def test_a_folder_that_cannot_be_read_is_a_repair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "rank0.json", COMMON)
    write(tmp_path / "closed" / "rank1.json", COMMON, rank=1)
    list_folder = os.scandir

    def refuse(place: str | os.PathLike[str]) -> object:
        if Path(place).name == "closed":
            raise PermissionError(13, "Permission denied", str(place))
        return list_folder(place)

    # Root, who may run this test, can read every folder.
    monkeypatch.setattr(os, "scandir", refuse)
    run = tracekit.open(tmp_path, cache=False)
    assert run.ranks["rank"].to_list() == [0]
    assert run.repairs.select("file", "what", "done").rows() == [
        (str(tmp_path / "closed"), "folder cannot be read (permission denied)", "folder left out")
    ]
    with pytest.raises(InputError, match=r"no trace in this folder .*closed: folder cannot be read \(permission"):
        tracekit.open(tmp_path / "closed")


def test_links_to_nothing_and_pipes_in_a_folder_are_repairs(tmp_path: Path) -> None:
    write(tmp_path / "rank0.json", COMMON)
    (tmp_path / "rank1.json").symlink_to(tmp_path / "missing")
    os.mkfifo(tmp_path / "rank2.json")
    run = tracekit.open(tmp_path)
    assert [(Path(file).name, what) for file, what in run.repairs.select("file", "what").rows()] == [
        ("rank1.json", "a link to nothing"),
        ("rank2.json", "a pipe, not a file (it cannot be read more than once)"),
    ]


def test_what_is_no_file_is_called_by_its_kind(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "missing")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(tmp_path / "socket"))
    for path, kind in (
        (tmp_path / "pipe", "a pipe, not a file"),
        (tmp_path / "socket", "a socket, not a file"),
        (Path(os.devnull), "a device, not a file"),
        (tmp_path / "link", "a link to nothing"),
        (tmp_path / "loop", r"cannot be read \(too many levels of symbolic links\)"),
        (tmp_path / ("a" * 300), r"cannot be read \(file name too long\)"),
        (tmp_path / "missing", "no such file or folder"),
    ):
        with pytest.raises(InputError, match=f"^{path}: {kind}.*; give a trace file or a run folder$"):
            tracekit.open(path)


@pytest.mark.parametrize("command", [["show", "overlap"], ["report"], ["view", "--no-browser"]])
def test_an_empty_path_is_not_this_folder(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run([*command, ""]) == 2
    assert capsys.readouterr().err.startswith("tracekit: the path of the run is empty: give a run's folder")


def test_names_of_files_need_not_be_text(tmp_path: Path) -> None:
    write(tmp_path / "rank0.json", COMMON, rank=0, world_size=2)
    write(tmp_path / os.fsdecode(b"rank1\xff.json"), COMMON, rank=1, world_size=2)
    run = tracekit.open(tmp_path)
    assert [Path(file).name for file in run.ranks["file"]] == ["rank0.json", "rank1\ufffd.json"]
    assert run.events.height == 2 * len(COMMON)
