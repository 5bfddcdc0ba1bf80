"""What an installation brings: everything that is needed at run time, at releases that are pinned."""

from __future__ import annotations

import fnmatch
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES = ("tracekit", "runners")


def pins():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def requirements():
    groups = [PROJECT["project"]["dependencies"], *PROJECT["project"]["optional-dependencies"].values()]
    return sorted({line for group in groups for line in group})


def test_files_beside_the_modules_are_package_data():
    patterns = PROJECT["tool"]["setuptools"]["package-data"]["*"]
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*") if path.is_file()]
    data = [path for path in files if path.suffix not in {".py", ".pyc"}]
    left_out = [path for path in data if not any(fnmatch.fnmatch(path.name, pattern) for pattern in patterns)]
    assert left_out == []


@pytest.mark.parametrize("requirement", requirements())
def test_every_dependency_is_pinned_within_its_range(requirement):
    from packaging.requirements import Requirement

    wanted = Requirement(requirement)
    assert wanted.specifier.contains(pins()[wanted.name]), requirement


def test_pins_name_releases_only():
    assert all(re.fullmatch(r"[0-9][0-9a-z.]*", version) for version in pins().values())
    assert pins()["torch"] == "2.13.0"


def test_make_help_lists_every_target():
    listed = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for target in ("setup", "demo", "test", "lint", "types", "clean"):
        assert re.search(rf"^  make {target} +\S", listed, re.MULTILINE)
