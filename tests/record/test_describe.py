from __future__ import annotations

import warnings
from types import SimpleNamespace

import pytest
import torch
from record_models import Toy, train_step
from torch import nn

from tracekit.record import Precision, clean_name, describe, frameworks
from tracekit.record.frameworks import fsdp1
from tracekit.record.held import held_bytes
from tracekit.record.hooks import ForwardMarks, GradOrder
from tracekit.record.names import inner_optimizer, named_modules, wrappers


@pytest.fixture
def one_rank():
    """A process group of this process alone."""
    dist = torch.distributed
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def units_of(model):
    return frameworks.look(model, None, 1).units


def precision_of(model):
    return frameworks.look(model, None, 1).precision


def test_parameters_of_a_tied_and_frozen_model():
    model = Toy()
    entries = describe.parameters(model, units_of(model))
    told = [(e["name"], e["shape"], e["numel"], e["requires_grad"], e["layer"], e["tied_to"]) for e in entries]
    assert told == [
        ("embed.weight", [10, 4], 40, True, "", None),
        ("layers.0.weight", [4, 4], 16, True, "layers.0", None),
        ("layers.0.bias", [4], 4, False, "layers.0", None),
        ("layers.1.weight", [4, 4], 16, True, "layers.1", None),
        ("layers.1.bias", [4], 4, True, "layers.1", None),
        ("head.weight", [10, 4], 40, True, "", "embed.weight"),
    ]
    assert {e["dtype"] for e in entries} == {"float32"}
    assert describe.psi(entries) == 80
    assert describe.psi(entries, trainable=True) == 76


def test_a_model_without_parameters():
    model = nn.Identity()
    units = units_of(model)
    assert units == [(("", None), [""])]
    assert describe.parameters(model, units) == []
    assert describe.psi([]) == 0
    assert precision_of(model) == Precision()
    assert held_bytes(model, None) == {
        "parameters": 0,
        "gradients": 0,
        "optimizer_state": 0,
        "buffers": 0,
        "collective_buffers": 0,
    }
    assert describe.device_of(model)[0] == "cpu"


def test_units_are_the_blocks_then_the_root():
    assert units_of(Toy()) == [
        (("layers.0", None), ["layers.0"]),
        (("layers.1", None), ["layers.1"]),
        (("", None), [""]),
    ]


def test_the_innermost_unit_owns():
    units = [((name, None), name.split(", ")) for name in ("a.b", "a", "norm, head", "")]
    owners = [describe.owner(name, units) for name in ("a.b.w", "a.bc.w", "a.w", "norm.w", "head.w", "x.w")]
    assert owners == ["a.b", "a", "a", "norm, head", "norm, head", ""]


def test_wrapper_names_are_cleaned():
    assert clean_name("_orig_mod.layers.0._checkpoint_wrapped_module.w") == "layers.0.w"
    assert clean_name("_fsdp_wrapped_module") == ""
    assert clean_name("layers.0.wq.parametrizations.weight.original") == "layers.0.wq.weight"


def around(name, attribute, inner):
    outer = type(name, (nn.Module,), {})()
    setattr(outer, attribute, inner)
    return outer


@pytest.mark.parametrize(
    ("name", "attribute"),
    [
        ("DistributedDataParallel", "module"),
        ("DeepSpeedEngine", "module"),
        ("OptimizedModule", "_orig_mod"),
        ("_FabricModule", "_forward_module"),
    ],
)
def test_wrappers_are_found_from_both_sides(name, attribute):
    model = Toy()
    assert wrappers(model) == [model]
    outer = around(name, attribute, model)
    assert wrappers(outer) == [outer, model]
    assert wrappers(model) == [outer, model]


def test_wrappers_around_wrappers():
    model = Toy()
    replica = around("DistributedDataParallel", "module", model)
    fabric = around("_FabricModule", "_forward_module", replica)
    assert wrappers(model) == wrappers(replica) == [fabric, replica, model]


def test_a_module_of_another_class_is_no_wrapper():
    model = Toy()
    holder = around("Lightning", "module", model)
    assert wrappers(model) == [model]
    assert wrappers(holder) == [holder]


