"""Real ranks over gloo, started once a session for each strategy and its options."""

from __future__ import annotations

import re

import pytest
from recorded_runs import FOUR_RANKS, Recorded
from warm_ranks import WarmRanks

LOSS = re.compile(r"step \d+: loss ([\d.]+)")
TIMEOUT_S = 180.0


@pytest.fixture(scope="session")
def recorded(tmp_path_factory):
    """A function that trains nano with a strategy and its options, the same run for the same call in a session.

    A strategy as it is starts under torchrun, as a user's would; with options its ranks are forked, which is as real
    and several seconds quicker.
    """
    pytest.importorskip("torch", reason="torch is not installed: it runs torch's own code")
    from tracekit import training as launch

    known: dict[tuple[object, ...], Recorded] = {}
    warm: list[WarmRanks] = []

    def train(strategy: str, path, args: tuple[str, ...], num_ranks: int) -> list[str]:
        options = ["--model", "nano", "--seq-len", "16", "--learning-rate", "0.01", "--active", "2", *args]
        if args:
            if not warm:
                warm.append(WarmRanks())
            log = path.with_suffix(".log")
            return warm[0].run(strategy, path, num_ranks=num_ranks, args=options, log=log, timeout_s=TIMEOUT_S)
        lines: list[str] = []
        launch.run(strategy, path, num_ranks=num_ranks, args=options, on_line=lines.append, timeout_s=TIMEOUT_S)
        return lines

    def record(strategy: str, *args: str, ranks: int | None = None) -> Recorded:
        key = (strategy, *args, ranks)
        if key not in known:
            path = tmp_path_factory.mktemp(strategy) / "run"
            lines = train(strategy, path, args, ranks or (4 if strategy in FOUR_RANKS else 2))
            losses = [float(match[1]) for line in lines if (match := LOSS.match(line))]
            known[key] = Recorded(path, losses)
        return known[key]

    yield record
    for ranks in warm:
        ranks.close()
