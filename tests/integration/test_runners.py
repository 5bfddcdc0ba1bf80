"""The runners on two ranks: they train, they record, and a signal costs no trace.

nano has Ψ = 7248: two blocks of 2592, and a root unit (embeddings, last norm, output) of 2064.
"""

from __future__ import annotations

import gzip
import json
import signal
import subprocess
import threading

import pytest

from runners import launch

pytestmark = pytest.mark.integration

PSI, ROOT = 7248, 2064
STEPS = ("--wait", "4", "--active", "3")


def read(path):
    data = path.read_bytes()
    return json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)


def sent(path, name, side):
    """Elements of each call of a collective in the recorded window; `side` is its tensor argument's place."""
    events = [e for e in read(path)["traceEvents"] if e.get("name") == name]
    shapes = [e["args"]["Input Dims"][side] for e in events]
    # all-reduce takes a list of tensors; a scalar has no dimension.
    flat = [shape[0] if shape and isinstance(shape[0], list) else shape for shape in shapes]
    return [numel(shape) for shape in flat]


def numel(shape):
    return shape[0] if shape else 1


@pytest.mark.parametrize("strategy", ["fsdp2", "zero2", "zero2-fsdp2"])
def test_a_strategy_trains_and_records(recorded, strategy):
    run = recorded(strategy, *STEPS)
    assert len(run.losses) == 8
    assert run.losses[-1] < run.losses[0] - 0.2
    manifest = read(run.path / "manifest.json")
    assert (manifest["strategy"], manifest["world_size"], manifest["backend"]) == (strategy, 2, "gloo")
    assert (manifest["psi"], manifest["psi_train"]) == (PSI, PSI)
    assert manifest["mesh"] == [{"axis": "dp_shard", "size": 2}]
    assert [unit["name"] for unit in manifest["units"]] == ["layers.0", "layers.1", ""]
    layers = [
        sum(p["numel"] for p in manifest["parameters"] if p["layer"] == unit["name"]) for unit in manifest["units"]
    ]
    assert layers == [2592, 2592, ROOT]
    names = sorted(file.name for file in run.path.iterdir())
    assert names == ["manifest.json", "rank0.json.gz", "rank0.meta.json", "rank1.json.gz", "rank1.meta.json"]
    for rank, entry in enumerate(manifest["ranks"]):
        assert (entry["rank"], entry["ended"]) == (rank, True)
        assert entry["traces"][0] == {
            "cycle": 0,
            "file": f"rank{rank}.json.gz",
            "complete": True,
            "reason": None,
            "first_step": 5,
            "last_step": 7,
        }
        assert read(run.path / f"rank{rank}.json.gz")["distributedInfo"]["rank"] == rank


@pytest.mark.parametrize(("strategy", "gathered"), [("fsdp2", 2 * PSI - ROOT), ("zero2-fsdp2", PSI)])
def test_fsdp2_sends_what_its_units_say(recorded, strategy, gathered):
    trace = recorded(strategy, *STEPS).path / "rank1.json.gz"
    assert sum(sent(trace, "c10d::_allgather_base_", 0)) == 3 * gathered
    assert sum(sent(trace, "c10d::_reduce_scatter_base_", 1)) == 3 * PSI
    assert len(sent(trace, "c10d::_reduce_scatter_base_", 1)) == 3 * 3


def test_zero2_reduces_whole_gradients_and_gathers_once(recorded):
    trace = recorded("zero2", *STEPS).path / "rank0.json.gz"
    reduced = sent(trace, "c10d::allreduce_", 0)
    # One element each for the overflow flag and the gradient norm.
    assert reduced.count(1) == 3 * 2
    assert sum(reduced) - reduced.count(1) == 3 * PSI
    assert sent(trace, "c10d::_allgather_base_", 0) == [PSI] * 3


