"""The registry of strategies: complete, documented, and open to one more."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest
from fakes import SMALL, manifest_of

from tracekit import cli, strategies, theory
from tracekit.errors import UsageError
from tracekit.plan import memory, plan, terms
from tracekit.plan.holding import Holding
from tracekit.plan.schema import Call
from tracekit.plan.strategies_page import page
from tracekit.strategies import STRATEGIES, Strategy

ROOT = Path(__file__).parents[2]


def test_the_page_is_not_stale():
    written = (ROOT / "docs" / "strategies.md").read_text("utf-8")
    assert written == page(), "make docs-strategies"


@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=lambda strategy: strategy.name)
def test_every_entry_is_whole(strategy):
    planner = import_module(strategy.planner)
    assert all(callable(getattr(planner, part)) for part in ("collectives", "absent", "memory"))
    assert strategy.runner is None or find_spec(strategy.runner) is not None
    assert strategy.stage in theory.STAGES
    assert set(strategy.axes) <= {"dp_replicate", "dp_shard", "tp"}


def test_every_planner_and_training_program_is_registered():
    def files(folder, *helpers):
        return {path.stem for path in (ROOT / folder).glob("*.py")} - {"__init__", *helpers}

    planners = {strategy.planner.rpartition(".")[2] for strategy in STRATEGIES.values()}
    runners = {strategy.runner.rpartition(".")[2] for strategy in STRATEGIES.values() if strategy.runner}
    assert files("tracekit/plan/strategies") == planners
    assert files("runners/strategies", "base", "deepspeed_engine") == runners


@pytest.fixture
def gossip(monkeypatch):
    """A strategy that is registered for one test: each rank sends its parameters on, once a step."""
    planner = ModuleType("gossip_planner", "Gossip: every parameter is sent on once, after the optimizer's step.")

    def collectives(manifest):
        place = (None, "optimizer", None, "broadcast", "dp_replicate", manifest.world_size, "float32")
        return [Call(*place, manifest.psi, manifest.psi)]

    planner.collectives = collectives
    planner.absent = lambda manifest: []
    planner.memory = lambda manifest, rank: Holding(4 * manifest.psi, 0, 0, 0, 0, 0)
    monkeypatch.setitem(sys.modules, "gossip_planner", planner)
    known = dict(STRATEGIES)
    strategies.register(
        Strategy(
            "gossip", "Gossip", 1, "our own", planner="gossip_planner", axes=("dp_replicate",), options=frozenset()
        )
    )
    yield planner
    STRATEGIES.clear()
    STRATEGIES.update(known)


def test_one_more_is_found_everywhere(gossip, capfd):
    assert theory.strategy_stage("gossip") == 1
    asked = ["plan", "--strategy", "gossip", "--model", "nano", "--mesh", "4"]
    assert cli.run(asked) == 0
    assert "gossip, Ψ = 7,248: 1 collectives a step, 7,248 elements (1.0000Ψ)" in capfd.readouterr().out
    assert cli.run([*asked, "--format", "json"]) == 0
    told = json.loads(capfd.readouterr().out)
    assert (told["strategy"], told["mesh"], told["rows"][0]["kind"]) == ("gossip", {"dp_replicate": 4}, "broadcast")
    row = next(line for line in page().splitlines() if line.startswith("| `gossip`"))
    assert row == (
        "| `gossip` | Gossip | 1 (2Ψ) | our own | `dp_replicate` | bfloat16, float32, float32 "
        "| `gossip_planner.py` | – |"
    )
    assert "**`gossip`** – Gossip: every parameter is sent on once" in page()


def test_one_more_is_named_by_its_title(gossip):
    from planned_runs import run_as_planned

    from tracekit.report.sentences import _subject

    assert _subject(run_as_planned(manifest_of("gossip", SMALL))) == "Gossip"


def test_a_strategy_without_training_program_is_planned_and_not_recorded(gossip, capfd):
    pytest.importorskip("torch", reason="torch is not installed: it runs torch's own code")
    assert cli.run(["record", "--strategy", "gossip"]) == 2
    assert "--strategy gossip can be planned, but not recorded: there are ddp, zero1" in capfd.readouterr().err


def test_a_name_is_given_once(gossip):
    with pytest.raises(ValueError, match="there is a strategy 'ddp' already"):
        strategies.register(STRATEGIES["ddp"])


def test_a_planner_that_is_missing_or_incomplete_is_one_sentence(gossip, monkeypatch):
    del gossip.memory, gossip.absent
    manifest = manifest_of("gossip", SMALL)
    for made in (plan, terms, memory):
        with pytest.raises(UsageError, match="gossip has no plan: gossip_planner lacks absent and memory"):
            made(manifest)
    monkeypatch.delitem(sys.modules, "gossip_planner")
    with pytest.raises(UsageError, match="gossip has no plan: gossip_planner is not there"):
        plan(manifest)


def test_an_unknown_name_is_told_with_the_nearest():
    with pytest.raises(UsageError, match=r"--strategy zero4-deepspeed is unknown: did you mean zero3-deepspeed\?"):
        strategies.find("zero4-deepspeed")
