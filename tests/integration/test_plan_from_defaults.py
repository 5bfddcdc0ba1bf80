"""`tracekit plan` with its defaults prints the plan of the run that `tracekit record` makes with its own."""

from __future__ import annotations

import json

import pytest
from recorded_runs import FOUR_RANKS

from tracekit import cli
from tracekit.manifest import read_manifest
from tracekit.plan import plan, terms
from tracekit.plan.footprint import planned
from tracekit.strategies import STRATEGIES, with_runner

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("table", ["collectives", "terms", "memory"])
@pytest.mark.parametrize("strategy", with_runner())
def test_defaults_of_the_plan_are_those_of_the_training_program(recorded, capfd, strategy, table):
    manifest = read_manifest(recorded(strategy).path)
    sizes = dict.fromkeys(STRATEGIES[strategy].axes, 2) if strategy in FOUR_RANKS else {"dp_shard": 2}
    mesh = ",".join(f"{axis}={size}" for axis, size in sizes.items())
    asked = ["plan", "--strategy", strategy, "--model", "nano", "--mesh", mesh, "--seq-len", "16"]
    # Runs of the tests are over gloo, which copies what it works on.
    asked += ["--option", "backend=gloo"] if table == "memory" else []
    assert cli.run([*asked, "--table", table, "--format", "json"]) == 0
    told = json.loads(capfd.readouterr().out)
    assert told["mesh"] == {axis.axis: axis.size for axis in manifest.mesh}
    made = planned(manifest, "nano") if table == "memory" else {"collectives": plan, "terms": terms}[table](manifest)
    assert told["rows"] == made.to_dicts()
