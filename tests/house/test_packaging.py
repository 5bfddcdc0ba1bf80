"""What an installation brings: one package with everything that is needed at run time, at releases that are pinned."""

from __future__ import annotations

import fnmatch
import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = PROJECT["project"]["optional-dependencies"]
SOURCES = {"tracekit": "tracekit", "tracekit._runners": "runners"}
# What nobody's plain installation should bring: it comes with an extra only.
ONLY_WITH_AN_EXTRA = {
    "pandas",
    "traceinsight",
    "torch",
    "deepspeed",
    "viztracer",
    "jupyterlab",
    "fsspec",
    "distributed",
}


def pins():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def made_extras():
    """The extras that make installs, and the tests run with."""
    return re.search(r'-e "\.\[([\w,]+)\]"', (ROOT / "Makefile").read_text())[1].split(",")


def requirements():
    groups = [PROJECT["project"]["dependencies"], *(EXTRAS[extra] for extra in made_extras())]
    return sorted({line for group in groups for line in group})


@pytest.fixture(scope="module")
def packages():
    """What setup.py hands to setuptools."""
    with pytest.MonkeyPatch.context() as patch:
        given = {}
        patch.setattr("setuptools.setup", lambda **arguments: given.update(arguments))
        patch.chdir(ROOT)
        runpy.run_path("setup.py")
    return given


@pytest.mark.parametrize(("package", "folder"), SOURCES.items())
def test_every_folder_with_modules_is_a_package(packages, package, folder):
    modules = {path.parent.relative_to(ROOT / folder) for path in (ROOT / folder).rglob("*.py")}
    assert {".".join((package, *path.parts)) for path in modules} <= set(packages["packages"])


def test_it_has_one_package_only(packages):
    assert {name.partition(".")[0] for name in packages["packages"]} == {"tracekit"}
    assert packages["package_dir"] == {"tracekit._runners": "runners"}


@pytest.mark.parametrize(("package", "folder"), SOURCES.items())
def test_files_beside_the_modules_are_package_data(packages, package, folder):
    data = PROJECT["tool"]["setuptools"]["package-data"]
    left_out = []
    for path in (ROOT / folder).rglob("*"):
        if path.is_dir() or path.suffix in {".py", ".pyc"}:
            continue
        # Patterns are those of the package whose folder holds the file, at whatever depth.
        homes = [
            home for home in path.relative_to(ROOT).parents if home.name and (ROOT / home / "__init__.py").is_file()
        ]
        home = homes[0]
        name = ".".join((package, *home.parts[1:]))
        assert name in packages["packages"]
        inside = path.relative_to(ROOT / home)
        if not any(fnmatch.fnmatch(str(inside), pattern) for pattern in (*data["*"], *data.get(name, ()))):
            left_out.append(str(path))
    assert left_out == []


@pytest.mark.parametrize("requirement", requirements())
def test_every_dependency_is_pinned_within_its_range(requirement):
    from packaging.requirements import Requirement

    wanted = Requirement(requirement)
    assert wanted.specifier.contains(pins()[wanted.name]), requirement


def test_make_installs_every_extra_that_the_code_asks_for():
    from tracekit import extras

    assert {*extras.EXTRAS, "dev"} <= set(made_extras())


def test_the_extra_all_has_every_other_but_the_developers_one():
    (everything,) = EXTRAS["all"]
    named = re.fullmatch(r"zero-tracekit\[([\w,]+)\]", everything)[1].split(",")
    assert set(named) == set(EXTRAS) - {"all", "dev"}


def test_a_plain_installation_is_small():
    from packaging.requirements import Requirement

    names = {Requirement(line).name for line in PROJECT["project"]["dependencies"]}
    assert not names & ONLY_WITH_AN_EXTRA


def test_every_requirement_has_a_lower_bound():
    from packaging.requirements import Requirement

    lines = [
        *PROJECT["project"]["dependencies"],
        *(line for extra in EXTRAS if extra != "all" for line in EXTRAS[extra]),
    ]
    assert [line for line in lines if ">=" not in str(Requirement(line).specifier)] == []


def test_pins_name_releases_only():
    assert all(re.fullmatch(r"[0-9][0-9a-z.]*", version) for version in pins().values())
    assert pins()["torch"] == "2.13.0"


def test_the_program_and_the_module_are_the_same():
    module, _, function = PROJECT["project"]["scripts"]["tracekit"].partition(":")
    program = f"import sys, {module} as m\nsys.argv = ['tracekit', '--version']\nm.{function}()"
    asked = [[sys.executable, "-c", program], [sys.executable, "-m", "tracekit", "--version"]]
    said = [subprocess.run(each, cwd=ROOT, capture_output=True, text=True, check=True).stdout for each in asked]
    assert said[0] == said[1] != ""


def test_make_help_lists_every_target():
    listed = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for target in ("setup", "demo", "test", "test-fast", "coverage", "bench-process", "lint", "types", "clean"):
        assert re.search(rf"^  make {target} +\S", listed, re.MULTILINE)
