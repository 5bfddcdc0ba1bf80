"""`ledger` on a run made by hand: what a user tells of a trace without a manifest."""

from __future__ import annotations

import json

import pytest
from fakes import collective, run_of, step

import tracekit
from tracekit import cli

PSI = 100


@pytest.fixture(autouse=True)
def run(monkeypatch):
    """Two steps of a ZeRO-3 run of 100 parameters: 2 gathers and a reduce-scatter, and a gather too many in one."""
    gathers = [collective("all_gather", "stream 20", at, at + 10, numel=PSI, step=5) for at in (0, 20)]
    reduced = collective("reduce_scatter", "stream 20", 40, 50, numel=PSI, step=5)
    later = [{**row, "step": 6, "start_ns": row["start_ns"] + 100_000} for row in (*gathers, reduced, gathers[0])]
    made = run_of(steps=[step(5, 0, 100), step(6, 100, 200)], collectives=[*gathers, reduced, *later])
    monkeypatch.setattr(tracekit, "open", lambda paths, **_: made, raising=False)
    return made


def rows(capsys, *args):
    assert cli.run(["ledger", "x", *args, "--format", "json"]) == 0
    printed = capsys.readouterr()
    return json.loads(printed.out)["rows"], printed.err


def test_without_a_word_of_the_user_only_what_was_measured(capsys):
    told, err = rows(capsys, "--step", "5")
    assert [(row["term"], row["numel"]) for row in told] == [("measured", 3 * PSI), ("unexplained", None)]
    assert "ledger: unknown is what the run should send: give --strategy and --params, or --plan\n" in err


def test_strategy_and_parameters_give_the_theory(capsys):
    told, _ = rows(capsys, "--strategy", "fsdp2", "--params", str(PSI), "--columns", "step,term,numel")
    assert [tuple(row.values()) for row in told] == [
        (5, "theory", 3 * PSI),
        (5, "measured", 3 * PSI),
        (5, "unexplained", 0),
        (6, "theory", 3 * PSI),
        (6, "measured", 4 * PSI),
        (6, "unexplained", PSI),
    ]


def test_sum_and_by(capsys):
    told, _ = rows(capsys, "--sum", "--by", "kind")
    assert [(row["kind"], row["numel"]) for row in told if row["term"] == "measured"] == [
        ("all_gather", 5 * PSI),
        ("reduce_scatter", 2 * PSI),
    ]


def test_show_has_the_table_without_these_options(capsys):
    assert cli.run(["show", "ledger", "x", "--by", "kind", "--format", "csv"]) == 0
    assert capsys.readouterr().out.startswith("rank,step,kind,term,numel")
    assert cli.run(["show", "ledger", "x", "--sum"]) == 2


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["--strategy", "zero9"], "--strategy zero9"),
        (["--params", "many"], "--params many is not a number such as 7e9 or 7B"),
        (["--params", __file__], "--params FILE needs --strategy"),
        (
            ["--params", __file__, "--strategy", "hsdp"],
            "how large the axes dp_replicate, dp_shard of hsdp are",
        ),
        (["--by", "lane"], "ledger cannot be grouped by 'lane': did you mean layer? (there are rank, step, "),
        (["--step", "9"], "--step 9 is not in this table, which has step 5, 6"),
    ],
)
def test_wrong_options_are_one_sentence_and_exit_2(args, sentence, capsys):
    assert cli.run(["ledger", "x", *args]) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "place"),
    [
        (["--sum"], "tracekit ledger --help"),
        (["--partial"], "tracekit ledger --help"),
        (["--params", "7e9"], "tracekit ledger --help"),
        (["--nonsense"], "tracekit --help"),
    ],
)
def test_options_that_only_the_ledger_has_name_their_command(options, place, capsys):
    assert cli.run(["show", "ledger", "nowhere", *options]) == 2
    assert f"(see {place})" in capsys.readouterr().err


@pytest.mark.parametrize(("file", "said"), [(True, True), (False, False)])
def test_what_is_not_taken_of_a_file_of_parameters_is_said(file, said, tmp_path, capsys):
    write_run = {"format": 1, "strategy": "ddp", "world_size": 2, "psi": 10, "psi_train": 10}
    weight = {"name": "w", "shape": [10], "dtype": "float32", "numel": 10}
    path = tmp_path / "other.json"
    path.write_text(json.dumps(write_run | {"parameters": [weight]}))
    trace = tmp_path / "rank0.json"
    trace.write_text(
        json.dumps(
            {"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 2}]}
        )
    )
    assert cli.run(["ledger", str(trace), "--strategy", "ddp", "--params", str(path) if file else "10"]) == 0
    assert ("only the parameters' shapes are taken" in capsys.readouterr().err) is said
