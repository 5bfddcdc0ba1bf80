"""Real ranks over gloo, started once a session for each strategy and its options."""

from __future__ import annotations

import re

import pytest
from recorded_runs import FOUR_RANKS, Recorded

LOSS = re.compile(r"step \d+: loss ([\d.]+)")
TIMEOUT_S = 180.0


@pytest.fixture(scope="session")
def recorded(tmp_path_factory):
    """A function that trains nano with a strategy and its options, the same run for the same call in a session."""
    pytest.importorskip("torch")
    from runners import launch

    known: dict[tuple[object, ...], Recorded] = {}

    def record(strategy: str, *args: str, ranks: int | None = None) -> Recorded:
        key = (strategy, *args, ranks)
        if key not in known:
            path = tmp_path_factory.mktemp(strategy) / "run"
            lines: list[str] = []
            options = ["--model", "nano", "--seq-len", "16", "--learning-rate", "0.01", "--active", "2", *args]
            num_ranks = ranks or (4 if strategy in FOUR_RANKS else 2)
            launch.run(strategy, path, num_ranks=num_ranks, args=options, on_line=lines.append, timeout_s=TIMEOUT_S)
            losses = [float(match[1]) for line in lines if (match := LOSS.match(line))]
            known[key] = Recorded(path, losses)
        return known[key]

    return record
