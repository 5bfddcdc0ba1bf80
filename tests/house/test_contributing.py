"""The diffs of CONTRIBUTING.md, applied to a copy of the package: what they add is there and answers."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tracekit.reference_models import SIZES, parameter_shapes

ROOT = Path(__file__).parents[2]
DIFFS = re.findall(r"^```diff\n(.*?)^```", (ROOT / "CONTRIBUTING.md").read_text("utf-8"), re.MULTILINE | re.DOTALL)


def apply(diff, root):
    """Applies a diff whose hunks have no line numbers: what is added comes after the context, which occurs once."""
    for name, hunk in re.findall(r"^\+\+\+ b/(.+)\n@@\n((?:[+ ].*\n|\+\n)+)", diff, re.MULTILINE):
        before = "".join(line[1:] + "\n" for line in hunk.splitlines() if line.startswith(" "))
        added = "".join(line[1:] + "\n" for line in hunk.splitlines() if line.startswith("+"))
        file = root / name
        old = file.read_text("utf-8") if before else ""
        assert bool(before) == file.exists(), name
        assert not before or old.count(before) == 1, f"{name} has no place {before!r}"
        file.write_text(old.replace(before, before + added) if before else added, "utf-8")


@pytest.fixture(scope="module")
def patched(tmp_path_factory):
    """Runs a module of the package that the diffs were applied to, and gives what it prints."""
    root = tmp_path_factory.mktemp("patched")
    shutil.copytree(ROOT / "tracekit", root / "tracekit", ignore=shutil.ignore_patterns("__pycache__"))
    for diff in DIFFS:
        apply(diff, root)

    def run(*args):
        command = [sys.executable, "-m", *map(str, args)]
        environment = {**os.environ, "PYTHONPATH": str(root)}
        done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


def test_a_table_is_a_line_and_a_file(patched):
    assert len(re.findall(r"^\+\+\+ ", DIFFS[0], re.MULTILINE)) == 2
    shown = json.loads(
        patched("tracekit", "show", "longest", ROOT / "traces" / "zero2", "--no-cache", "--format", "json")
    )
    every = patched("tracekit", "show", "collectives", ROOT / "traces" / "zero2", "--no-cache", "--format", "json")
    calls = json.loads(every)["rows"]
    assert {row["kind"] for row in shown["rows"]} == {"all_gather", "all_reduce"}
    for row in shown["rows"]:
        assert row["dur_ns"] == max(call["dur_ns"] for call in calls if call["kind"] == row["kind"])
    assert "longest" in patched("tracekit", "show", "--help")


def test_a_strategy_is_a_line_and_a_file(patched):
    assert len(re.findall(r"^\+\+\+ ", DIFFS[1], re.MULTILINE)) == 2
    options = ["--model", "tiny", "--mesh", "dp_shard=2", "--format", "json"]
    plain, muon = (
        json.loads(patched("tracekit", "plan", "--strategy", name, *options)) for name in ("fsdp2", "fsdp2-muon")
    )
    matrices = [rows * columns for _, (rows, *rest) in parameter_shapes(SIZES["tiny"]) for columns in rest]
    assert len(muon["rows"]) - len(plain["rows"]) == len(matrices)
    assert sum(row["out_numel"] for row in muon["rows"] if row["phase"] == "optimizer") == sum(matrices)


def test_what_they_add_keeps_the_style(patched):
    for tool in (["check"], ["format", "--check"]):
        patched("ruff", *tool, "--config", ROOT / "pyproject.toml", "tracekit")
