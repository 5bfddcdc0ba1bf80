"""`show` on a run made by hand: choosing, ordering, writing. What the tables hold is tested where they are made."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import polars as pl
import pytest
from fakes import FakeRun

import tracekit
from tracekit import cli, table_registry

STEPS = pl.DataFrame(
    {"rank": [0, 0, 1, 1], "step": [2, 3, 2, 3], "start_ns": [1000, 2000, 1100, 2100], "dur_ns": [900, None, 800, 850]},
    schema={"rank": pl.Int32, "step": pl.Int64, "start_ns": pl.Int64, "dur_ns": pl.Int64},
)


@pytest.fixture(autouse=True)
def run(monkeypatch):
    made = FakeRun(name="fsdp2", paths=[], steps=STEPS, ranks=pl.DataFrame({"rank": [0], "file": ["a\x1b[31m.json"]}))
    monkeypatch.setattr(tracekit, "open", lambda paths, **_: made, raising=False)
    return made


def rows(capsys, *args):
    assert cli.run(["show", "steps", "out/demo/fsdp2", *args, "--format", "json"]) == 0
    return json.loads(capsys.readouterr().out)["rows"]


def test_json(capsys):
    assert cli.run(["show", "steps", "somewhere", "--format", "json", "--step", "3", "--rank", "0"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "format": 1,
        "table": "steps",
        "run": "fsdp2",
        "rows": [{"rank": 0, "step": 3, "start_ns": 2000, "dur_ns": None}],
    }


def test_columns_can_be_picked(capsys):
    (row,) = rows(capsys, "--columns", "dur_ns,rank", "--sort", "start_ns", "--limit", "1")
    assert list(row.items()) == [("dur_ns", 900), ("rank", 0)]


@pytest.mark.parametrize(
    ("args", "durations"),
    [
        ([], [900, None, 800, 850]),
        (["--step", "2"], [900, 800]),
        (["--step", "2-3", "--rank", "1"], [800, 850]),
        (["--rank", "1,0"], [900, None, 800, 850]),
        (["--sort", "dur_ns"], [800, 850, 900, None]),
        (["--sort", "dur_ns:desc"], [900, 850, 800, None]),
        (["--sort", "step:asc"], [900, 800, None, 850]),
        (["--sort", "dur_ns:desc", "--limit", "1"], [900]),
        (["--limit", "0"], []),
    ],
)
def test_choosing_and_ordering(args, durations, capsys):
    assert [row["dur_ns"] for row in rows(capsys, *args)] == durations


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["stepz", "x"], "there is no table 'stepz': did you mean steps? (there are ranks, steps, events, "),
        (["blame", "x"], "there is no table 'blame' any more: it is called exposure now"),
        (["qqq", "x"], "there is no table 'qqq': there are ranks, steps, "),
        (["steps", "x", "--step", "9"], "--step 9 is not in this table, which has step 2, 3"),
        (["steps", "x", "--rank", "7"], "--rank 7 is not in this table, which has rank 0, 1"),
        (["steps", "x", "--step", "two"], "--step two is not a list of whole numbers"),
        (["ranks", "x", "--step", "1"], "--step does not fit: this table has no column step"),
        (["steps", "x", "--sort", "dur"], "--sort dur is not a column: did you mean dur_ns?"),
        (["steps", "x", "--columns", "rank,durns"], "--columns durns is not a column: did you mean dur_ns?"),
        (["steps", "x", "--sort", "rank:down"], "--sort rank:down ends in 'down': use rank:asc or rank:desc"),
        (
            ["steps", "x", "--by", "layer"],
            "steps has no --by: only overlap, idle, volume, ledger, exposure, peak can be grouped",
        ),
    ],
)
def test_wrong_questions_are_one_sentence_and_exit_2(args, sentence, capsys):
    assert cli.run(["show", *args]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert sentence in printed.err
    assert printed.err.count("\n") == 1


@pytest.mark.parametrize("frame", [STEPS.clear(), STEPS.head(1)])
@pytest.mark.parametrize("form", ["table", "json", "csv", "parquet"])
def test_every_format_takes_an_empty_and_a_one_row_frame(frame, form, run, tmp_path):
    run.steps = frame
    assert cli.run(["show", "steps", "x", "--format", form, "-o", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out").stat().st_size > 0


@pytest.mark.parametrize(("suffix", "start"), [("json", b'{"format":1'), ("csv", b"rank,step"), ("parquet", b"PAR1")])
def test_the_suffix_names_the_format(suffix, start, tmp_path):
    path = tmp_path / f"steps.{suffix}"
    assert cli.run(["show", "steps", "x", "-o", str(path)]) == 0
    assert path.read_bytes().startswith(start)


def test_dash_is_stdout(capsys):
    assert cli.run(["show", "steps", "x", "--format", "csv", "-o", "-"]) == 0
    assert capsys.readouterr().out.splitlines()[1] == "0,2,1000,900"


def test_the_table_for_people(capsys):
    assert cli.run(["show", "steps", "x", "--limit", "3"]) == 0
    out = capsys.readouterr().out
    assert "steps of fsdp2: each optimizer step: when it ran" in out
    assert "; 3 of 4 rows (--limit shows more)" in out
    assert "dur ns" in out
    assert "–" in out


def test_a_long_table_is_cut_for_people_only(run, capsys):
    run.steps = pl.DataFrame({"n": range(101)})
    assert cli.run(["show", "steps", "x"]) == 0
    assert "; 100 of 101 rows (--limit shows more)" in capsys.readouterr().out
    assert len(rows(capsys)) == 101


def test_names_from_files_cannot_write_to_the_terminal(capsys):
    assert cli.run(["show", "ranks", "x"]) == 0
    assert "\\x1b[31m" in capsys.readouterr().out


def test_table_names_are_unique_and_listed_in_the_help(capsys):
    assert len(set(table_registry.names())) == len(table_registry.TABLES)
    cli.run(["show", "--help"])
    out = capsys.readouterr().out
    assert all(f" {table.name} " in out for table in table_registry.TABLES)


def test_the_shell_completes_the_names_of_tables():
    asked = {"_TRACEKIT_COMPLETE": "complete_bash", "COMP_WORDS": "tracekit show hta-", "COMP_CWORD": "2"}
    program = [sys.executable, "-m", "tracekit"]
    done = subprocess.run(program, capture_output=True, text=True, check=False, env={**os.environ, **asked})
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == [name for name in table_registry.names() if name.startswith("hta-")]


def windows(*steps):
    return pl.DataFrame(
        [(0, 0, number, 0, 10, complete, reason) for number, complete, reason in steps],
        schema={"rank": pl.Int32, "cycle": pl.Int32, "step": pl.Int64, "start_ns": pl.Int64, "end_ns": pl.Int64,
                "complete": pl.Boolean, "reason": pl.String}, orient="row",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("steps", "note"),
    [
        (windows((5, True, None), (6, False, "the clock jumped")), "not whole: step 6 of rank 0 (the clock jumped)"),
        (windows((5, False, "a"), (6, False, None)), "not whole: step 5 of rank 0 (a), and 1 more (show steps)"),
        (
            windows((6, False, "the file\x1b[2J ends early")),
            "not whole: step 6 of rank 0 (the file\\x1b[2J ends early)",
        ),
        (windows((5, True, None), (6, True, None)), None),
    ],
)
def test_rows_of_steps_that_are_not_whole_are_told(steps, note, monkeypatch, capsys):
    work = pl.DataFrame({"rank": [0, 0], "step": [5, 6], "dur_ns": [1, 2]}, schema_overrides={"rank": pl.Int32})
    made = FakeRun(name="fsdp2", paths=[], steps=steps, work=work)
    monkeypatch.setattr(tracekit, "open", lambda paths, **_: made, raising=False)
    assert cli.run(["show", "work", "x", "--format", "table"]) == 0
    found = [line for line in capsys.readouterr().out.splitlines() if line.startswith("not whole")]
    assert found == ([] if note is None else [note])
