"""A plain installation reads, shows and writes the page; what it lacks is one sentence that names the extra.

Each case is a process in which the modules that only extras bring cannot be imported.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tracekit.extras import EXTRAS

ROOT = Path(__file__).parents[2]
RUN = ROOT / "traces" / "fsdp2"
FROM_EXTRAS = (
    "torch",
    "deepspeed",
    "hta",
    "pandas",
    "plotly",
    "IPython",
    "jupyterlab",
    "viztracer",
    "sklearn",
    "networkx",
)
LACKING = [
    ("hta", ["show", "hta-breakdown", RUN]),
    ("hta", ["show", "hta-idle", RUN, "--format", "json"]),
    ("hta", ["show", "hta-kernels", RUN]),
    ("record", ["record", "--strategy", "fsdp2"]),
    ("record", ["record", "--strategy", "fsdp2", "--list-options"]),
    ("record", ["plan", "--strategy", "fsdp2", "--model", "tiny", "--mesh", "dp_shard=2", "--prove"]),
    ("deepspeed", ["record", "--strategy", "zero2"]),
    ("deepspeed", ["demo"]),
    ("viewer", ["view", RUN]),
]


def plain(folder, *args):
    """The process of a command where no extra is installed, started in the folder."""
    program = (
        f"import sys\nsys.path.insert(0, {str(ROOT)!r})\nsys.modules.update(dict.fromkeys({FROM_EXTRAS!r}))\n"
        "from tracekit.cli import main\nmain()"
    )
    command = [sys.executable, "-c", program, *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)


@pytest.mark.parametrize(
    ("extra", "command"), LACKING, ids=[f"{extra}-{args[0]}-{n}" for n, (extra, args) in enumerate(LACKING)]
)
@pytest.mark.slow
def test_what_is_lacking_is_one_sentence_that_names_the_extra(tmp_path, extra, command):
    done = plain(tmp_path, *command)
    assert done.returncode == 2, done.stderr
    name = re.escape(EXTRAS[extra][1])
    assert re.fullmatch(
        rf"tracekit: .* needs {name}, which is not installed: .*zero-tracekit\[{extra}\].*\n", done.stderr
    )
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_show_works_without_extras(tmp_path):
    done = plain(tmp_path, "show", "breakdown", RUN, "--format", "json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rows"]


def test_the_report_works_without_extras(tmp_path):
    done = plain(tmp_path, "report", RUN, "-o", tmp_path / "report")
    assert done.returncode == 0, done.stderr
    written = {path.name for path in (tmp_path / "report").iterdir()}
    assert written == {"report.html", "report.json", "trace.pftrace"}


def test_every_extra_that_sentences_name_exists():
    offered = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(EXTRAS) <= set(offered)