def test_zero2_marks_forward_backward_and_optimizer(recorded):
    events = read(recorded("zero2", *STEPS).path / "rank0.json.gz")["traceEvents"]
    names = [e["name"] for e in events if str(e.get("name", "")).startswith("tracekit::")]
    blocks = [f"tracekit::forward (layers.{layer})" for layer in (0, 1)]
    expected = ["tracekit::forward", *blocks, "tracekit::backward", "tracekit::optimizer"]
    assert sorted(names) == sorted(expected * 3)


@pytest.mark.parametrize(
    ("strategy", "held"),
    [
        # fp32 shards, two moments of them, and a step counter of 4 bytes for each of the 21 parameters.
        ("fsdp2", {"parameters": 4 * PSI // 2, "gradients": 0, "optimizer_state": 8 * PSI // 2 + 4 * 21}),
        # bf16 parameters whole; fp32 master weights and two moments of one flat half, with one step counter.
        ("zero2", {"parameters": 2 * PSI, "gradients": 0, "optimizer_state": 12 * PSI // 2 + 4}),
    ],
)
def test_what_a_rank_holds_between_steps(recorded, strategy, held):
    ranks = read(recorded(strategy, *STEPS).path / "manifest.json")["ranks"]
    # The rotary table: cosine and sine, 256 positions, 8 floats each.
    assert [rank["held_bytes"] for rank in ranks] == [held | {"buffers": 2 * 256 * 8 * 4}] * 2


def test_a_folder_in_use_fails_on_every_rank_with_one_sentence(recorded):
    run = recorded("fsdp2", *STEPS)
    before = read(run.path / "manifest.json")
    with pytest.raises(launch.LaunchError, match=r"fsdp2 on 2 ranks failed: .* holds a run already") as caught:
        launch.run("fsdp2", run.path, args=["--model", "nano"], on_line=str, timeout_s=60)
    assert "\n" not in str(caught.value)
    assert read(run.path / "manifest.json") == before


def test_options_change_the_run(recorded):
    options = ("--tie-embeddings", "--micro-batches", "2", "--reshard-after-forward", "true", "--repeat", "2")
    run = recorded("fsdp2", *options, "--wait", "1", "--active", "1", "--overwrite")
    manifest = read(run.path / "manifest.json")
    # The output weight of 64 * 16 is the embeddings' now.
    assert manifest["psi"] == PSI - 1024
    assert [p["tied_to"] for p in manifest["parameters"] if p["tied_to"]] == ["tok_embeddings.weight"]
    assert [unit["reshard_after_forward"] for unit in manifest["units"]] == [True, True, True]
    files = [trace["file"] for trace in manifest["ranks"][1]["traces"]]
    assert files == ["cycle0/rank1.json.gz", "cycle1/rank1.json.gz"]
    # Twice a micro-batch, forward and backward, the root too.
    gathered = sent(run.path / files[1], "c10d::_allgather_base_", 0)
    assert sum(gathered) == 2 * 2 * (PSI - 1024)


def test_sigterm_inside_the_window_leaves_readable_traces(tmp_path):
    args = ["--strategy", "fsdp2", "--model", "nano", "--seq-len", "16", "--wait", "1", "--active", "5000"]
    command = launch.command([str(launch.TRAIN), *args, "--out", str(tmp_path / "run")], 2)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=launch.environment()
    ) as process:
        watchdog = threading.Timer(60, process.kill)
        watchdog.start()
        for line in process.stdout:
            if line.startswith("step 4"):
                process.send_signal(signal.SIGTERM)
        process.wait()
        watchdog.cancel()
    assert process.returncode not in (0, -signal.SIGKILL)
    for rank in (0, 1):
        (entry,) = read(tmp_path / "run" / f"rank{rank}.meta.json")["traces"]
        assert (entry["file"], entry["complete"], entry["first_step"]) == (f"rank{rank}.json.gz", False, 2)
        marks = {
            e["name"] for e in read(tmp_path / "run" / entry["file"])["traceEvents"] if "ProfilerStep" in e["name"]
        }
        assert {f"ProfilerStep#{step}" for step in range(2, entry["last_step"] + 1)} <= marks
    assert "SIGTERM" in read(tmp_path / "run" / "manifest.json")["ranks"][0]["traces"][0]["reason"]
