"""The lab: what its links may be, where it refuses, and one small pair of runs on two hosts of this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tracekit

pytest.importorskip("torch", reason="torch is not installed: the lab trains")

from runners.lab import hosts
from runners.lab.__main__ import main
from runners.lab.hosts import Hosts, LabError, bits_per_second, refusal
from runners.lab.record import record

ROOT = Path(__file__).parents[2]
SMALL = ["--model", "nano", "--seq-len", "16", "--wait", "1", "--active", "2"]


@pytest.fixture
def lab():
    """Skips where no lab can be built, with the reason."""
    if reason := refusal():
        pytest.skip(reason)
    try:
        with Hosts(1, "1gbit"):
            pass
    except LabError as error:
        pytest.skip(f"no lab can be built here: {error}")


@pytest.mark.parametrize(
    ("text", "bits"), [("500mbit", 500 * 10**6), ("1gbit", 10**9), ("2.5Gbit", 2_500_000_000), ("1000kbit", 10**6)]
)
def test_rates_are_those_of_tc(text, bits):
    assert bits_per_second(text) == bits


@pytest.mark.parametrize("text", ["fast", "1", "gbit", "0gbit", "100kbit", "-1gbit", "1gbit; reboot"])
def test_other_rates_are_refused(capfd, text):
    with pytest.raises(ValueError, match="is no rate of a link"):
        bits_per_second(text)
    with pytest.raises(SystemExit):
        main([f"--rate={text}"])
    assert "--rate: " in capfd.readouterr().err


def test_without_root_it_says_so_and_ends(monkeypatch, capfd, tmp_path):
    monkeypatch.setattr(hosts.sys, "platform", "linux")
    monkeypatch.setattr(hosts.os, "geteuid", lambda: 1000)
    assert main(["--out", str(tmp_path / "run")]) == 2
    told = capfd.readouterr().err
    assert "the lab needs root to make network namespaces" in told
    assert "Traceback" not in told
    assert not (tmp_path / "run").exists()


def test_a_missing_tool_is_named(monkeypatch):
    monkeypatch.setattr(hosts.sys, "platform", "linux")
    monkeypatch.setattr(hosts.os, "geteuid", lambda: 0)
    monkeypatch.setattr(hosts.shutil, "which", lambda tool: None if tool == "tc" else tool)
    assert refusal() == "the lab needs tc: install the packages iproute2, util-linux and hostname"


def test_another_system_is_named(monkeypatch):
    monkeypatch.setattr(hosts.sys, "platform", "darwin")
    assert "needs Linux's network namespaces, and this is darwin" in str(refusal())


@pytest.mark.integration
def test_a_pair_is_recorded_on_two_hosts_and_nothing_is_left(lab, tmp_path):
    with Hosts(2, "1gbit") as two:
        for rate in ("1gbit", "100mbit"):
            two.shape(rate)
            show = two.command(0, ["tc", "qdisc", "show", "dev", "eth0"])
            shaped = subprocess.run(show, capture_output=True, text=True, check=True).stdout
            assert "tbf" in shaped
            assert f"rate {rate}" in shaped.lower()
            record(two, "fsdp2", tmp_path / rate, SMALL, on_line=lambda _: None, timeout_s=120.0)
        waiting = list(two._waiting)
    assert not any(Path(f"/proc/{pid}").exists() for pid in waiting)
    for rate in ("1gbit", "100mbit"):
        run = tracekit.open(tmp_path / rate, cache=False)
        assert run.ranks["host"].to_list() == ["node0", "node1"]
        assert run.manifest.backend == "gloo"
        assert run.collectives["transfer_ns"].count() > 0


@pytest.mark.integration
def test_a_failed_run_is_one_sentence_and_leaves_no_host(lab, tmp_path):
    command = [sys.executable, "-m", "runners.lab", "--out", str(tmp_path / "run"), "--model", "no-such-model"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert "no-such-model" in done.stderr
    assert "Traceback" not in done.stderr
    left = subprocess.run(["pgrep", "-f", f"unshare.*{tmp_path.name}"], capture_output=True, text=True, check=False)
    assert left.stdout == ""
