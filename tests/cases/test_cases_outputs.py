"""Reports on outputs: inputs stay, any encoding, cells that a spreadsheet would run, addresses on the web."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from kineto import COMMON, kernel, step, write

import tracekit
from tracekit import cli
from tracekit.export import tabular

pytestmark = pytest.mark.slow


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
        ("run/rank*", "run/rank0.json"),
        ("ru[n]", "run/rank1.json.gz"),
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


PATTERN = '[[communication]]\nname = "^ring"\nkind = "all_reduce"\n'


@pytest.mark.parametrize("how", ["option", "environment", "folder above", "report"])
@pytest.mark.parametrize("output", ["mine.json", "link.json", "sub/../mine.json"])
def test_no_output_replaces_the_file_of_patterns(
    folder: Path, how: str, output: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Named as outputs are, since outputs of a report have names of their own.
    name = {"folder above": "tracekit-patterns.toml", "report": "report.json"}.get(how, "mine.json")
    patterns = folder / name
    patterns.write_text(PATTERN)
    (folder / "link.json").symlink_to(patterns)
    (folder / "sub").mkdir()
    written = {"mine.json": name, "sub/../mine.json": f"sub/../{name}"}.get(output, output)
    command = ["show", "overlap", str(folder / "run"), "-f", "json", "-o", str(folder / written)]
    if how == "option":
        command += ["--patterns", str(patterns)]
    elif how == "environment":
        monkeypatch.setenv("TRACEKIT_PATTERNS", str(patterns))
    elif how == "report":
        command = ["report", str(folder / "run"), "-o", str(folder), "--patterns", str(patterns)]
    assert cli.run([*command, "--no-cache", "--force"]) == 2
    assert "is an input of this command" in capsys.readouterr().err
    assert patterns.read_text() == PATTERN


@pytest.mark.parametrize(("option", "text"), [("--plan", '{"rows": []}'), ("--params", "")])
def test_no_output_replaces_what_a_ledger_is_given(
    folder: Path, option: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = folder / "given.json"
    given.write_text(text or (Path(__file__).parents[2] / "traces" / "ddp" / "manifest.json").read_text())
    before = given.read_text()
    command = ["ledger", str(folder / "run"), option, str(given), "--strategy", "ddp", "-o", str(given), "--force"]
    assert cli.run([*command, "--no-cache"]) == 2
    assert "is an input of this command" in capsys.readouterr().err
    assert given.read_text() == before


@pytest.mark.parametrize("name", ["manifest.json", "rank0.meta.json", "tracekit-patterns.toml"])
def test_no_output_replaces_what_lies_above_a_cycles_folder(
    folder: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write(folder / "run" / "cycle1" / "rank0.json", COMMON)
    (folder / "run" / name).write_text("" if name.endswith("toml") else "{}")
    output = ["-f", "json", "-o", str(folder / "run" / name), "--force", "--no-cache"]
    assert cli.run(["show", "overlap", str(folder / "run" / "cycle1"), *output]) == 2
    assert "is an input of this command" in capsys.readouterr().err


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
def test_an_address_is_refused_by_what_it_needs(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["show", "overlap", address]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"tracekit: {address}: ")
    assert "zero-tracekit[remote]" in said
    assert "copy the run here" in said


def test_a_folder_that_looks_like_an_address_is_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "s3:" / "run" / "rank0.json", COMMON)
    assert tracekit.open("s3:/run", cache=False).ranks.height == 1


# -- CSV ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", ["=", "+", "-", "@", "\t", "\r", "a", ""])
def test_cells_that_a_spreadsheet_would_run_are_defused_on_request(
    tmp_path: Path, first: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"{first}cmd"
    path = write(tmp_path / "rank0.json", [step(5, 1000, 100), *kernel(name, 1010, 9, stream=7, correlation=1)])
    output = tmp_path / "work.csv"
    for asked, cell in (([], name), (["--safe-csv"], name if first in {"a", ""} else f"'{name}")):
        command = ["show", "work", str(path), "--no-cache", "-o", str(output), "--force", *asked]
        assert cli.run(command) == 0
        assert pl.read_csv(output)["name"].to_list() == [cell]
    capsys.readouterr()
    assert cli.run(["show", "work", str(path), "--safe-csv"]) == 2
    assert "--safe-csv is for CSV alone" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "shown"), [("\x1b[2J", "\\x1b[2J"), ("a\u202eb", "a\\u202eb"), ("µs", "µs"), (None, None)]
)
def test_text_for_a_terminal_is_spelt_out(text: str | None, shown: str | None) -> None:
    assert tabular.printable(pl.DataFrame({"a": [text], "b": [1]})).rows() == [(shown, 1)]


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8", "cp1252"])
def test_any_encoding_of_the_output_works(tmp_path: Path, encoding: str) -> None:
    path = write(tmp_path / "rank0.json", [step(5, 1000, 100), *kernel("µ→∑", 1010, 9, stream=7, correlation=1)])
    command = [sys.executable, "-m", "tracekit", "show", "work", str(path), "--no-cache"]
    environment = os.environ | {"PYTHONIOENCODING": encoding, "PYTHONPATH": str(Path(tracekit.__file__).parents[1])}
    done = subprocess.run(command, capture_output=True, check=False, env=environment)
    assert (done.returncode, done.stderr) == (0, b"")
    assert "µ→∑".encode(encoding, "backslashreplace") in done.stdout
