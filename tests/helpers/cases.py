"""What the tables of reported cases share: opening a file made of bytes, and what the user is told of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tracekit
from tracekit import cli
from tracekit.model.run import Run

TRUTH = [("compute", 1_010_000, 100_000), ("comm", 1_060_000, 100_000)]


def rows(table: list[tuple[Any, ...]]) -> list[Any]:
    """Parameters of a table whose first cell is the id of a row."""
    return [pytest.param(*values, id=name) for name, *values in table]


def opened(folder: Path, data: bytes, name: str = "rank0.json") -> Run:
    (folder / name).write_bytes(data)
    return tracekit.open(folder / name, cache=False)


def reported(run: Run) -> list[tuple[Any, ...]]:
    """The repairs: what, at which byte, how often."""
    return run.repairs.select("what", "offset", "count").rows()


def compute_and_comm(run: Run) -> list[tuple[Any, ...]]:
    """Class, start and duration of the device's work; of the common fixture this is TRUTH."""
    return run.work.select("class", "start_ns", "dur_ns").rows()


def refused(path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What the command says of this run, which must be one sentence about it and exit code 2."""
    assert cli.run(["show", "steps", str(path), "--no-cache"]) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert printed.err.startswith(f"tracekit: {path}")
    return printed.err
