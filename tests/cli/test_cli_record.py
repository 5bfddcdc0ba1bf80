"""`record`, `report`, `demo` and `view` with the work itself replaced: what they ask for, print and refuse."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

import tracekit
from tracekit import cli, extras


@pytest.fixture
def launched(monkeypatch):
    """The calls that would have started training."""
    from tracekit import training as launch

    calls = []

    def run(strategy, out, *, num_ranks, args, on_line):
        calls.append((strategy, Path(out), num_ranks, list(args)))
        Path(out).mkdir(parents=True, exist_ok=True)
        (Path(out) / "manifest.json").write_text("{}")
        for step, loss in enumerate((7.5, 6.25)):
            on_line(f"step {step}: loss {loss:.4f}")

    monkeypatch.setattr(launch, "run", run)
    return calls


def test_record_passes_on_what_is_not_its_own(launched, tmp_path, capsys):
    out = tmp_path / "run"
    args = ["--strategy", "fsdp2", "--nproc", "4", "--model", "nano", "--out", str(out)]
    assert cli.run(["record", *args, "--reshard-after-forward", "true", "--micro-batches=2"]) == 0
    passed = ["--model", "nano", "--reshard-after-forward", "true", "--micro-batches=2"]
    assert launched == [("fsdp2", out, 4, passed)]
    assert capsys.readouterr().out.splitlines() == [
        "step 0: loss 7.5000",
        "step 1: loss 6.2500",
        f"next: tracekit report {out}",
    ]


def test_record_has_a_default_folder(launched, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.run(["record", "--strategy", "zero2"]) == 0
    assert launched == [("zero2", Path("traces/zero2-tiny-2"), 2, ["--model", "tiny"])]


def test_record_replaces_a_run_only_with_force(launched, tmp_path, capsys):
    args = ["record", "--strategy", "fsdp2", "--out", str(tmp_path / "run")]
    assert cli.run(args) == 0
    assert cli.run(args) == 2
    assert "holds a run already: pass --force" in capsys.readouterr().err
    assert cli.run([*args, "--force"]) == 0
    assert launched[-1][3] == ["--model", "tiny", "--overwrite"]


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["--strategy", "fsdp3"], "--strategy fsdp3 is unknown: did you mean fsdp2? (there are "),
        (["--strategy", "fsdp2", "--model", "huge"], "--model huge is unknown: there are nano, "),
        (["--strategy", "fsdp2", "--nproc", "0"], "Invalid value for '--nproc'"),
        ([], "Missing option '--strategy'"),
    ],
)
def test_record_refuses_what_it_does_not_know(args, sentence, launched, capsys):
    assert cli.run(["record", *args]) == 2
    assert sentence in capsys.readouterr().err
    assert launched == []


def test_record_tells_why_the_program_failed(monkeypatch, tmp_path, capsys):
    from tracekit import training as launch

    def fail(*_, **__):
        raise launch.LaunchError("recording fsdp2 on 2 ranks failed:\nunrecognized arguments: --foo", ["Traceback"])

    monkeypatch.setattr(launch, "run", fail)
    assert cli.run(["record", "--strategy", "fsdp2", "--out", str(tmp_path / "run"), "--foo"]) == 2
    err = capsys.readouterr().err
    assert err == "tracekit: recording fsdp2 on 2 ranks failed: unrecognized arguments: --foo\n"


def test_record_without_torch_says_what_to_install(monkeypatch, launched, capsys):
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    assert cli.run(["record", "--strategy", "fsdp2"]) == 2
    assert "pip install 'zero-tracekit[record]'" in capsys.readouterr().err
    assert launched == []


@pytest.mark.parametrize(("strategy", "option"), [("fsdp2", "--forward-prefetch"), ("zero2", "--bucket-numel")])
@pytest.mark.slow
def test_a_strategys_options_are_listed_on_demand(strategy, option, launched, capsys):
    assert cli.run(["record", "--strategy", strategy, "--list-options"]) == 0
    printed = capsys.readouterr().out
    for name in ("--micro-batches", "--param-dtype", option):
        assert name in printed
    assert launched == []


@pytest.fixture
def reports(monkeypatch, tmp_path):
    """The reports that would have been written; `tracekit.open` gives empty runs named after their folders."""
    calls = []

    def write_report(runs, out, *, force, hta=False):
        calls.append(([run.name for run in runs], out, force))
        names = {"html": out / "report.html", "json": out / "report.json", "trace": out / "trace.pftrace"}
        return SimpleNamespace(**names, sentences=["FSDP2 moved [2.93Ψ]."])

    module = ModuleType("tracekit.report.write")
    module.write_report = write_report
    monkeypatch.setitem(sys.modules, "tracekit.report.write", module)
    monkeypatch.setattr(
        tracekit, "open", lambda path, **_: SimpleNamespace(name=Path(path).name, psi=4_458_752), raising=False
    )
    return calls


def test_report_says_what_was_found_and_what_to_open(reports, tmp_path, capsys):
    assert cli.run(["report", "a/fsdp2", "b/zero2", "-o", str(tmp_path), "--force"]) == 0
    assert reports == [(["fsdp2", "zero2"], tmp_path, True)]
    printed = capsys.readouterr()
    assert "FSDP2 moved [2.93Ψ]." in printed.out
    for name in ("report.html", "report.json", "trace.pftrace"):
        assert str(tmp_path / name) in printed.out
    assert "\x1b" not in printed.out + printed.err


def test_demo_records_both_and_explains_them(launched, reports, tmp_path, monkeypatch, capsys):
    from tracekit.report import description

    numbers = {"measured_psi": 2.7647, "theory_psi": 3.0, "hidden_ratio": 0.314, "step_ns": 131e6, "peak_bytes": None}
    monkeypatch.setattr(description, "summary", lambda run: numbers)
    assert cli.run(["demo", "--out", str(tmp_path)]) == 0
    common = ["--model", "tiny", "--overwrite"]
    assert launched == [
        ("fsdp2", tmp_path / "fsdp2", 2, [*common, "--async-unshard", "--forward-prefetch", "1"]),
        ("zero2", tmp_path / "zero2", 2, common),
    ]
    assert reports == [(["fsdp2", "zero2"], tmp_path / "report", True)]
    printed = capsys.readouterr()
    for text in ("7.50 → 6.25", "4,458,752", "2.765 Ψ", "3 Ψ", "31 % of its time", "131.0 ms", "–"):
        assert text in printed.out
    assert f"open {tmp_path / 'report' / 'report.html'} in a browser" in printed.out
    assert "step 1: loss 6.2500" in printed.err
    assert cli.run(["demo", "--out", str(tmp_path)]) == 0


def test_demo_without_deepspeed_says_what_to_install(launched, reports, monkeypatch, capsys):
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    assert cli.run(["demo"]) == 2
    assert "pip install 'zero-tracekit[deepspeed]'" in capsys.readouterr().err
    assert launched == []


@pytest.fixture
def viewed(monkeypatch):
    """The traces that would have been served, and whether a browser was wanted."""
    from tracekit.export import viewer

    calls = []
    monkeypatch.setattr(viewer, "ui_folder", Path)
    monkeypatch.setattr(
        viewer, "view", lambda trace, *, port, browser, say: calls.append((trace, trace.read_bytes(), port, browser))
    )
    return calls


def test_view_serves_a_trace_file_and_a_reports(viewed, tmp_path):
    trace = tmp_path / "trace.pftrace"
    trace.write_bytes(b"x")
    assert cli.run(["view", str(trace)]) == 0
    assert cli.run(["view", str(tmp_path), "--no-browser", "--port", "9"]) == 0
    assert viewed == [(trace, b"x", 0, True), (trace, b"x", 9, False)]


def test_view_makes_the_trace_of_a_run_and_leaves_nothing(viewed, reports, tmp_path, monkeypatch):
    from tracekit.export import perfetto

    monkeypatch.setattr(perfetto, "write_trace", lambda runs, path: path.write_bytes(runs[0].name.encode()))
    assert cli.run(["view", str(tmp_path)]) == 0
    made, content, *_ = viewed[0]
    assert content == tmp_path.name.encode()
    assert not made.exists()
