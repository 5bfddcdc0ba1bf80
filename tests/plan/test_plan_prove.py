"""torch's own code for N ranks in one process agrees with the plan, call by call."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tracekit import cli, training
from tracekit.plan import proof

# Torch takes seconds to load: one process loads it and forks one for each case.
PROVER = """
import json, os, sys, tempfile
import torch._dynamo, torch.distributed.fsdp, torch.distributed.tensor.parallel
from runners import dry_run

for name in ("fsdp2", "hsdp", "fsdp2_tp", "zero2_fsdp2"):
    __import__(f"runners.strategies.{name}")
answers = os.dup(1)
for line in sys.stdin:
    with tempfile.TemporaryFile() as said:
        child = os.fork()
        if not child:
            os.dup2(said.fileno(), 1), os.dup2(said.fileno(), 2)
            code = 70
            try:
                code = dry_run.main(json.loads(line))
            except BaseException:
                import traceback
                traceback.print_exc()
            finally:
                sys.stdout.flush(), sys.stderr.flush()
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        said.seek(0)
        os.write(answers, json.dumps([code, said.read().decode()]).encode() + b"\\n")
"""
CASES = [
    ("fsdp2", "nano", "dp_shard=2", []),
    ("fsdp2", "nano", "dp_shard=8", ["--option", "clip_grad_norm=1", "--micro-batches", "2"]),
    ("fsdp2", "odd", "dp_shard=8", ["--reshard-after-forward", "2", "--option", "backward_prefetch=2"]),
    ("fsdp2", "odd", "dp_shard=4", ["--reshard-after-forward", "true", "--option", "activation_checkpointing=true"]),
    ("fsdp2", "nano", "dp_shard=4", ["--reshard-after-forward", "false", "--reduce-dtype", "bfloat16"]),
    ("zero2-fsdp2", "odd", "dp_shard=8", ["--micro-batches", "2", "--option", "sync_every_micro_batch=false"]),
    ("hsdp", "odd", "dp_replicate=2,dp_shard=4", ["--option", "clip_grad_norm=1"]),
    (
        "hsdp",
        "nano",
        "dp_replicate=2,dp_shard=4",
        ["--micro-batches", "2", "--option", "all_reduce_every_micro_batch=false"],
    ),
    ("fsdp2-tp", "nano", "dp_shard=4,tp=2", ["--option", "clip_grad_norm=1", "--seq-len", "16"]),
    ("fsdp2-tp", "nano", "dp_shard=4,tp=2", ["--seq-len", "16", "--option", "activation_checkpointing=true"]),
    ("fsdp2-tp", "nano", "dp_shard=4,tp=2", ["--seq-len", "16", "--option", "activation_checkpointing=selective-op"]),
    ("fsdp2", "nano", "dp_shard=4", ["--option", "activation_checkpointing=selective-op"]),
]


@pytest.fixture(scope="module")
def prover():
    """A function that takes the place of `training.started`: the dry run in a fork of one process."""
    pytest.importorskip("torch", reason="torch is not installed: it runs torch's own code")
    root = str(training.RUNNERS.parent)
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "env": training.environment() | {"PYTHONPATH": path}}
    with subprocess.Popen([sys.executable, "-c", PROVER], text=True, **pipes) as process:

        def started(program, args):
            assert program == proof.DRY_RUN
            process.stdin.write(json.dumps(args) + "\n")
            process.stdin.flush()
            code, said = json.loads(process.stdout.readline())
            assert code == 0, said[-4000:]
            return said

        yield started
        process.stdin.close()


def prove(*args):
    return cli.run(["plan", "--prove", "--table", "volume", *args])


@pytest.mark.integration
@pytest.mark.parametrize("case", CASES, ids=lambda case: " ".join((*case[:3], *case[3])))
def test_torch_issues_the_planned_calls(prover, monkeypatch, capfd, case):
    monkeypatch.setattr(training, "started", prover)
    strategy, model, mesh, args = case
    assert prove("--strategy", strategy, "--model", model, "--mesh", mesh, *args) == 0
    assert "torch's own code issues the same" in capfd.readouterr().err


@pytest.mark.integration
def test_a_large_model_agrees_too(prover, monkeypatch, capfd):
    monkeypatch.setattr(training, "started", prover)
    assert prove("--strategy", "fsdp2", "--model", "7b", "--mesh", "dp_shard=8", "--seq-len", "16") == 0
    assert "the same 98 collectives" in capfd.readouterr().err


@pytest.mark.integration
def test_the_dry_run_is_a_process_of_its_own_and_refuses_in_a_sentence(capfd):
    pytest.importorskip("torch", reason="torch is not installed: it runs torch's own code")
    mesh = ("--model", "nano", "--mesh", "dp_shard=2")
    assert prove("--strategy", "fsdp2", *mesh) == 0
    assert "the same 8 collectives" in capfd.readouterr().err
    assert prove("--strategy", "fsdp2-tp", "--model", "odd", "--mesh", "dp_shard=2,tp=2") == 2
    assert "is refused by the dry run: 3 heads, 1 key heads and 51 hidden columns" in capfd.readouterr().err


def test_a_plan_that_torch_does_not_share_is_told_call_by_call(monkeypatch, capfd):
    pytest.importorskip("torch", reason="torch is not installed: it runs torch's own code")
    calls = [["", "forward", 0, "all_gather", "dp_shard", 2, "bfloat16", 1032, 2064]]
    monkeypatch.setattr(training, "started", lambda program, args: json.dumps({"calls": calls}))
    assert prove("--strategy", "fsdp2", "--model", "nano", "--mesh", "dp_shard=2") == 1
    err = capfd.readouterr().err
    # The first of the plan's eight calls is the only one that both sides have.
    assert "torch's own code differs in 7 calls" in err
    assert "'place': 1, 'side': 'plan'" in err


def test_options_of_the_program_are_those_of_the_manifest():
    from tracekit.plan.build import manifest, model_parameters
    from tracekit.plan.program_arguments import arguments
    from tracekit.reference_models import SIZES

    made = manifest(
        "hsdp",
        model_parameters(SIZES["nano"]),
        mesh={"dp_replicate": 2, "dp_shard": 4},
        micro_batches=2,
        reshard=True,
        options={"sync_every_micro_batch": False, "all_reduce_every_micro_batch": True, "clip_grad_norm": 1.0},
    )
    assert arguments(made, "nano") == [
        *("--model", "nano", "--micro-batches", "2"),
        *("--reshard", "layers.0=true", "--reshard", "layers.1=true", "--reshard", "root=true"),
        *("--dp-replicate", "2", "--no-sync-every-micro-batch", "--clip-grad-norm", "1.0"),
    ]
