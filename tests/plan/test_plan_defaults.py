"""A plan from a strategy's defaults is the plan of the run that the training program makes with its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tracekit import cli
from tracekit.manifest import read_manifest
from tracekit.plan import memory, plan, terms
from tracekit.plan.build import of_model
from tracekit.reference_models import SIZES, gradient_order, size_of
from tracekit.strategies import STRATEGIES

SAMPLES = Path(__file__).parents[2] / "traces"


@pytest.mark.parametrize("name", sorted(path.parent.name for path in SAMPLES.glob("*/manifest.json")))
def test_the_plan_of_each_sample_run_follows_from_its_size_and_mesh(name):
    recorded = read_manifest(SAMPLES / name)
    told = recorded.options
    made = of_model(
        recorded.strategy,
        size_of(told["model"], layers=told["layers"]),
        mesh={axis.axis: axis.size for axis in recorded.mesh},
        options={"batch_size": told["batch_size"], "seq_len": told["seq_len"]},
    )
    assert plan(made).rows() == plan(recorded).rows()
    assert terms(made).rows() == terms(recorded).rows()
    for rank in range(recorded.world_size):
        assert memory(made, rank).rows() == memory(recorded, rank).rows()


def printed(capfd, *args):
    assert cli.run(["plan", *args, "--format", "json"]) == 0
    return json.loads(capfd.readouterr().out)


def test_stage_3_gathers_each_matrix_twice_unless_told_otherwise(capfd):
    asked = ("--strategy", "zero3-deepspeed", "--model", "tiny", "--mesh", "dp_shard=2")
    told = printed(capfd, *asked)
    # tiny: 4 blocks of 7 matrices, embedding and output; 9 norms of 256 stay gathered, and are gathered once a step.
    # Each matrix is gathered in forward and again in backward, 2 * 30; gradients go in five buckets of a quarter of Ψ.
    psi, norms = SIZES["tiny"].num_params(), 9 * 256
    kinds = [row["kind"] for row in told["rows"]]
    assert [kinds.count(kind) for kind in ("all_gather", "reduce_scatter", "all_reduce")] == [60 + 9, 5, 1]
    assert told["totals"]["passes_numel"] == 3 * psi - norms + 2
    # With DeepSpeed's own limits of reuse most are gathered once.
    again = printed(capfd, *asked, "--option", "stage3_max_reuse_distance=1000000000")
    assert again["totals"]["num_collectives"] < told["totals"]["num_collectives"]


@pytest.mark.parametrize("tied", [False, True])
def test_gradients_are_ready_as_backward_of_the_real_model_has_them(tied):
    torch = pytest.importorskip("torch", reason="torch is not installed: it runs torch's own code")
    from runners.models import Decoder

    size = size_of("odd", tied=tied)
    model = Decoder(size)
    ready = []
    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: ready.append(name))
    model(torch.zeros(1, 4, dtype=torch.long)).sum().backward()
    assert gradient_order(size) == ready


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_plan_reads_no_option_that_its_strategy_does_not_name(strategy, monkeypatch):
    from msgspec.structs import replace

    seen = set()

    class Noted(dict):
        def get(self, name, default=None):
            seen.add(name)
            return super().get(name, default)

    mesh = dict.fromkeys(STRATEGIES[strategy].axes, 2)
    for changed in ({}, {"reduce_scatter": False}, {"use_multi_rank_bucket_allreduce": False}):
        made = of_model(strategy, SIZES["nano"], mesh=mesh, micro_batches=2)
        noted = replace(made, options=Noted(made.options | changed))
        plan(noted), terms(noted), memory(noted)
    assert seen <= STRATEGIES[strategy].options
