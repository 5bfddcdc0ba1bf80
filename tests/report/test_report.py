from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import polars as pl
import pytest
from fake_runs import empty_run, fake_run

import tracekit
from tracekit import table_registry
from tracekit.errors import UsageError
from tracekit.model.device_time import compute_cover
from tracekit.report.sections import HTA
from tracekit.report.write import analyse, write_report
from tracekit.table_registry import Table

TRACES = Path(__file__).parents[2] / "traces"


def test_three_files_and_the_sentences(tmp_path):
    paths = write_report([fake_run()], tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["report.html", "report.json", "trace.pftrace"]
    assert paths.html.read_text("utf-8").startswith("<!doctype html>")
    assert paths.sentences[0].startswith("FSDP2 without resharding moved 2.00Ψ")


def test_numbers_are_whole_and_unknown_is_null(tmp_path):
    paths = write_report([fake_run("a"), fake_run("b")], tmp_path)
    report = json.loads(paths.json.read_text("utf-8"))
    assert report["format"] == 1
    assert [run["name"] for run in report["runs"]] == ["a", "b"]
    run = report["runs"][0]
    assert set(run) == {"name", "facts", "summary", "verdicts", "tables"}
    assert set(run["tables"]) == {table.name for table in table_registry.TABLES if table.in_report}
    assert run["tables"]["breakdown"][0] == {
        "rank": 0,
        "device": "cpu",
        "step": 0,
        "step_ns": 1_000_000,
        "compute_ns": 600_000,
        "exposed_comm_ns": 80_000,
        "exposed_copy_ns": 0,
        "idle_ns": 320_000,
        "residual_ns": 0,
    }
    cut = [row for row in run["tables"]["collectives"] if row["payload_bytes"] is None]
    assert len(cut) == 2
    assert run["facts"]["coverage"] == {"bytes_known": 70, "collectives": 72}
    assert "NaN" not in paths.json.read_text("utf-8")


def test_summary_of_a_run_by_hand():
    summary = analyse(fake_run(), "a").summary
    assert summary["step_ns"] == 1_000_000
    assert summary["exposed_comm_ns"] == 80_000
    assert summary["hidden_ratio"] == 400 / 480
    assert summary["num_collectives"] == 12


def test_an_empty_run_is_reported_too(tmp_path):
    paths = write_report([empty_run()], tmp_path)
    tables = json.loads(paths.json.read_text("utf-8"))["runs"][0]["tables"]
    assert all(rows == [] for rows in tables.values())


def test_runs_of_one_name_are_told_apart(tmp_path):
    paths = write_report([fake_run("run"), fake_run("run")], tmp_path)
    names = [run["name"] for run in json.loads(paths.json.read_text("utf-8"))["runs"]]
    assert names == ["run (1)", "run (2)"]
    assert paths.sentences[0].startswith("run (1): ")


def test_nothing_is_replaced_unasked(tmp_path):
    (tmp_path / "trace.pftrace").write_bytes(b"mine")
    with pytest.raises(UsageError, match="--force"):
        write_report([fake_run()], tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["trace.pftrace"]
    write_report([fake_run()], tmp_path, force=True)
    assert (tmp_path / "trace.pftrace").read_bytes() != b"mine"


def test_a_failure_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("tracekit.report.write.write_trace", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_report([fake_run()], tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_each_table_is_made_once(tmp_path, monkeypatch):
    made, covers = Counter(), []
    make = Table.make

    def counted(table, run, by=()):
        made[table.name, tuple(by)] += 1
        return make(table, run, by)

    def covered(work):
        covers.append(work.height)
        return compute_cover(work)

    monkeypatch.setattr(Table, "make", counted)
    monkeypatch.setattr("tracekit.model.run.compute_cover", covered)
    runs = [tracekit.open(TRACES / name, cache=False) for name in ("fsdp2", "zero2")]
    write_report(runs, tmp_path / "out")
    in_report = {(table.name, ()) for table in table_registry.TABLES if table.in_report}
    assert in_report <= set(made)
    assert set(made.values()) == {len(runs)}
    assert len(covers) == len(runs)


def test_no_run_is_one_sentence(tmp_path):
    with pytest.raises(UsageError, match="at least one run"):
        write_report([], tmp_path)


def test_the_report_holds_every_table_but_those_of_single_events(tmp_path):
    report = write_report([fake_run()], tmp_path / "out")
    held = set(json.loads(report.json.read_bytes())["runs"][0]["tables"])
    # Per-event tables stay out: trace.pftrace has every event. HTA's are there when asked for.
    assert set(table_registry.names()) - held == {"events", "work", "allocations", "blocks", *HTA.tables}
    report = write_report([fake_run()], tmp_path / "with", hta=True)
    assert set(json.loads(report.json.read_bytes())["runs"][0]["tables"]) == held | set(HTA.tables)


def test_a_report_imports_neither_altair_nor_hta(tmp_path):
    # Each takes as long as the report itself; charts are written without the one, and the other is asked for.
    write_report([fake_run()], tmp_path / "first")  # from here on the page's script is kept
    code = "import sys, tracekit.cli; assert tracekit.cli.run(sys.argv[1:]) == 0; print(*sys.modules)"
    command = [sys.executable, "-c", code, "report", str(TRACES / "ddp"), "--no-cache", "-o", str(tmp_path / "second")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert not {"altair", "hta", "pandas", "vl_convert", "torch"} & set(done.stdout.splitlines()[-1].split())


def test_without_a_complete_step_sentences_and_numbers_follow_one_rule():
    from tracekit.report.description import summary
    from tracekit.report.sentences import sentences

    whole, cut = fake_run(), fake_run()
    cut.steps = cut.steps.with_columns(complete=pl.lit(value=False), reason=pl.lit("the file ends early"))
    numbers, texts = summary(cut), sentences(cut)
    assert numbers["step_ns"] == summary(whole)["step_ns"]
    assert numbers["exposed_comm_ns"] == summary(whole)["exposed_comm_ns"]
    exposed = [text for text in sentences(whole) if text.startswith("Exposed communication")]
    assert exposed[0] in texts
    assert any("incomplete, so no mean is one of whole steps: the file ends early" in text for text in texts)
