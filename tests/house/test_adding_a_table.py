"""A table is one line of the registry and a module; everything that lists or prints tables then has it."""

from __future__ import annotations

import json

import pytest
from fake_runs import fake_run

import tracekit
from tracekit import cli, table_registry
from tracekit.cli import show
from tracekit.export import table_reference
from tracekit.report.write import write_report

MODULE = """
from tracekit import common_columns as c
from tracekit.table_schema import Column, Groupings, Schema
import polars as pl

LONGEST_BY = Groupings((c.RANK, c.KIND), default=("rank",))
LONGEST_SCHEMA = Schema(c.RANK, Column("longest_ns", pl.Int64, "Duration of the longest collective."))


def longest(run, *, by=None):
    keys = LONGEST_BY.keys(by, "longest")
    return run.collectives.group_by(keys).agg(pl.col("dur_ns").max().alias("longest_ns")).sort(keys)
"""


@pytest.fixture
def run(monkeypatch, tmp_path):
    (tmp_path / "longest_table.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    line = table_registry.Table("longest", "longest_table:longest", "the longest collective of each rank")
    monkeypatch.setattr(table_registry, "TABLES", [*table_registry.TABLES, line])
    made = fake_run()
    monkeypatch.setattr(tracekit, "open", lambda paths, **_: made, raising=False)
    return made


def test_in_python(run):
    table = run.table("longest")
    assert table.columns == ["rank", "longest_ns"]
    assert run.table("longest", by=["kind"]).columns == ["kind", "longest_ns"]
    assert tracekit.tables()[-1].name == "longest"
    assert tracekit.tables()[-1].schema.columns["longest_ns"].unit == "ns"


def test_in_show_and_as_json(run, capsys):
    assert cli.run(["show", "longest", "x", "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["table"], told["rows"]) == ("longest", run.table("longest").to_dicts())
    assert cli.run(["show", "longest", "x", "--by", "layer"]) == 2
    assert "longest cannot be grouped by 'layer': there are rank, kind" in capsys.readouterr().err


def test_in_the_help_and_in_the_completion(run, capsys):
    assert cli.run(["show", "--help"]) == 0
    assert "the longest collective of each rank" in capsys.readouterr().out
    assert show.complete("lon") == [("longest", "the longest collective of each rank")]


def test_in_the_report(run, tmp_path):
    paths = write_report([run], tmp_path / "out")
    assert json.loads(paths.json.read_bytes())["runs"][0]["tables"]["longest"] == run.table("longest").to_dicts()


def test_in_the_reference(run):
    page = table_reference.page()
    assert "## longest\n\nThe longest collective of each rank. " in page
    assert "| `longest_ns` | Int64 | ns |  | Duration of the longest collective. |" in page