def test_optimizers_inside_those_of_trainers():
    inner = torch.optim.SGD(Toy().parameters(), lr=0.1)
    outer = type("AcceleratedOptimizer", (), {"optimizer": inner})()
    assert inner_optimizer(outer) is inner_optimizer(inner) is inner
    assert inner_optimizer(None) is None


def test_children_come_before_parents():
    names = [name for name, _ in named_modules(Toy())]
    assert names == ["embed", "layers.0", "layers.1", "layers", "head", ""]


def test_precision_is_what_most_parameters_have():
    model = nn.Sequential(nn.Linear(4, 4).bfloat16(), nn.Linear(2, 2))
    assert precision_of(model) == Precision("bfloat16", "bfloat16", None, "bfloat16")


def test_held_bytes_count_every_storage_once():
    model = Toy()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    assert held_bytes(model, optimizer) == {
        "parameters": 320,
        "gradients": 0,
        "optimizer_state": 0,
        "buffers": 12,
        "collective_buffers": 0,
    }
    train_step(model, optimizer)
    # Two moments of Ψ_train floats, and one step counter for each of the four trained tensors.
    assert held_bytes(model, optimizer)["optimizer_state"] == 2 * 76 * 4 + 4 * 4
    model(torch.zeros(1, 1, dtype=torch.long)).sum().backward()
    assert held_bytes(model, optimizer)["gradients"] == 76 * 4


def test_held_bytes_take_what_the_framework_adds():
    model, master = Toy(), torch.zeros(100)
    # Views of one storage are one storage; what is a parameter already is no gradient; meta tensors hold nothing.
    added = {
        "optimizer_state": [master[:10], master[10:]],
        "gradients": [model.embed.weight.data],
        "buffers": [torch.zeros(5, device="meta")],
        "other": [torch.zeros(2)],
        # What Python does not see is told in bytes.
        "collective_buffers": 100,
    }
    held = held_bytes(model, None, lambda: added)
    model_states = {"parameters": 320, "gradients": 0, "optimizer_state": 400, "buffers": 12}
    assert held == {**model_states, "other": 8, "collective_buffers": 100}


def test_gradient_order_is_backwards_through_the_model():
    model = Toy()
    order = GradOrder(list(model.named_parameters()))
    train_step(model, torch.optim.SGD(model.parameters(), lr=0.1))
    names = order.stop()
    assert names is not None
    assert sorted(names[:2]) == ["layers.1.bias", "layers.1.weight"]
    assert names[2:] == ["layers.0.weight", "embed.weight"]
    assert not any(p._post_accumulate_grad_hooks for p in model.parameters())
    assert GradOrder(list(model.named_parameters())).stop() is None


def test_forward_marks_name_layers_and_leave_no_hook():
    model = Toy()
    marks = ForwardMarks([("layers.0", model.layers[0]), ("", model)])
    marks.turn_on()
    marks.turn_on()
    with torch.profiler.profile() as profiler:
        model(torch.zeros(1, 1, dtype=torch.long))
    marks.turn_off()
    names = [event.name for event in profiler.events() if event.name.startswith("tracekit::")]
    assert sorted(names) == ["tracekit::forward", "tracekit::forward (layers.0)"]
    assert not model._forward_hooks
    assert not model._forward_pre_hooks
    assert not model.layers[0]._forward_hooks


def test_forward_marks_close_after_an_error_inside():
    model = nn.Sequential(nn.Linear(2, 2))
    marks = ForwardMarks([("0", model[0]), ("", model)])
    marks.turn_on()
    with torch.profiler.profile() as profiler:
        for size in (3, 2):
            try:
                model(torch.zeros(1, size))
            except RuntimeError:
                assert size == 3
    marks.turn_off()
    roots = [event for event in profiler.events() if event.name == "tracekit::forward"]
    assert len(roots) == 2
    assert roots[0].time_range.end <= roots[1].time_range.start


def placement(kind, **attributes):
    return type(kind, (), attributes)()


