"""The closed forms through the command line."""

from __future__ import annotations

import json

import polars as pl
import pytest

from tracekit import cli

GIGA = 10**9


def rows(capsys, *args):
    assert cli.run(["predict", *args, "--format", "json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["format"], answer["table"]) == (1, "predict")
    return answer["rows"]


def test_the_table_of_the_zero_paper(capsys):
    found = rows(capsys, "--params", "7e9")
    memory = {(row["dp"], row["stage"]): row["memory_bytes"] for row in found}
    assert memory == {
        (1, 0): 112_000_000_000, (1, 1): 112_000_000_000, (1, 2): 112_000_000_000, (1, 3): 112_000_000_000,
        (8, 0): 112_000_000_000, (8, 1): 38_500_000_000, (8, 2): 26_250_000_000, (8, 3): 14_000_000_000,
        (64, 0): 112_000_000_000, (64, 1): 29_312_500_000, (64, 2): 15_531_250_000, (64, 3): 1_750_000_000,
    }  # fmt: skip
    assert {(row["stage"], row["psi"]) for row in found} == {(0, 2), (1, 2), (2, 2), (3, 3)}


def test_one_row_in_full(capsys):
    assert rows(capsys, "--params", "70B", "--dp", "64", "--stage", "3") == [
        {
            "dp": 64,
            "stage": 3,
            "memory_bytes": 17_500_000_000,
            "psi": 3,
            "volume_numel": 210 * GIGA,
            "wire_numel": 206_718_750_000,
            "dtype": "bfloat16",
            "reduce_dtype": "bfloat16",
            "payload_bytes": 420 * GIGA,
            "wire_bytes": 413_437_500_000,
        }
    ]


@pytest.mark.parametrize(("stage", "bytes_a_parameter"), [(0, 8), (1, 6), (2, 6), (3, 8)])
def test_gathers_carry_parameters_and_the_rest_gradients(stage, bytes_a_parameter, capsys):
    args = ("--params", "1e6", "--dp", "2", "--stage", str(stage), "--dtype", "bfloat16", "--reduce-dtype", "float32")
    (row,) = rows(capsys, *args)
    assert row["payload_bytes"] == bytes_a_parameter * 10**6
    assert row["wire_bytes"] == bytes_a_parameter * 10**6 // 2


def test_a_row_a_dtype(capsys):
    found = rows(capsys, "--params", "10", "--dp", "2", "--stage", "1", "--dtype", "float32,bfloat16")
    assert [(row["dtype"], row["payload_bytes"]) for row in found] == [("float32", 80), ("bfloat16", 40)]


def test_shares_that_do_not_divide_are_rounded_up(capsys):
    (row,) = rows(capsys, "--params", "10", "--dp", "3", "--stage", "3")
    assert (row["memory_bytes"], row["wire_numel"], row["wire_bytes"]) == (54, 20, 40)  # 160/3, 30·2/3, 60·2/3
    (row,) = rows(capsys, "--params", "10", "--dp", "3", "--stage", "1")
    assert (row["memory_bytes"], row["wire_numel"], row["wire_bytes"]) == (80, 14, 27)  # 40+120/3, 20·2/3, 40·2/3


def test_options_of_the_optimizer(capsys):
    (row,) = rows(capsys, "--params", "100", "--dp", "4", "--stage", "1", "--k", "8", "--fp32-grad-accum")
    assert row["memory_bytes"] == 200 + 200 + 200 + 400


@pytest.mark.parametrize("text", ["7000000000", "7e9", "7_000_000_000", "7B", "7b", "0.7e10", "7000M"])
def test_ways_to_say_seven_billion(text, capsys):
    assert rows(capsys, "--params", text, "--dp", "1", "--stage", "0")[0]["volume_numel"] == 14 * GIGA


def test_a_range_of_groups(capsys):
    assert [row["dp"] for row in rows(capsys, "--params", "8", "--dp", "1-3,8", "--stage", "0")] == [1, 2, 3, 8]


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["--params", "0"], "--params 0 must be a whole number from 1 to 1e18"),
        (["--params=-7e9"], "--params -7e9 must be a whole number"),
        (["--params", "1.5"], "--params 1.5 must be a whole number"),
        (["--params", "inf"], "--params inf must be a whole number"),
        (["--params", "nan"], "--params nan must be a whole number"),
        (["--params", "1e999999"], "--params 1e999999 must be a whole number"),
        (["--params", "many"], "--params many is not a number such as 7e9 or 7B"),
        (["--params", ""], "--params  is not a number"),
        (["--params", "1", "--dp", "0"], "--dp 0 must hold sizes from 1"),
        (["--params", "1", "--dp=-8"], "--dp -8 is not a list of whole numbers"),
        (["--params", "1", "--dp", "1,x"], "--dp 1,x is not a list of whole numbers such as 1,8,64 or 2-4"),
        (["--params", "1", "--dp", "1-9999999999"], "holds a range that is backwards or longer than 10,000"),
        (["--params", "1", "--dp", "8-1"], "--dp 8-1 holds a range that is backwards"),
        (["--params", "1", "--stage", "4"], "--stage 4 is unknown: the stages are 0 (DDP), 1, 2 and 3 (FSDP)"),
        (["--params", "1", "--k=-1"], "--k -1 must be from 0"),
        (["--params", "1", "--dtype", "bf16"], "--dtype bf16 is unknown: choose from float64, float32, bfloat16, "),
        (["--params", "1", "--dtype", ","], "--dtype is empty: choose from float64, "),
        (["--params", "1", "--reduce-dtype", "x"], "--reduce-dtype x is unknown"),
    ],
)
def test_wrong_values_are_one_sentence_and_exit_2(args, sentence, capsys):
    assert cli.run(["predict", *args]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("tracekit: ")
    assert sentence in printed.err
    assert printed.err.count("\n") == 1


def test_the_table_for_people(capsys):
    assert cli.run(["predict", "--params", "7e9", "--dp", "8"]) == 0
    out = capsys.readouterr().out
    assert "Ψ = 7,000,000,000 parameters, optimizer state 12 bytes a parameter" in out
    assert "memory GB" in out
    assert "26.25" in out


def test_output_files(tmp_path, capsys):
    path = tmp_path / "table.csv"
    args = ["predict", "--params", "7e9", "-o", str(path)]
    assert cli.run(args) == 0
    assert capsys.readouterr() == ("", f"wrote {path}\n")
    assert pl.read_csv(path).height == 12
    assert cli.run(args) == 2
    assert "exists already: pass --force" in capsys.readouterr().err
    assert cli.run([*args, "--force", "--format", "parquet"]) == 0
    assert pl.read_parquet(path)["memory_bytes"].dtype == pl.Int64
