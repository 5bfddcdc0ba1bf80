from __future__ import annotations

import json

import pytest

from tracekit.cli import run


def plan(*args: str) -> int:
    return run(["plan", *args])


NANO = ("--strategy", "fsdp2", "--model", "nano", "--mesh", "dp_shard=2")


def test_json_has_every_call_and_the_totals(capfd):
    assert plan(*NANO, "--format", "json") == 0
    told = json.loads(capfd.readouterr().out)
    # Ψ = 7248, of which the root's 2064 are gathered once; bf16 gathers, fp32 reductions; on the wire the half of it.
    assert (told["table"], told["psi"], told["mesh"]) == ("plan-collectives", 7248, {"dp_shard": 2})
    payload = 2 * (2 * 7248 - 2064) + 4 * 7248
    assert told["totals"] == {
        "num_collectives": 8,
        "passes_numel": 3 * 7248 - 2064,
        "payload_bytes": payload,
        "wire_bytes": payload // 2,
    }
    assert len(told["rows"]) == 8


@pytest.mark.parametrize("table", ["collectives", "volume", "terms", "memory"])
@pytest.mark.parametrize("strategy", ["ddp", "zero1", "zero2", "zero3-deepspeed", "fsdp1", "hsdp", "fsdp2-tp"])
def test_every_table_of_every_strategy_prints(capfd, strategy, table):
    mesh = {"hsdp": "dp_replicate=2,dp_shard=4", "fsdp2-tp": "dp_shard=4,tp=2"}.get(strategy, "dp_shard=8")
    assert plan("--strategy", strategy, "--model", "7b", "--mesh", mesh, "--table", table) == 0
    out, err = capfd.readouterr()
    assert "Ψ = 6,738,415,616" in out
    assert err == ""


def test_parameters_come_from_a_manifest_too(tmp_path, capfd):
    path = tmp_path / "manifest.json"
    manifest = {"format": 1, "strategy": "x", "world_size": 1, "psi": 6, "psi_train": 6}
    parameters = [{"name": "layers.0.w", "shape": [3, 2], "dtype": "float32", "numel": 6, "layer": "layers.0"}]
    path.write_text(json.dumps(manifest | {"parameters": parameters}))
    assert plan("--strategy", "fsdp2", "--params-from", str(path), "--mesh", "dp_shard=2", "--format", "csv") == 0
    assert capfd.readouterr().out.splitlines()[1] == "layers.0,forward,0,all_gather,dp_shard,2,bfloat16,4,8,8,16,1"


def test_options_reach_the_plan(capfd):
    args = ("--micro-batches", "2", "--option", "sync-every-micro-batch=false", "--option", "clip_grad_norm=0.5")
    assert plan(*NANO, *args, "--reshard-after-forward", "true", "--reduce-dtype", "bfloat16", "--format", "json") == 0
    told = json.loads(capfd.readouterr().out)
    kinds = [row["kind"] for row in told["rows"]]
    assert [kinds.count(kind) for kind in ("all_gather", "reduce_scatter", "all_reduce")] == [12, 3, 1]
    assert {row["dtype"] for row in told["rows"] if row["kind"] == "reduce_scatter"} == {"bfloat16"}


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (("--strategy", "zero9", "--model", "nano", "--mesh", "dp_shard=2"), "--strategy zero9 is unknown"),
        (("--strategy", "fsdp2", "--model", "9b", "--mesh", "dp_shard=2"), "--model 9b is unknown"),
        (("--strategy", "fsdp2", "--mesh", "dp_shard=2"), "give either --model or --params-from"),
        ((*NANO, "--option", "x"), "--option x names no value"),
        ((*NANO, "--option", "clip_grad_nrom=1"), "the plan of fsdp2 does not take it: did you mean clip_grad_norm?"),
        ((*NANO, "--option", "sync_every_micro_batch=no"), 'sync_every_micro_batch="no": give true or false'),
        ((*NANO, "--option", "backward_prefetch=-1"), "backward_prefetch=-1: give a number of 0 or more"),
        ((*NANO, "--option", "ignored_parameters=norm"), "give a list of names"),
        (("--strategy", "ddp", "--model", "nano", "--mesh", "2", "--option", "compile=all"), "give blocks or model"),
        ((*NANO, "--param-dtype", "int3"), "--param-dtype int3 is unknown"),
        ((*NANO, "--reshard-after-forward", "maybe"), "--reshard-after-forward maybe is neither"),
        (("--strategy", "fsdp2", "--model", "nano", "--mesh", "cp=2"), "--mesh cp=2 is no axis with a size"),
        (("--strategy", "ddp", "--model", "nano", "--mesh", "dp_shard=2", "--prove"), "--prove ddp is not possible"),
        (("--strategy", "fsdp2", "--params-from", "none.json", "--mesh", "dp_shard=2"), "none.json: cannot be read"),
    ],
)
def test_wrong_options_are_told_in_one_sentence(capfd, args, sentence):
    assert plan(*args) == 2
    err = capfd.readouterr().err
    assert sentence in err
    assert err.count("\n") == 1
