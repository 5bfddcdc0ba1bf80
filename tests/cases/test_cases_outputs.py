"""Reports on outputs: inputs stay, any encoding, cells that a spreadsheet would run, addresses on the web."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from kineto import COMMON, write

import tracekit
from tracekit import cli, extras


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "run" / "rank0.json", COMMON, rank=0, world_size=2)
    write(tmp_path / "run" / "rank1.json.gz", COMMON, rank=1, world_size=2)
    (tmp_path / "run" / "tracekit-patterns.toml").write_text("")
    return tmp_path


# -- No output replaces an input ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "output"),
    [
        ("run", "run/rank0.json"),
        ("run", "run/../run/rank1.json.gz"),
        ("run/rank0.json", "run/rank0.json"),
        ("run", "symbolic.json"),
        ("run", "hard.json"),
        ("run", "run/tracekit-patterns.toml"),
        ("run/rank0.json", "run/tracekit-patterns.toml"),
        ("link", "run/rank0.json"),
    ],
)
def test_no_output_replaces_an_input(folder: Path, given: str, output: str, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "symbolic.json").symlink_to(folder / "run" / "rank0.json")
    (folder / "link").symlink_to(folder / "run")
    os.link(folder / "run" / "rank1.json.gz", folder / "hard.json")
    before = {file: file.read_bytes() for file in (folder / "run").iterdir()}
    for force in ([], ["--force"]):
        command = ["show", "overlap", str(folder / given), "--no-cache", "-f", "json", "-o", str(folder / output)]
        assert cli.run([*command, *force]) == 2
        assert "is an input of this command" in capsys.readouterr().err
    assert {file: file.read_bytes() for file in (folder / "run").iterdir()} == before
    assert (folder / "symbolic.json").is_symlink()


def test_an_output_of_before_is_replaced(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = folder / "run" / "overlap.csv"
    output.write_text("old")
    assert cli.run(["show", "overlap", str(folder / "run"), "-o", str(output), "--force"]) == 0
    assert output.read_text().startswith("rank,")
    capsys.readouterr()


def test_a_report_does_not_replace_its_trace(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(folder / "out" / "report.json", COMMON)
    before = path.read_bytes()
    assert cli.run(["report", str(path), "-o", str(folder / "out"), "--force", "--no-cache"]) == 2
    assert "report.json is an input of this command" in capsys.readouterr().err
    assert path.read_bytes() == before
    assert [file.name for file in (folder / "out").iterdir()] == ["report.json"]
    assert tracekit.open(path, cache=False).ranks.height == 1


# -- Addresses ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["s3://bucket/run", "gs://b/r/rank*.json", "hf://d/x.json", "https://h/rank0.json"])
@pytest.mark.parametrize("lacks", [True, False])
def test_an_address_is_refused_by_what_it_needs(
    address: str, lacks: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(extras, "installed", lambda extra: not lacks)
    assert cli.run(["show", "overlap", address]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"tracekit: {address}: ")
    assert ("pip install 'zero-tracekit[remote]'" in said) == lacks
    assert "copy the run here" in said


def test_a_folder_that_looks_like_an_address_is_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "s3:" / "run" / "rank0.json", COMMON)
    assert tracekit.open("s3:/run", cache=False).ranks.height == 1
