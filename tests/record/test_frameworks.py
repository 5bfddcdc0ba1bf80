"""The recorder's own look at a model: what wraps it, and what was told against it."""

from __future__ import annotations

import json
import warnings

import pytest
import torch
from record_models import Toy, train_step
from torch import nn

from tracekit.record import Precision, Recorder, RecordError, Schedule, describe, frameworks
from tracekit.record.frameworks.found import Found
from tracekit.record.observed import MicroBatches, sync_option
from tracekit.record.told import Told, settle, with_modules


@pytest.fixture(scope="module", autouse=True)
def one_rank():
    """A process group of this process alone."""
    dist = torch.distributed
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def replica(model=None, **options):
    with warnings.catch_warnings():
        # Newer names of its options do not exist in older torch.
        warnings.simplefilter("ignore")
        return nn.parallel.DistributedDataParallel(model or Toy(), **options)


def fsdp1(model, **options):
    from torch.distributed.fsdp import FullyShardedDataParallel

    with warnings.catch_warnings():
        # One rank shards nothing, and torch prefers FSDP2; it says so.
        warnings.simplefilter("ignore")
        return FullyShardedDataParallel(model, device_id=torch.device("cpu"), **options)


def fsdp2(model=None, *, names=("dp",), policies=None, root=True, **options):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    model = model or Toy()
    mesh = init_device_mesh("cpu", (1,) * len(names), mesh_dim_names=names)
    for index, layer in enumerate(model.layers):
        policy = (policies or {}).get(index, MixedPrecisionPolicy())
        fully_shard(layer, mesh=mesh, mp_policy=policy, **options)
    if root:
        fully_shard(model, mesh=mesh, **options)
    return model


def look(model, optimizer=None):
    return frameworks.look(model, optimizer, 1)


def test_ddp():
    found = look(replica(broadcast_buffers=False, bucket_cap_mb=1, find_unused_parameters=True))
    assert (found.strategy, found.framework, found.mesh) == ("ddp", "torch DDP", [("dp_replicate", 1)])
    assert found.options == {
        "bucket_mb": 1.0,
        "broadcast_buffers": False,
        "find_unused_parameters": True,
        "static_graph": False,
    }
    assert found.precision == Precision("float32", "float32", None, "float32")
    assert [unit for (unit, _), _ in found.units] == ["layers.0", "layers.1", ""]


def test_ddp_is_found_from_the_model_inside():
    inner = Toy()
    outer = replica(inner)
    assert look(inner).wrapped == look(outer).wrapped == "the model is wrapped by DistributedDataParallel over 1 ranks"


@pytest.mark.parametrize(
    ("hook", "strategy", "reduce_dtype"),
    [
        ("allreduce_hook", "ddp", "float32"),
        ("bf16_compress_hook", "ddp", "bfloat16"),
        ("fp16_compress_hook", "ddp", "float16"),
        ("powerSGD_hook", "unknown", "float32"),
    ],
)
def test_ddp_with_a_communication_hook(hook, strategy, reduce_dtype):
    outer = replica()
    # DDP itself refuses torch's compressing hooks without a GPU.
    outer._comm_hooks.append((type("Hook", (), {"__name__": hook})(), None))
    found = look(outer)
    assert (found.strategy, found.precision.reduce_dtype) == (strategy, reduce_dtype)
    assert (found.why is None) is (strategy == "ddp")


def test_the_buckets_that_ddp_made():
    outer = replica(bucket_cap_mb=0.0001)
    found = look(outer)
    optimizer = torch.optim.SGD(outer.parameters(), lr=0.1)
    for _ in range(3):
        # The second forward makes the buckets anew, in the order in which gradients came; the third tells.
        train_step(outer, optimizer)
    assert found.learned is not None
    buckets = found.learned()["buckets"]
    names = [name for bucket in buckets for name in bucket["parameters"]]
    assert sorted(names) == ["embed.weight", "layers.0.weight", "layers.1.bias", "layers.1.weight"]
    assert sum(bucket["numel"] for bucket in buckets) == 76


def test_zero1():
    outer = replica()
    with warnings.catch_warnings():
        # torch compiles its parts with torch.jit, which it deprecates.
        warnings.simplefilter("ignore")
        from torch.distributed.optim import ZeroRedundancyOptimizer

        trained = [p for p in outer.parameters() if p.requires_grad]
        optimizer = ZeroRedundancyOptimizer(trained, optimizer_class=torch.optim.AdamW, lr=0.1)
    found = look(outer, optimizer)
    assert found.strategy == "zero1"
    train_step(outer, optimizer)
    assert found.held is not None
    assert found.learned is not None
    assert sum(tensor.numel() for tensor in found.held()["optimizer_state"]) == 2 * 76 + 4
    assert set(found.learned()["owners"].values()) == {0}


