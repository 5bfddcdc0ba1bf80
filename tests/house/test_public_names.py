"""The public surface: what `import tracekit` offers, and nothing that is not there."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

import tracekit

ROOT = Path(__file__).parents[2]


def test_public_names():
    assert tracekit.__all__ == ["Run", "__version__", "errors", "open", "tables", "theory"]


@pytest.mark.parametrize("name", tracekit.__all__)
def test_every_name_is_there(name):
    assert getattr(tracekit, name) is not None
    assert name in dir(tracekit)


def test_names_are_what_they_say():
    from tracekit import errors, theory
    from tracekit.model.run import Run, open_run
    from tracekit.table_registry import tables

    assert (tracekit.Run, tracekit.open, tracekit.errors, tracekit.theory) == (Run, open_run, errors, theory)
    assert tracekit.tables is tables


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'opne'"):
        _ = tracekit.opne


def test_errors_form_one_tree():
    errors = tracekit.errors
    for error in (errors.InputError, errors.UsageError):
        assert issubclass(error, errors.TracekitError)
        assert error.exit_code == 2


def test_version_is_the_distributions():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "tracekit.__version__"}
    assert re.fullmatch(r"\d+\.\d+\.\d+", tracekit.__version__)
