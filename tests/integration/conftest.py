"""Real ranks over gloo, started once a module and strategy."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

LOSS = re.compile(r"step \d+: loss ([\d.]+)")
TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Recorded:
    """A run that the runners left, and the losses that rank 0 printed."""

    path: Path
    losses: list[float]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A function that trains nano on two ranks with a strategy and its options, the same run for the same call."""
    pytest.importorskip("torch")
    from runners import launch

    known: dict[tuple[str, ...], Recorded] = {}

    def record(strategy: str, *args: str) -> Recorded:
        if (strategy, *args) not in known:
            path = tmp_path_factory.mktemp(strategy) / "run"
            lines: list[str] = []
            options = ["--model", "nano", "--seq-len", "16", "--learning-rate", "0.01", *args]
            launch.run(strategy, path, args=options, on_line=lines.append, timeout_s=TIMEOUT_S)
            losses = [float(match[1]) for line in lines if (match := LOSS.match(line))]
            known[strategy, *args] = Recorded(path, losses)
        return known[strategy, *args]

    return record
