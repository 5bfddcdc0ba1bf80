"""Who may import what: readers never need torch, the recorder needs nothing else, and --help needs neither.

Each case asks a fresh interpreter, since this one has long imported everything.
"""

from __future__ import annotations

import ast
import json
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import tracekit

ROOT = Path(__file__).parents[2]
TORCH = {"torch", "deepspeed"}
HEAVY = TORCH | {"polars", "pandas", "numpy", "scipy", "altair", "hta", "perfetto", "google", "plotly", "viztracer"}


def modules_of(package):
    """The package's modules by name, without importing any of them."""
    found = pkgutil.walk_packages([str(ROOT / package.replace(".", "/"))], f"{package}.", onerror=lambda _: None)
    names = [module.name for module in found if not module.ispkg or "." in module.name]
    assert names, package
    return [package, *names]


def loaded_after(statement, blocked=()):
    """Top-level names in sys.modules after the statement, in an interpreter that lacks the blocked ones."""
    program = (
        f"import json, sys\nsys.modules.update(dict.fromkeys({sorted(blocked)!r}))\n"
        f"before = set(sys.modules)\n{statement}\n"
        "print(json.dumps(sorted({n.partition('.')[0] for n in set(sys.modules) - before if sys.modules[n]})))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


def importing(modules):
    return "\n".join(f"import {module}" for module in modules)


def test_import_tracekit_loads_nothing_but_the_standard_library():
    loaded = loaded_after("import tracekit")
    assert loaded - sys.stdlib_module_names - {"tracekit"} == set()


@pytest.mark.parametrize("room", ["read", "model", "plan", "timing", "export", "analyzers", "report"])
def test_reading_and_analysing_work_without_torch(room):
    loaded = loaded_after(importing(modules_of(f"tracekit.{room}")), blocked=TORCH)
    assert not loaded & TORCH


def test_opening_a_run_works_without_torch():
    loaded_after("import tracekit; tracekit.open, tracekit.Run, tracekit.theory", blocked=TORCH)


def test_help_loads_nothing_heavy():
    loaded = loaded_after("from tracekit import cli\nassert cli.run(['--help']) == 0")
    assert "typer" in loaded
    assert not loaded & HEAVY


def test_the_version_loads_neither_typer_nor_the_commands():
    asked = [sys.executable, "-X", "importtime", "-m", "tracekit", "--version"]
    done = subprocess.run(asked, capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == f"tracekit {tracekit.__version__}\n"
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "tracekit" in loaded
    assert not loaded & {"typing", "typer", "rich", "tracekit.cli"}


def test_every_commands_help_loads_nothing_heavy():
    commands = ["demo", "record", "report", "show", "ledger", "predict", "view"]
    loaded = loaded_after(f"from tracekit import cli\nfor c in {commands!r}: assert cli.run([c, '--help']) == 0")
    assert not loaded & HEAVY


@pytest.mark.slow
def test_the_recorder_and_the_runners_need_torch_and_the_standard_library_only():
    # What torch itself loads does not count: what matters is that everything else may be absent.
    absent = HEAVY - {"torch", "numpy", "google"} | {"msgspec", "isal", "typer", "rich"}
    modules = [name for name in [*modules_of("tracekit.record"), *modules_of("runners")] if "__main__" not in name]
    loaded = loaded_after(importing(modules), blocked=absent)
    assert not loaded & absent


def test_tracekit_imports_neither_training_programs_nor_analysis_scripts():
    names = [
        (path, name)
        for path in (ROOT / "tracekit").rglob("*.py")
        if "_runners" not in path.parts
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        for name in _imported(node)
    ]
    assert len(names) > 500
    assert [(path, name) for path, name in names if name.partition(".")[0] in ("runners", "analysis")] == []


def _imported(node):
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
