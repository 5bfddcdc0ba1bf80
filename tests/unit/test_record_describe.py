from __future__ import annotations

import torch
from record_models import Toy, train_step
from torch import nn

from tracekit.record import describe
from tracekit.record.held import held_bytes
from tracekit.record.marks import ForwardMarks, GradOrder


def test_parameters_of_a_tied_and_frozen_model():
    model = Toy()
    entries = describe.parameters(model, describe.find_units(model))
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
    units = describe.find_units(model)
    assert units == [(("", None), [""])]
    assert describe.parameters(model, units) == []
    assert describe.psi([]) == 0
    assert describe.find_precision(model) == describe.Precision()
    assert held_bytes(model, None) == {"parameters": 0, "gradients": 0, "optimizer_state": 0, "buffers": 0}
    assert describe.device_of(model)[0] == "cpu"


def test_units_are_the_blocks_then_the_root():
    assert describe.find_units(Toy()) == [
        (("layers.0", None), ["layers.0"]),
        (("layers.1", None), ["layers.1"]),
        (("", None), [""]),
    ]


def test_the_innermost_unit_owns():
    units = [((name, None), name.split(", ")) for name in ("a.b", "a", "norm, head", "")]
    owners = [describe.owner(name, units) for name in ("a.b.w", "a.bc.w", "a.w", "norm.w", "head.w", "x.w")]
    assert owners == ["a.b", "a", "a", "norm, head", "norm, head", ""]


def test_wrapper_names_are_cleaned():
    assert describe.clean_name("_orig_mod.layers.0._checkpoint_wrapped_module.w") == "layers.0.w"
    assert describe.clean_name("_fsdp_wrapped_module") == ""


def test_replicating_wrappers_are_looked_through():
    model = Toy()
    engine = type("DeepSpeedEngine", (nn.Module,), {})()
    engine.module = model
    assert describe.without_replicas(engine) is model
    assert describe.without_replicas(model) is model


def test_children_come_before_parents():
    names = [name for name, _ in describe.named_modules(Toy())]
    assert names == ["embed", "layers.0", "layers.1", "layers", "head", ""]


def test_precision_is_what_most_parameters_have():
    model = nn.Sequential(nn.Linear(4, 4).bfloat16(), nn.Linear(2, 2))
    assert describe.find_precision(model) == describe.Precision("bfloat16", "bfloat16", None, "bfloat16")


def test_held_bytes_count_every_storage_once():
    model = Toy()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    assert held_bytes(model, optimizer) == {"parameters": 320, "gradients": 0, "optimizer_state": 0, "buffers": 12}
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
    }
    held = held_bytes(model, None, lambda: added)
    assert held == {"parameters": 320, "gradients": 0, "optimizer_state": 400, "buffers": 12, "other": 8}


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
