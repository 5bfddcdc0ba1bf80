"""The runners over gloo: every strategy trains, records and sends what it says; a signal costs no trace.

nano has Ψ = 7248: two blocks of 2592 (7 matrices and 2 norms of 16), and a root unit of 2064 (embeddings 1024, norm 16,
output 1024). Its rotary table, the only buffer, has 2 * 256 * 8 elements. Numbers are those of one step.
"""

from __future__ import annotations

import signal
import subprocess
import threading

import pytest
from recorded_runs import FOUR_RANKS, read

from tracekit import training as launch
from tracekit.strategies import with_runner

pytestmark = pytest.mark.integration

PSI, BLOCK, ROOT, BUFFER = 7248, 2592, 2064, 4096
NUM_PARAMETERS = 21
# A block's matrices split over two tp ranks, its two norms whole.
TP_BLOCK = (BLOCK - 32) // 2 + 32
ACTIVATIONS = 4 * 16 * 16
DEEPSPEED = ("zero1-deepspeed", "zero2", "zero3-deepspeed")
AXES = {
    "ddp": {"dp_replicate": 2},
    "zero1": {"dp_replicate": 2},
    "hsdp": {"dp_replicate": 2, "dp_shard": 2},
    "fsdp2-tp": {"dp_shard": 2, "tp": 2},
}
DDP_REDUCES = {"allreduce": PSI, "broadcast": BUFFER}
# Elements of a step by operator: the whole tensor of a gather or reduce-scatter.
SENT = {
    "ddp": DDP_REDUCES,
    "zero1": DDP_REDUCES | {"broadcast": BUFFER + PSI},
    # One element each for the overflow flag and the gradients' norm.
    "zero1-deepspeed": {"allreduce": PSI + 2, "allgather_base": PSI},
    "zero2": {"allreduce": PSI + 2, "allgather_base": PSI},
    # The five norms stay whole, and are gathered after the step only.
    "zero3-deepspeed": {"allreduce": 1, "allgather_base": 2 * (PSI - 80) + 80, "reduce_scatter_base": PSI},
    # FSDP1 gathers into a list of shards, whose shapes a trace does not have: in half.
    "fsdp1": {"allgather": (2 * PSI - ROOT) // 2, "reduce_scatter_base": PSI},
    "zero2-fsdp1": {"allgather": PSI // 2, "reduce_scatter_base": PSI},
    "fsdp2": {"allgather_base": 2 * PSI - ROOT, "reduce_scatter_base": PSI},
    "zero2-fsdp2": {"allgather_base": PSI, "reduce_scatter_base": PSI},
    "hsdp": {"allgather_base": 2 * PSI - ROOT, "reduce_scatter_base": PSI, "allreduce": PSI // 2},
    # Two all-reduces a block in forward, five in backward.
    "fsdp2-tp": {
        "allgather_base": 4 * TP_BLOCK + ROOT,
        "reduce_scatter_base": 2 * TP_BLOCK + ROOT,
        "allreduce": 14 * ACTIVATIONS,
    },
    "fsdp2-graph": {"allgather_into_tensor_coalesced": PSI, "reduce_scatter_tensor_coalesced": PSI},
}


def totals(run, rank=0):
    """Elements by operator of the last step: the larger side of each call."""
    found: dict[str, int] = {}
    for name, *sizes in run.calls(rank)[-1]:
        # The list that FSDP1 gathers into has no dimensions; an option tensor counts 1.
        found[name] = found.get(name, 0) + max(sizes)
    return found


@pytest.mark.parametrize("strategy", with_runner())
def test_a_strategy_trains_and_records(recorded, strategy):
    run = recorded(strategy)
    ranks = 4 if strategy in FOUR_RANKS else 2
    assert len(run.losses) == 6
    assert run.losses[-1] < run.losses[0] - 0.15
    manifest = run.manifest
    assert (manifest["strategy"], manifest["world_size"], manifest["backend"]) == (strategy, ranks, "gloo")
    assert (manifest["psi"], manifest["psi_train"]) == (PSI, PSI)
    assert {axis["axis"]: axis["size"] for axis in manifest["mesh"]} == AXES.get(strategy, {"dp_shard": 2})
    assert [unit["name"] for unit in manifest["units"]] == ["layers.0", "layers.1", ""]
    layers = [
        sum(p["numel"] for p in manifest["parameters"] if p["layer"] == unit["name"]) for unit in manifest["units"]
    ]
    assert layers == [BLOCK, BLOCK, ROOT]
    assert manifest["parameters"][0]["shape"] == [64, 16]
    assert [(b["name"], b["shape"], b["numel"]) for b in manifest["buffers"]] == [("rope", [2, 256, 8], BUFFER)]
    # FSDP1 lets no hook see its parameters' gradients.
    expected = None if "fsdp1" in strategy else NUM_PARAMETERS
    assert (manifest["grad_order"] and len(manifest["grad_order"])) == expected
    names = sorted(file.name for file in run.path.iterdir())
    assert names == [
        "manifest.json",
        *sorted(f"rank{r}.{end}" for r in range(ranks) for end in ("json.gz", "meta.json")),
    ]
    for rank, entry in enumerate(manifest["ranks"]):
        assert (entry["rank"], entry["ended"]) == (rank, True)
        assert entry["traces"][0] == {
            "cycle": 0,
            "file": f"rank{rank}.json.gz",
            "complete": True,
            "reason": None,
            "first_step": 4,
            "last_step": 5,
        }
    assert read(run.path / "rank1.json.gz")["distributedInfo"]["rank"] == 1


@pytest.mark.parametrize("strategy", with_runner())
def test_a_step_sends_what_the_strategy_says(recorded, strategy):
    run = recorded(strategy)
    first, second = run.calls(rank=1)
    assert sorted(first) == sorted(second)
    assert totals(run, rank=1) == SENT[strategy]


@pytest.mark.parametrize("strategy", with_runner())
def test_layers_and_phases_have_names_in_the_trace(recorded, strategy):
    names = recorded(strategy).annotations()
    engine = strategy in DEEPSPEED
    assert [names.count(f"tracekit::{phase}") for phase in ("backward", "optimizer")] == [2, 2]
    blocks = [names.count(f"tracekit::forward (layers.{layer})") for layer in (0, 1)]
    fsdp2 = strategy in ("fsdp2", "zero2-fsdp2", "hsdp", "fsdp2-tp")
    # FSDP2 names its units itself; inside a compiled graph nothing has a name.
    assert blocks == ([0, 0] if fsdp2 or strategy == "fsdp2-graph" else [2, 2])
    assert ("FSDP::pre_forward (layers.1)" in names) == fsdp2
    assert ("DistributedDataParallel.forward" in names) == (strategy in ("ddp", "zero1"))
    assert ("FullyShardedDataParallel.forward" in names) == ("fsdp1" in strategy)
    assert engine or names.count("tracekit::backward") == 2


def test_ddp_tells_the_buckets_that_it_reduces(recorded):
    run = recorded("ddp")
    buckets = run.manifest["buckets"]
    assert run.sent("allreduce") == [bucket["numel"] for bucket in buckets]
    assert [name for bucket in buckets for name in bucket["parameters"]] == run.manifest["grad_order"]


def test_ddp_without_sync_reduces_once_a_step(recorded):
    run = recorded(
        "ddp", "--micro-batches", "3", "--no-sync-every-micro-batch", "--no-broadcast-buffers", "--tie-embeddings"
    )
    assert totals(run) == {"allreduce": PSI - 1024}


def test_ddp_reduces_every_micro_batch_in_smaller_buckets(recorded):
    args = ("--micro-batches", "2", "--bucket-mb", "0.002", "--freeze", r"layers\.0", "--reduce-dtype", "bfloat16")
    run = recorded("ddp", *args, "--activation-checkpointing", "--clip-grad-norm", "0.1")
    reduced = run.sent("allreduce")
    assert sum(reduced) == 2 * (PSI - BLOCK)
    assert len(reduced) == 2 * len(run.manifest["buckets"]) > 2 * 4
    assert run.manifest["psi_train"] == PSI - BLOCK
    types = {t for e in run.trace() if e.get("name") == "gloo:all_reduce" for t in e["args"]["Input type"]}
    assert types == {"c10::BFloat16"}
    # The buffers go out before each forward.
    assert run.sent("broadcast") == [BUFFER] * 2


def test_zero1_tells_who_sends_a_parameter(recorded):
    run = recorded("zero1")
    owners = run.manifest["owners"]
    numels = {p["name"]: p["numel"] for p in run.manifest["parameters"]}
    assert run.sent("broadcast") == [BUFFER, *(numels[name] for name in owners)]
    shares = [sum(numels[name] for name, rank in owners.items() if rank == owner) for owner in (0, 1)]
    # Two moments in fp32 and a step counter a parameter.
    held = [entry["held_bytes"]["optimizer_state"] for entry in run.manifest["ranks"]]
    counts = [list(owners.values()).count(owner) for owner in (0, 1)]
    assert held == [8 * share + 4 * count for share, count in zip(shares, counts, strict=True)]


def test_fsdp1_flattens_and_pads(recorded):
    args = ("--model", "odd", "--tie-embeddings", "--micro-batches", "2", "--no-sync-every-micro-batch")
    run = recorded("fsdp1", *args, "--clip-grad-norm", "0.5", "--forward-prefetch", "1")
    units = run.manifest["units"]
    assert [unit["reshard_after_forward"] for unit in units] == [None] * 3
    flats = [unit["flat"] for unit in units]
    # Blocks of 11,214; the root has 1001 * 42 + 42.
    for flat, plain in zip(flats, (11_214, 11_214, 42_084), strict=True):
        assert flat["numel"] == 2 * flat["shard_numel"] == plain + flat["padding_numel"]
    assert sum(flat["padding_numel"] for flat in flats) > 0
    block, root = flats[0]["shard_numel"], flats[2]["shard_numel"]
    # A gather in forward and one in backward for each micro-batch, but for the root.
    assert sum(run.sent("allgather", 1)) == 2 * (4 * block + root)
    assert sum(run.sent("reduce_scatter_base", 1)) == 2 * (2 * block + root)
    # The norm of the gradients.
    assert run.sent("allreduce") == [1]
    assert run.manifest["parameters"][0]["shape"] == [1001, 42]


def test_fsdp2_without_sync_gathers_all_the_same(recorded):
    args = ("--micro-batches", "2", "--no-sync-every-micro-batch", "--freeze", r"layers\.0")
    run = recorded("fsdp2", *args, "--clip-grad-norm", "0.1", "--param-dtype", "float32", "--reduce-dtype", "bfloat16")
    assert sum(run.sent("reduce_scatter_base", 1)) == PSI - BLOCK
    assert run.sent("allgather_base").count(ROOT) == 2
    event = next(e for e in run.trace() if e.get("name") == "c10d::_reduce_scatter_base_")
    assert event["args"]["Input type"][0] == "c10::BFloat16"
    event = next(e for e in run.trace() if e.get("name") == "c10d::_allgather_base_")
    assert event["args"]["Input type"][0] == "float"
    assert run.manifest["precision"]["param_dtype"] == "float32"
    # The squared norms of the 12 gradients that there are, summed over the ranks in one call.
    assert run.sent("allreduce") == [12]


def test_fsdp2_reshards_as_each_unit_says(recorded):
    args = ("--reshard", "layers.0=false", "--reshard", "root=true", "--activation-checkpointing", "--async-unshard")
    run = recorded("fsdp2", *args, "--model", "odd", "--tie-embeddings")
    assert [unit["reshard_after_forward"] for unit in run.manifest["units"]] == [False, None, True]
    # On two ranks dim 0 is padded: w1 and w3 from 51 to 52 rows of 42, the embeddings from 1001 to 1002.
    block, root = 11_214 + 2 * 42, 42_084 + 42
    assert sum(run.sent("allgather_base")) == 2 * root + 3 * block
    assert sum(run.sent("reduce_scatter_base", 1)) == root + 2 * block


def test_fsdp2_keeps_units_on_smaller_groups(recorded):
    run = recorded("fsdp2", "--reshard-after-forward", "2", "--forward-prefetch", "1", ranks=4)
    assert [unit["reshard_after_forward"] for unit in run.manifest["units"]] == [2, 2, 2]
    gathers = [call[1:] for call in run.calls()[-1] if call[0] == "allgather_base"]
    # From four ranks in forward, from two in backward; torch keeps the root's setting, too.
    assert sorted(gathers) == sorted(
        [(n, n // 4) for n in (BLOCK, BLOCK, ROOT)] + [(n, n // 2) for n in (BLOCK, BLOCK, ROOT)]
    )


def test_fsdp2_gathers_as_far_ahead_as_told(recorded):
    run = recorded("fsdp2", "--layers", "4", "--forward-prefetch", "2", "--backward-prefetch", "2")
    names = [
        e["name"] for e in sorted(run.trace(), key=lambda e: e.get("ts", 0)) if e.get("name", "").startswith("FSDP::")
    ]
    step = names[: names.index("FSDP::root_post_backward_callback")]
    forward = step[: step.index("FSDP::pre_backward")]
    # At the first block, its own gather and those of the two after it.
    first = forward[forward.index("FSDP::pre_forward (layers.0)") :]
    gathered = [name for name in first[: first.index("FSDP::post_forward (layers.0)")] if "all_gather (" in name]
    assert gathered == [f"FSDP::all_gather (layers.{layer})" for layer in (0, 1, 2)]
    last = step[step.index("FSDP::pre_backward (layers.3)") :]
    gathered = [name for name in last[: last.index("FSDP::post_backward_reshard (layers.3)")] if "all_gather (" in name]
    assert gathered == [f"FSDP::all_gather (layers.{layer})" for layer in (2, 1)]


def test_hsdp_all_reduces_once_if_told(recorded):
    run = recorded("hsdp", "--micro-batches", "2", "--no-all-reduce-every-micro-batch")
    assert sum(run.sent("reduce_scatter_base", 1)) == 2 * PSI
    assert sum(run.sent("allreduce")) == PSI // 2


def test_fsdp2_tp_splits_on_both_axes(recorded):
    parameters = {p["name"]: p for p in recorded("fsdp2-tp").manifest["parameters"]}
    rows, columns = parameters["layers.1.attention.wo.weight"], parameters["layers.1.feed_forward.w1.weight"]
    # [Shard(0), Shard(1)]: a quarter of the matrix, half of its rows and half of its columns.
    assert rows["placements"] == {"dp_shard": "Shard(0)", "tp": "Shard(1)"}
    assert (rows["shape"], rows["local_shape"]) == ([16, 16], [8, 8])
    assert columns["placements"] == {"dp_shard": "StridedShard(0, 2)", "tp": "Shard(0)"}
    assert (columns["shape"], columns["local_shape"]) == ([32, 16], [8, 16])
    assert parameters["output.weight"]["placements"] == {"dp_shard": "Shard(0)"}


def test_fsdp2_tp_clips_over_both_meshes(recorded):
    run = recorded("fsdp2-tp", "--clip-grad-norm", "0.1", "--freeze", "tok_emb")
    # Squared norms: of the 6 gradients that lie on dp_shard alone, then of the 14 matrices over dp_shard and over tp.
    assert [numel for numel in run.sent("allreduce") if numel != ACTIVATIONS] == [6, 14, 14]
    assert sum(run.sent("reduce_scatter_base", 1)) == 2 * TP_BLOCK + ROOT - 1024


def test_zero2_reduces_to_owners_in_every_micro_batch(recorded):
    args = ("--grad-path", "reduce-to-owner", "--micro-batches", "2", "--bucket-numel", "1000000")
    run = recorded("zero2", *args, "--clip-grad-norm", "0.1", "--freeze", r"layers\.0")
    half = (PSI - BLOCK) // 2
    assert run.sent("reduce") == [half] * 4
    assert run.sent("allgather_base") == [PSI - BLOCK]


def test_zero2_reduces_whole_buckets(recorded):
    run = recorded("zero2", "--grad-path", "plain-all-reduce", "--model", "odd", "--reduce-dtype", "float32")
    assert sum(run.sent("allreduce")) == 106_554 + 2
    assert run.manifest["options"]["reduce_scatter"] is False


def test_zero1_deepspeed_reduces_once_a_step(recorded):
    run = recorded("zero1-deepspeed", "--micro-batches", "2")
    assert sum(run.sent("allreduce")) == PSI + 2


def test_zero1_deepspeed_adds_up_in_fp32(recorded):
    run = recorded("zero1-deepspeed", "--micro-batches", "2", "--grad-accum-dtype", "float32")
    assert run.manifest["options"]["optimizer"] == "BF16_Optimizer"
    assert run.sent("allreduce") == [PSI]
    # The sums of whole gradients stay between steps, too.
    assert run.manifest["ranks"][0]["held_bytes"]["gradients"] == 4 * PSI


def test_zero3_deepspeed_frees_all_if_told(recorded):
    run = recorded("zero3-deepspeed", "--persistence-numel", "0", "--micro-batches", "2")
    assert sum(run.sent("allgather_base")) == 2 * 2 * PSI
    assert sum(run.sent("reduce_scatter_base", 1)) == 2 * PSI


def test_collectives_are_nodes_of_one_graph(recorded):
    compiled = recorded("fsdp2-graph").manifest["compile"]
    assert (compiled["graph_breaks"], compiled["graphs"], compiled["fullgraph"]) == (0, 2, True)
    nodes = compiled["collectives_in_graph"]
    names = [p["name"] for p in recorded("fsdp2-graph").manifest["parameters"]]
    gathers = [node for node in nodes if node["phase"] == "forward"]
    assert {node["kind"] for node in gathers} == {"all_gather"}
    assert sorted(node["parameter"] for node in gathers) == sorted(names)
    assert sum(node["out_numel"] for node in gathers) == PSI
    reduces = [node for node in nodes if node["phase"] == "backward"]
    assert {node["kind"] for node in reduces} == {"reduce_scatter"}
    assert sorted(node["parameter"] for node in reduces) == sorted(names)
    assert sum(node["in_numel"] for node in reduces) == PSI


def test_a_tied_weight_is_gathered_at_each_use(recorded):
    run = recorded("fsdp2-graph", "--tie-embeddings", "--freeze", r"layers\.0", "--clip-grad-norm", "0.1")
    assert run.manifest["psi"] == PSI - 1024
    assert sum(run.sent("allgather_into_tensor_coalesced")) == PSI


@pytest.mark.parametrize(
    ("strategy", "scope", "breaks"),
    # With torch 2.13, whose DDP and FSDP1 leave the graph in their own forward.
    [
        ("ddp", "model", 3),
        ("ddp", "blocks", 0),
        ("fsdp1", "model", 1),
        ("fsdp1", "blocks", 0),
        ("fsdp2", "blocks", 0),
        ("fsdp2", "model", 0),
    ],
)
def test_compiling_leaves_collectives_outside_the_graph(recorded, strategy, scope, breaks):
    run = recorded(strategy, "--compile", scope)
    compiled = run.manifest["compile"]
    assert (compiled["scope"], compiled["collectives_in_graph"]) == (scope, [])
    assert compiled["graphs"] >= 2
    assert compiled["graph_breaks"] == sum(compiled["graph_break_reasons"].values()) == breaks
    # The same is sent, compiled or not.
    assert totals(run) == SENT[strategy]


@pytest.mark.parametrize(
    ("strategy", "held"),
    [
        # fp32 shards, two moments of them, and a step counter of 4 bytes for each of the 21 parameters.
        ("fsdp2", {"parameters": 4 * PSI // 2, "gradients": 0, "optimizer_state": 8 * PSI // 2 + 4 * 21}),
        # bf16 parameters whole; fp32 master weights and two moments of one flat half, with one step counter.
        ("zero2", {"parameters": 2 * PSI, "gradients": 0, "optimizer_state": 12 * PSI // 2 + 4}),
        # The reducer's buckets hold every gradient once more.
        (
            "ddp",
            {
                "parameters": 4 * PSI,
                "gradients": 0,
                "optimizer_state": 8 * PSI + 4 * 21,
                "collective_buffers": 4 * PSI,
            },
        ),
    ],
)
def test_what_a_rank_holds_between_steps(recorded, strategy, held):
    ranks = recorded(strategy).manifest["ranks"]
    assert [rank["held_bytes"] for rank in ranks] == [{"collective_buffers": 0, "buffers": 4 * BUFFER} | held] * 2


def test_a_folder_in_use_fails_on_every_rank_with_one_sentence(recorded):
    run = recorded("fsdp2")
    before = run.manifest
    with pytest.raises(launch.LaunchError, match=r"fsdp2 on 2 ranks failed: .* holds a run already") as caught:
        launch.run("fsdp2", run.path, args=["--model", "nano"], on_line=str, timeout_s=60)
    assert "\n" not in str(caught.value)
    assert run.manifest == before


@pytest.mark.parametrize(
    ("strategy", "args", "sentence"),
    [
        ("hsdp", (), "2 ranks make no 2 replicas of two ranks or more; give another --dp-replicate or start 4 ranks"),
        ("fsdp2-tp", ("--tp", "1", "--model", "odd", "--freeze", "x"), "--freeze x finds no parameter"),
        ("fsdp1", ("--forward-prefetch", "2"), "FSDP1 gathers one unit ahead or none"),
        ("fsdp2", ("--reshard", "layers.7=true"), "--reshard layers.7: there is no such unit"),
        ("fsdp2", ("--reshard-after-forward", "3"), "units cannot stay on groups of 3 of 2 ranks"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(tmp_path, strategy, args, sentence):
    with pytest.raises(launch.LaunchError, match="failed: ") as caught:
        launch.run(strategy, tmp_path / "run", args=["--model", "nano", *args], on_line=str, timeout_s=60)
    assert sentence in str(caught.value)
    assert not (tmp_path / "run" / "manifest.json").exists()


def test_cycles_have_files_of_their_own(recorded):
    run = recorded("fsdp2", "--repeat", "2", "--wait", "1", "--active", "1", "--reshard-after-forward", "true")
    files = [trace["file"] for trace in run.manifest["ranks"][1]["traces"]]
    assert files == ["cycle0/rank1.json.gz", "cycle1/rank1.json.gz"]
    events = read(run.path / files[1])["traceEvents"]
    gathers = [e["args"]["Input Dims"][0][0] for e in events if e.get("name") == "c10d::_allgather_base_"]
    assert sum(gathers) == 2 * PSI


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
