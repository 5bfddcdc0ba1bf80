"""The runs that tracekit and the oracle (brute_force.py) both look at, and the oracle's answers, each found once."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import pytest
from brute_force import Answer, answer
from brute_force_rows import files_of

ROOT = Path(__file__).parents[2]
SHARED = Path(os.environ.get("TRACEKIT_SHARED", ROOT.parent / "shared"))
FOLDERS = ("corpus", "cases2")
NO_TRACE = "corpus/not-kineto-aiu.json"
# Folders whose files are runs of their own.
APART = ("cases2/c04-graph",)


def _inputs() -> list[str]:
    """Paths of all runs: those of ../shared relative to it."""
    folders = [SHARED / name for name in FOLDERS]
    found = [path for folder in folders if folder.is_dir() for path in sorted(folder.iterdir())]
    names = [path.relative_to(SHARED).as_posix() for path in found if path.suffix != ".md"]
    inside = [f"{name}/{file.name}" for name in names if name in APART for file in sorted((SHARED / name).iterdir())]
    samples = [f"traces/{path.name}" for path in sorted((ROOT / "traces").iterdir()) if path.is_dir()]
    return samples + [name for name in names if name not in APART and name != NO_TRACE] + inside


INPUTS = _inputs()
needs_shared = pytest.mark.skipif(
    not all((SHARED / name).is_dir() for name in FOLDERS),
    reason=f"no public traces and cases at {SHARED} (set TRACEKIT_SHARED)",
)


def path_of(name: str) -> Path:
    return (ROOT if name.startswith("traces/") else SHARED) / name


@cache
def right(name: str) -> Answer:
    return answer(files_of(path_of(name)))