def test_placements_by_axis():
    mesh = SimpleNamespace(mesh_dim_names=("dp_replicate", "dp_shard", "tp"), ndim=3)
    spread = SimpleNamespace(
        device_mesh=mesh,
        placements=(
            placement("Replicate"),
            placement("_StridedShard", dim=0, split_factor=4),
            placement("Shard", dim=1),
        ),
        to_local=lambda: torch.zeros(3, 5),
    )
    assert describe.placements(spread, {}) == {
        "placements": {"dp_replicate": "Replicate", "dp_shard": "StridedShard(0, 4)", "tp": "Shard(1)"},
        "local_shape": [3, 5],
    }
    assert describe.placements(torch.zeros(2), {}) == {}


def test_real_placements_of_a_mesh_of_one(one_rank):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("dp_shard", "tp"))
    model = nn.Linear(4, 6, bias=False)
    model.weight = nn.Parameter(distribute_tensor(model.weight, mesh, [Shard(0), Shard(1)]))
    (entry,) = describe.parameters(model, units_of(model))
    assert entry["placements"] == {"dp_shard": "Shard(0)", "tp": "Shard(1)"}
    assert (entry["shape"], entry["local_shape"]) == ([6, 4], [6, 4])


def test_fsdp1_units_shapes_and_padding(one_rank):
    from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy

    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 3))
    options = {"device_id": torch.device("cpu"), "use_orig_params": True}
    options["mixed_precision"] = MixedPrecision(param_dtype=torch.bfloat16)
    with warnings.catch_warnings():
        # One rank shards nothing, and torch says so.
        warnings.simplefilter("ignore")
        model[0] = FullyShardedDataParallel(model[0], **options)
        model = FullyShardedDataParallel(model, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP, **options)
    units = units_of(model)
    assert [names for _, names in units] == [["0"], [""]]
    entries = describe.parameters(model, units)
    assert [(e["name"], e["shape"], e["layer"]) for e in entries] == [
        ("0.weight", [2, 3], "0"),
        ("0.bias", [2], "0"),
        ("1.weight", [3, 2], ""),
        ("1.bias", [3], ""),
    ]
    # Weights of 6 floats are followed by 2 of padding, so that the next starts at 16 bytes.
    flats = [unit["flat"] for unit in describe.unit_entries(model, frameworks.look(model, None, 1))]
    assert flats[0] == {"numel": 10, "shard_numel": 10, "padding_numel": 2, "align_padding_numel": 2}
    assert flats[1] == {"numel": 11, "shard_numel": 11, "padding_numel": 2, "align_padding_numel": 2}
    assert frameworks.look(model, None, 1).mesh == [("dp_shard", 1)]
    assert precision_of(model) == Precision("bfloat16", "bfloat16", None, "float32")


@pytest.mark.parametrize(
    ("strategy", "setting"),
    [("FULL_SHARD", None), ("HYBRID_SHARD", None), ("SHARD_GRAD_OP", False), ("_HYBRID_SHARD_ZERO2", False)],
)
def test_fsdp1_reshard_settings(strategy, setting):
    wrapped = SimpleNamespace(sharding_strategy=SimpleNamespace(name=strategy))
    assert fsdp1.reshard_setting(wrapped) is setting


def test_buffers():
    assert describe.buffers(Toy()) == [{"name": "scale", "shape": [3], "dtype": "float32", "numel": 3}]
    assert describe.buffers(nn.Identity()) == []


def test_parametrized_weights_are_no_blocks():
    from torch.nn.utils import parametrize

    model = Toy()
    parametrize.register_parametrization(model.layers[0], "weight", nn.Identity())
    assert [unit for (unit, _), _ in units_of(model)] == ["layers.0", "layers.1", ""]
    names = [e["name"] for e in describe.parameters(model, units_of(model))]
    assert "layers.0.weight" in names


@pytest.mark.slow
def test_a_compiled_module_is_known():
    module = nn.Linear(2, 2)
    assert not describe.is_compiled(module)
    module.compile(backend="eager")
    assert describe.is_compiled(module)