@pytest.mark.parametrize("use_orig_params", [True, False])
def test_fsdp1_parameters_are_whole(use_orig_params):
    model = Toy()
    model.layers[0].bias.requires_grad_(True)
    model.layers[0] = fsdp1(model.layers[0], use_orig_params=use_orig_params)
    model = fsdp1(model, use_orig_params=use_orig_params)
    found = look(model)
    entries = describe.parameters(model, found.units)
    assert found.options["use_orig_params"] is use_orig_params
    assert [unit for (unit, _), _ in found.units] == ["layers.0", ""]
    assert {(e["name"], tuple(e["shape"]), e["layer"]) for e in entries} == {
        ("embed.weight", (10, 4), ""),
        ("layers.0.weight", (4, 4), "layers.0"),
        ("layers.0.bias", (4,), "layers.0"),
        ("layers.1.weight", (4, 4), ""),
        ("layers.1.bias", (4,), ""),
        ("head.weight", (10, 4), ""),
    }
    assert {e["name"]: e["tied_to"] for e in entries if e["tied_to"]} == {"head.weight": "embed.weight"}
    assert describe.psi(entries) == 80


@pytest.mark.parametrize(
    ("options", "names", "strategy", "mesh"),
    [
        ({}, ("dp",), "fsdp2", [("dp_shard", 1)]),
        ({"reshard_after_forward": False}, ("x",), "zero2-fsdp2", [("dp_shard", 1)]),
        ({"reshard_after_forward": True}, ("x",), "fsdp2", [("dp_shard", 1)]),
        ({}, ("outer", "inner"), "hsdp", [("dp_replicate", 1), ("dp_shard", 1)]),
    ],
)
def test_fsdp2(options, names, strategy, mesh):
    found = look(fsdp2(names=names, **options))
    assert (found.strategy, found.mesh, found.names_units) == (strategy, mesh, True)


def test_fsdp2_without_a_wrapped_root():
    found = look(fsdp2(root=False))
    assert [unit for (unit, _), _ in found.units] == ["layers.0", "layers.1", ""]
    assert found.strategy == "fsdp2"


def test_a_precision_of_each_unit():
    from torch.distributed.fsdp import MixedPrecisionPolicy

    half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = fsdp2(policies={0: half})
    found = look(model)
    assert found.precision == Precision("float32", "float32", None, "float32")
    assert found.unit_precision == {"layers.0": Precision("bfloat16", "float32", None, "float32")}
    told = {unit["name"]: unit.get("precision") for unit in describe.unit_entries(model, found)}
    assert told["layers.0"]["param_dtype"] == "bfloat16"
    assert told["layers.1"] is None


def test_tensor_parallel_axes_get_the_fields_names():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("data", "model"))
    model = Toy()
    for layer in model.layers:
        parallelize_module(layer, mesh["model"], ColwiseParallel())
        fully_shard(layer, mesh=mesh["data"])
    found = look(model)
    assert (found.strategy, found.mesh) == ("fsdp2-tp", [("dp_shard", 1), ("tp", 1)])
    placements = {e["name"]: e.get("placements") for e in describe.parameters(model, found.units, found.axes)}
    assert placements["layers.0.weight"].keys() == {"dp_shard", "tp"}


def test_tensor_parallelism_alone_has_no_plan():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    model = Toy()
    parallelize_module(model.layers[0], init_device_mesh("cpu", (1,), mesh_dim_names=("m",)), ColwiseParallel())
    found = look(model)
    assert (found.strategy, found.mesh) == ("unknown", [("tp", 1)])
    assert found.why == "there is no plan for tensor parallelism without FSDP2"


class _Renamed(Toy):
    """What a torch that names its state otherwise would leave: a class of its own, and a state without our names."""

    def _get_fsdp_state(self):
        return object()


def unknown_states():
    mixin = type("FSDPModule", (), {})
    yield "another name for the groups", type("FSDPToy", (mixin, _Renamed), {})()
    yield "another method for the state", type("FSDPToy", (mixin, Toy), {})()
    model = fsdp2()
    for layer in model.layers:
        for group in frameworks.fsdp2.param_groups(frameworks.fsdp2.state_of(layer)):
            del group.mesh_info
    yield "another place for the mesh", model


