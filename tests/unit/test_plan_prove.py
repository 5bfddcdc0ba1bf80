"""torch's own code for N ranks in one process agrees with the plan, call by call."""

from __future__ import annotations

import subprocess
import sys

import pytest

# A process group is one a process, and torch is heavy: each case runs in a process of its own.
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


def prove(strategy, model, mesh, args):
    command = [sys.executable, "-m", "tracekit", "plan", "--strategy", strategy, "--model", model, "--mesh", mesh]
    return subprocess.run([*command, "--prove", *args], capture_output=True, text=True, check=False)


@pytest.mark.integration
@pytest.mark.parametrize("case", CASES, ids=lambda case: " ".join((*case[:3], *case[3])))
def test_torch_issues_the_planned_calls(case):
    pytest.importorskip("torch")
    done = prove(*case)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "torch's own code issues the same" in done.stderr


@pytest.mark.integration
def test_a_large_model_agrees_too():
    pytest.importorskip("torch")
    done = prove("fsdp2", "7b", "dp_shard=8", ["--seq-len", "16"])
    assert done.returncode == 0, done.stderr[-2000:]
    assert "the same 98 collectives" in done.stderr
