"""torch's own code for N ranks in one process agrees with the plan, call by call."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

# A process group is one a process, and torch takes seconds to load: one process loads it and forks one for each case.
# Polars comes after the fork, as its threads would not survive it.
PROVER = """
import json, os, sys, tempfile
import torch._dynamo, torch.distributed.fsdp, torch.distributed.tensor.parallel
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed import fake_pg
from runners import strategies, train

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
                from tracekit import cli
                code = cli.run(json.loads(line))
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
]


@pytest.fixture(scope="module")
def prove():
    """A function that proves a plan and returns the exit code and what was printed."""
    pytest.importorskip("torch")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", PROVER], text=True, **pipes) as process:

        def asked(strategy, model, mesh, args):
            command = ["plan", "--strategy", strategy, "--model", model, "--mesh", mesh, "--prove", *args]
            process.stdin.write(json.dumps(command) + "\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        yield asked
        process.stdin.close()


@pytest.mark.integration
@pytest.mark.parametrize("case", CASES, ids=lambda case: " ".join((*case[:3], *case[3])))
def test_torch_issues_the_planned_calls(prove, case):
    code, said = prove(*case)
    assert code == 0, said[-2000:]
    assert "torch's own code issues the same" in said


@pytest.mark.integration
def test_a_large_model_agrees_too(prove):
    code, said = prove("fsdp2", "7b", "dp_shard=8", ["--seq-len", "16"])
    assert code == 0, said[-2000:]
    assert "the same 98 collectives" in said