def test_a_state_that_is_unknown_is_told_and_nothing_is_planned():
    for what, model in unknown_states():
        found = look(model)
        assert (found.strategy, found.framework, found.mesh) == ("unknown", "torch FSDP2", []), what
        assert str(found.why).startswith("this torch's FSDP2 state is unknown (torch "), what
        assert str(found.why).endswith(": no plan; update tracekit"), what
        # Its name alone would be planned from guesses; all that a plan needs is believed.
        assert settle(found, Told("fsdp2"), 2).strategy == "unknown", what
        assert settle(found, Told("fsdp2", [("dp_shard", 2)]), 2).strategy == "unknown", what
        units = with_modules([("layers.0", None)])
        told = settle(found, Told("hsdp", [("dp_replicate", 2), ("dp_shard", 2)], units, Precision("float32")), 4)
        assert (told.strategy, told.why) == ("hsdp", None), what


class _Old:
    """The state of torch 2.6, which has no automatic choice."""

    def __init__(self, group):
        self._fsdp_param_group = group


@pytest.mark.parametrize(
    ("root", "inner", "expected"),
    [
        ("freed", "freed", [None, None]),
        # The first forward, or being told so, keeps the root: nobody can see which.
        ("kept", "freed", [None, None]),
        ("kept", "kept", [False, False]),
        ("freed", "kept", [False, False]),
    ],
)
def test_the_root_of_torch_2_6_stays_gathered_whatever_it_was_told(root, inner, expected, monkeypatch):
    model = Toy()
    mesh = object()
    after = {"freed": mesh, "kept": None}
    group = {
        setting: type("Group", (), {"post_forward_mesh_info": at, "mesh_info": mesh})() for setting, at in after.items()
    }
    states = {"layers.0": _Old(group[inner]), "": _Old(group[root])}
    monkeypatch.setattr(frameworks.fsdp2, "_by_unit", lambda _: states)
    assert [setting for (_, setting), _ in frameworks.fsdp2._units(model)] == expected


@pytest.mark.parametrize(
    ("state", "overflow", "norm"),
    [
        # As in 0.16 to 0.18, whose step looks for the overflow of float16 alone.
        ({"dtype": torch.bfloat16}, False, True),
        ({"dtype": torch.float16}, True, True),
        ({"dtype": torch.float32}, False, True),
        # As in 0.19, whose engine says so.
        ({"dtype": torch.bfloat16, "check_grad_overflow": True, "compute_grad_norm": True}, True, True),
        ({"dtype": torch.bfloat16, "check_grad_overflow": False, "compute_grad_norm": False}, False, False),
    ],
)
def test_what_a_step_of_deepspeed_looks_for(state, overflow, norm):
    checks = frameworks.deepspeed._step_checks(type("DeepSpeedZeroOptimizer", (), state)())
    assert checks == {"check_grad_overflow": overflow, "compute_grad_norm": norm}


@pytest.mark.parametrize("before", [True, False])
def test_states_of_older_torch(before):
    group = object()
    named = {"_fsdp_param_group": group} if before else {"_fsdp_param_groups": [group]}
    assert frameworks.fsdp2.param_groups(type("State", (), named)()) == [group]
    assert frameworks.fsdp2.param_groups(type("State", (), {"_fsdp_param_group": None})()) == []


def test_nothing_around_the_model():
    assert look(Toy()).strategy == "ddp"
    found = frameworks.look(Toy(), None, 4)
    assert (found.strategy, found.mesh) == ("unknown", [("dp_replicate", 4)])
    assert "no wrapper was found around the model" in str(found.why)


CONTRADICTIONS = [
    ("fsdp2", replica, "strategy is fsdp2, but the model is wrapped by DistributedDataParallel over 1 ranks"),
    ("zero2", replica, "it looks like ddp"),
    ("zero1", replica, "strategy is zero1, but the model is wrapped by DistributedDataParallel"),
    ("ddp", fsdp2, "strategy is ddp, but fully_shard was called on 3 of its modules over dp_shard=1"),
    ("zero2-fsdp2", fsdp2, "it looks like fsdp2"),
    ("hsdp", fsdp2, "it looks like fsdp2"),
    ("fsdp3", Toy, r"strategy fsdp3 is unknown: .*fsdp2"),
]


