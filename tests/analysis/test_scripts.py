"""Every script of analysis/ on the sample runs: it answers with a number known from elsewhere, and refuses politely."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import tracekit
from tracekit import theory

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "analysis"
FSDP2, ZERO2, HSDP = (ROOT / "traces" / name for name in ("fsdp2", "zero2", "hsdp"))
DATA = Path(__file__).parent / "data"
NAMES = sorted(path.stem for path in SCRIPTS.glob("*.py") if path.stem != "script")
# The script, and arguments with which it has something to say.
ANSWERS = {
    "exposed_time": [FSDP2],
    "hta_beside_ours": [FSDP2],
    "memory_timeline": [ZERO2],
    "overlap_per_layer": [FSDP2],
    "bus_bandwidth": [DATA / "bus_bandwidth.csv"],
    "scaling": [DATA / "step_times.csv"],
    "volume_beside_theory": [FSDP2, ZERO2, HSDP],
    "volume_by_ranks": ["--model", "tiny"],
    "zero2_beside_fsdp2": [ZERO2, FSDP2],
}
DRAWN = sorted(set(ANSWERS) - {"hta_beside_ours"})
PSI, ROOT_NUMEL, BLOCK_NUMEL = 2_753_792, 1_048_832, 852_480


@pytest.fixture
def started(monkeypatch, capsys):
    """Runs a script as the program and gives its exit code and what it printed."""
    monkeypatch.syspath_prepend(str(SCRIPTS))

    def start(name, *args):
        monkeypatch.setattr(sys, "argv", [str(SCRIPTS / f"{name}.py"), *map(str, args)])
        try:
            runpy.run_path(sys.argv[0], run_name="__main__")
            code = 0
        except SystemExit as end:
            code = end.code or 0
        return code, *capsys.readouterr()

    return start


@pytest.fixture
def rows(started):
    """The rows that a script prints as JSON."""

    def answered(name):
        code, out, err = started(name, *ANSWERS[name], "--format", "json")
        assert (code, err) == (0, "")
        return json.loads(out)

    return answered


def test_every_script_is_run_here():
    # The page of claims trains for minutes; tests/analysis/test_claims.py has what it is made of.
    assert {*ANSWERS, "claims"} == set(NAMES)


def test_overlap_of_layers_adds_up_to_the_table(rows):
    found = rows("overlap_per_layer")
    assert [row["layer"] for row in found] == ["(root)", "layers.0", "layers.1"]
    table = tracekit.open(FSDP2).table("overlap", by=["rank", "step", "layer"])
    # Two ranks with two steps each.
    for name in ("comm_ns", "overlapped_ns", "exposed_ns"):
        assert sum(row[name] for row in found) == pytest.approx(table[name].sum() / 4, abs=2)
    assert [row["num_collectives"] for row in found] == [2, 3, 3]
    assert all(row["overlap_ratio"] == pytest.approx(row["overlapped_ns"] / row["comm_ns"]) for row in found)


def test_causes_add_up_to_the_exposed_time_of_the_breakdown(rows):
    found = rows("exposed_time")
    exposed = tracekit.open(FSDP2).table("breakdown")["exposed_comm_ns"].mean()
    assert sum(row["exposed_ns"] for row in found) == pytest.approx(exposed, abs=len(found))
    assert sum(row["share"] for row in found) == pytest.approx(1)
    assert found == sorted(found, key=lambda row: -row["exposed_ns"])


def test_the_timeline_reaches_the_peak_of_each_rank(rows):
    found = rows("memory_timeline")
    assert len(found) == 40
    peak = tracekit.open(ZERO2).table("peak")
    for rank in (0, 1):
        highest = max(row["allocated_bytes"] for row in found if row["rank"] == rank)
        assert highest == peak.filter(rank=rank)["bytes"].sum()


def test_volume_stands_beside_two_and_three_psi(rows):
    fsdp2, zero2, hsdp = rows("volume_beside_theory")
    assert [row["theory_psi"] for row in (fsdp2, zero2, hsdp)] == [3, 2, 3]
    assert fsdp2["num_params"] == PSI
    # Gathers twice but for the root's second one, reduce-scatters once.
    assert [fsdp2["measured_psi"], fsdp2["plan_psi"]] == pytest.approx([3 - ROOT_NUMEL / PSI] * 2)
    assert fsdp2["why"] == f"-{ROOT_NUMEL / PSI:.3f}Ψ root unit not gathered again"
    # Two flags of one element, which cross twice.
    assert zero2["measured_psi"] == pytest.approx(3 + 4 / PSI)


def test_two_runs_stand_side_by_side_in_the_order_given(rows):
    zero2, fsdp2 = rows("zero2_beside_fsdp2")
    assert (zero2["run"], fsdp2["run"]) == ("zero2", "fsdp2")
    for row in (zero2, fsdp2):
        parts = sum(row[name] for name in ("compute_ns", "exposed_comm_ns", "exposed_copy_ns", "idle_ns"))
        assert parts == pytest.approx(row["step_ns"], abs=4)
    assert zero2["overlap_ratio"] == 0
    assert fsdp2["measured_psi"] == pytest.approx(3 - ROOT_NUMEL / PSI)


def test_hta_agrees_to_the_nanosecond(rows):
    pytest.importorskip("hta", reason="the extra hta is not installed")
    found = rows("hta_beside_ours")
    assert {row["difference_ns"] for row in found} == {0}
    assert {row["question"] for row in found} >= {"compute: time with any", "comm: sum of durations"}


def test_volume_by_ranks_is_the_closed_form_and_the_plan(rows):
    found = {(row["strategy"], row["num_ranks"]): row for row in rows("volume_by_ranks")}
    assert {ranks for _, ranks in found} == {8, 64, 512}
    # Four blocks; the root unit is not gathered again, and 64 ranks divide every dim 0.
    psi = ROOT_NUMEL + 4 * BLOCK_NUMEL
    assert found["fsdp2", 64]["plan_psi"] == pytest.approx(3 - ROOT_NUMEL / psi)
    assert found["ddp", 8]["theory_bytes"] == 16 * psi
    assert found["fsdp2", 64]["theory_bytes"] == round(theory.zero_memory_per_gpu(psi, 64, 3))


def test_step_time_grows_with_the_latency_of_every_rank_and_call(rows):
    found = {(row["model"], row["gpus"]): row for row in rows("scaling")}
    # The table is made with α = 1 µs: 7b, of 32 layers, issues 3 x 33 calls a step, 1b, of 24, 2 x 25.
    assert set(found) == {(model, gpus) for model in ("1b", "13b") for gpus in (256, 512)}
    assert found["1b", 256]["step_s"] == pytest.approx(0.5 + 50 * 248e-6)
    assert found["13b", 512]["step_s"] == pytest.approx(2 + 3 * 41 * 504e-6)
    assert all(row["low_s"] <= row["step_s"] <= row["high_s"] for row in found.values())


def test_what_cannot_be_scaled_is_one_sentence(started, tmp_path):
    told = (DATA / "step_times.csv").read_text()
    table = tmp_path / "table.csv"
    wrong = {
        told.replace("13b", "14b"): "how many layers 14b has is not known: give --layers 14b=N",
        told.replace("SHARD_GRAD_OP", "NO_SHARD"): "1b is sharded by 'NO_SHARD'",
        told.replace("7b,32", "3b,32"): "7b was measured on 2 sizes of the group",
        told.replace("step_s", "seconds"): "there is no column step_s",
    }
    for text, sentence in wrong.items():
        table.write_text(text)
        code, out, err = started("scaling", table)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert sentence in err
    assert started("scaling", DATA / "step_times.csv", "--layers", "1b=24", "--gpus", "64")[0] == 0


def test_bus_bandwidth_between_measured_sizes(rows):
    found = {row["bytes"]: row for row in rows("bus_bandwidth")}
    assert sorted(found) == [2**k for k in range(20, 31)]
    for nbytes, row in found.items():
        # The table is made with 20 µs a call and 100 GB/s.
        crossed = 2 * 7 / 8 * nbytes
        assert row["busbw_gb_s"] == pytest.approx(crossed / (20_000 + crossed / 100), rel=1e-3)
        assert row["low_gb_s"] <= row["busbw_gb_s"] <= row["high_gb_s"]
        assert (row["measured_gb_s"] is None) == bool((nbytes.bit_length() - 1) % 2)
    assert max(abs(row["error"]) for row in found.values() if row["error"] is not None) < 0.001


@pytest.mark.parametrize("name", sorted(ANSWERS))
def test_a_table_is_printed_and_written_as_csv(started, name):
    if name == "hta_beside_ours":
        pytest.importorskip("hta", reason="the extra hta is not installed")
    code, out, _ = started(name, *ANSWERS[name])
    assert (code, out[:2]) == (0, "| ")
    assert max(map(len, out.splitlines())) <= 200
    code, out, _ = started(name, *ANSWERS[name], "--format", "csv")
    header, *lines = out.splitlines()
    assert code == 0
    assert {line.count(",") - line.count(", ") for line in lines} >= {header.count(",")}


@pytest.mark.parametrize("name", DRAWN)
@pytest.mark.parametrize(("suffix", "begins"), [("html", b"<!DOCTYPE html>"), ("svg", b"<svg"), ("png", b"\x89PNG")])
def test_a_picture_is_drawn(started, tmp_path, name, suffix, begins):
    picture = tmp_path / f"picture.{suffix}"
    assert started(name, *ANSWERS[name], "-o", picture) == (0, "", "")
    drawn = picture.read_bytes()
    assert drawn.lstrip().startswith(begins)
    if suffix == "html":
        assert b'src="http' not in drawn


@pytest.mark.parametrize("name", NAMES)
def test_help_says_what_it_answers_and_takes(started, name):
    code, out, _ = started(name, "--help")
    assert code == 0
    assert out.startswith(f"usage: {name}.py [-h]")
    first = runpy.run_path(str(SCRIPTS / f"{name}.py"))["__doc__"].splitlines()[0]
    assert first in " ".join(out.split())


@pytest.mark.parametrize("name", [name for name in sorted(ANSWERS) if name != "volume_by_ranks"])
def test_a_wrong_path_is_one_sentence(started, tmp_path, name):
    code, out, err = started(name, tmp_path / "nowhere")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"{name}.py: {tmp_path}/nowhere: ")


def test_a_picture_of_an_unknown_kind_is_one_sentence(started, tmp_path):
    code, _, err = started("overlap_per_layer", FSDP2, "-o", tmp_path / "picture.pdf")
    assert (code, err.count("\n")) == (2, 1)
    assert "pictures are written as .html, .png, .svg" in err
    assert list(tmp_path.iterdir()) == []


def test_a_run_without_communication_has_nothing_to_say(started, tmp_path):
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 1}
    (tmp_path / "rank0.json").write_text(json.dumps({"schemaVersion": 1, "traceEvents": [event]}))
    for name in ("exposed_time", "overlap_per_layer", "memory_timeline"):
        code, out, _ = started(name, tmp_path, "--format", "json")
        assert (code, json.loads(out)) == (0, [])


@pytest.mark.parametrize("name", sorted(ANSWERS))
def test_it_starts_from_any_folder(tmp_path, name):
    """In a process of its own, without what a shared one had loaded before."""
    if name == "hta_beside_ours":
        pytest.importorskip("hta", reason="the extra hta is not installed")
    command = [sys.executable, SCRIPTS / f"{name}.py", *ANSWERS[name], "--format", "csv"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) >= 2
    assert done.stderr == ""


def test_without_hta_one_sentence_names_the_extra(started, monkeypatch):
    monkeypatch.setitem(sys.modules, "hta", None)
    code, _, err = started("hta_beside_ours", FSDP2)
    assert (code, err.count("\n")) == (2, 1)
    assert "zero-tracekit[hta]" in err


@pytest.mark.parametrize("name", NAMES)
def test_scripts_are_short(name):
    assert len((SCRIPTS / f"{name}.py").read_text("utf-8").splitlines()) <= 67