@pytest.mark.parametrize(("strategy", "make", "sentence"), CONTRADICTIONS)
def test_what_is_told_against_what_is_there(tmp_path, strategy, make, sentence):
    with pytest.raises(RecordError, match=sentence):
        Recorder(tmp_path / "run", make(), strategy=strategy).start()
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("found", "told", "sentence"),
    [
        (Found(), Told(mesh=[("dp_shard", 3)]), "the mesh dp_shard=3 has 3 ranks, but 4 are here"),
        (
            Found(framework="torch FSDP2", mesh=[("dp_replicate", 2), ("dp_shard", 2)], wrapped="it is HSDP"),
            Told(mesh=[("dp_shard", 4)]),
            "the mesh is dp_shard=4, but it is HSDP",
        ),
        (Found(mesh=[("dp_replicate", 4)]), Told("fsdp1"), "strategy is fsdp1, but no wrapper that the recorder knows"),
    ],
)
def test_told_meshes_and_missing_wrappers(found, told, sentence):
    with pytest.raises(RecordError, match=sentence):
        settle(found, told, 4)


def test_what_is_told_where_nothing_can_be_found():
    found = settle(Found(mesh=[("dp_replicate", 4)], why="nothing"), Told("ddp", precision=Precision("bfloat16")), 4)
    assert (found.strategy, found.why, found.precision.param_dtype) == ("ddp", None, "bfloat16")


def test_a_run_with_nothing_told(tmp_path):
    outer = replica()
    optimizer = torch.optim.SGD(outer.parameters(), lr=0.1)
    with Recorder(tmp_path / "run", outer, optimizer=optimizer, schedule=Schedule(1, 0, 2)) as recorder:
        for _ in range(4):
            train_step(outer, optimizer)
            recorder.step()
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert (manifest["strategy"], manifest["micro_batches"]) == ("ddp", 1)
    assert manifest["observed"] == [
        {"step": step, "micro_batches": 1, "other_forwards": 0, "synced": [True]} for step in (1, 2)
    ]
    assert sum(bucket["numel"] for bucket in manifest["buckets"]) == 76


def accumulated(tmp_path, outer, *, num, last_only, evaluate=False):
    """The manifest of a loop that trains `num` micro-batches a step."""
    optimizer = torch.optim.SGD(outer.parameters(), lr=0.1)
    tokens = torch.zeros(1, 2, dtype=torch.long)
    with Recorder(tmp_path / "run", outer, optimizer=optimizer, schedule=Schedule(0, 1, 2)) as recorder:
        for _ in range(3):
            for index in range(num):
                outer.require_backward_grad_sync = not last_only or index == num - 1
                outer(tokens).sum().backward()
            if evaluate:
                with torch.no_grad():
                    outer(tokens)
            optimizer.step()
            optimizer.zero_grad()
            recorder.step()
    return json.loads((tmp_path / "run" / "manifest.json").read_text())


@pytest.mark.parametrize("last_only", [True, False])
def test_accumulation_is_observed(tmp_path, last_only):
    manifest = accumulated(tmp_path, replica(), num=3, last_only=last_only)
    assert manifest["micro_batches"] == 3
    assert manifest["options"]["sync_every_micro_batch"] is not last_only


def test_an_evaluation_inside_the_step_is_observed(tmp_path):
    manifest = accumulated(tmp_path, replica(), num=1, last_only=False, evaluate=True)
    assert manifest["micro_batches"] == 1
    assert [step["other_forwards"] for step in manifest["observed"]] == [1, 1]


@pytest.mark.parametrize(
    ("patterns", "option"),
    [
        ([[True, True]], True),
        ([[False, True], [False, True]], False),
        ([[True, False]], None),
        ([[False, True], [True, True]], None),
        ([[]], None),
        ([None], None),
        ([], None),
    ],
)
def test_which_micro_batches_were_reduced(patterns, option):
    assert sync_option([{"synced": pattern} for pattern in patterns]) is option


@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: (None, x), lambda x: {"loss": x}, lambda x: [{"a": (x,)}]])
def test_the_output_of_a_forward_may_be_anything(wrap):
    model = nn.Linear(2, 2)
    watch = MicroBatches(model, None, "forward")
    model.register_forward_hook(lambda module, args, output: wrap(output))
    watch.turn_on()
    kept = []
    handle = model.register_forward_hook(lambda module, args, output: kept.append(output))
    model(torch.zeros(1, 2))
    handle.remove()

    def first(value):
        if isinstance(value, torch.Tensor):
            return value
        values = value.values() if isinstance(value, dict) else value
        return next(found for one in values if one is not None and (found := first(one)) is not None)

    first(kept[0]).sum().backward()
    watch.end_step(0)
    watch.turn_off()
    assert watch.learned()["micro_batches"] == 1
    assert len(model._forward_hooks) == 1
