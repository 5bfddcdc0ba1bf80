from __future__ import annotations

from pathlib import Path
from typing import Any

from kineto import flow, mark, memory, span, step, write

import tracekit
from tracekit.model.attribution.layers import _innermost


def places(tmp_path: Path, events: list[dict[str, Any]]) -> dict[str, tuple[str | None, str]]:
    run = tracekit.open(write(tmp_path / "r.json", events))
    return {name: (layer, phase) for name, layer, phase in run.work.select("name", "layer", "phase").iter_rows()}


def test_the_innermost_open_span_decides() -> None:
    spans = [(0, 100, "root"), (10, 40, "a"), (15, 20, "a.x"), (50, 50, "empty"), (60, 70, "b")]
    assert _innermost(spans) == [
        (0, "root"),
        (10, "a"),
        (15, "a.x"),
        (20, "a"),
        (40, "root"),
        (60, "b"),
        (70, "root"),
        (100, None),
    ]


def test_spans_that_cross_close_in_the_right_order() -> None:
    assert _innermost([(0, 10, "a"), (5, 20, "b"), (12, 15, "c")]) == [
        (0, "a"),
        (5, "b"),
        (12, "c"),
        (15, "b"),
        (20, None),
    ]


def test_spans_that_start_together_nest_by_length() -> None:
    assert _innermost([(0, 10, "outer"), (0, 4, "inner")]) == [(0, "inner"), (4, "outer"), (10, None)]


def test_fsdp_annotations_name_layer_and_phase(tmp_path: Path) -> None:
    events = [
        step(1, 0, 1000),
        mark("FSDP::pre_forward", 10, 10),
        span("root op", 25, 5),
        mark("FSDP::pre_forward (layers.0)", 30, 10),
        mark("FSDP::all_gather (layers.0)", 32, 6),
        span("gather", 33, 2),
        span("forward op", 50, 5),
        mark("FSDP::post_forward (layers.0)", 60, 5),
        span("root op 2", 70, 5),
        mark("FSDP::post_forward", 80, 5),
        mark("FSDP::pre_backward", 100, 30),
        mark("FSDP::backward_prefetch for layers.0", 105, 20),
        mark("FSDP::all_gather (layers.0)", 106, 15),
        span("prefetch", 107, 2),
        mark("FSDP::pre_backward (layers.0)", 140, 5),
        span("backward op", 150, 5),
        mark("FSDP::post_backward_reduce (layers.0)", 160, 10),
        mark("FSDP::root_post_backward_callback", 180, 20),
        mark("FSDP::post_backward_reduce", 185, 10),
        span("root reduce", 187, 2),
        mark("Optimizer.step#AdamW.step", 300, 100),
        span("adam", 310, 20),
    ]
    assert places(tmp_path, events) == {
        "root op": ("", "forward"),
        "gather": ("layers.0", "forward"),
        "forward op": ("layers.0", "forward"),
        "root op 2": ("", "forward"),
        "prefetch": ("layers.0", "backward"),
        "backward op": ("layers.0", "backward"),
        "root reduce": ("", "backward"),
        "adam": (None, "optimizer"),
    }


def test_recorder_ranges_and_sequence_numbers_give_layers_without_fsdp(tmp_path: Path) -> None:
    evaluate = "autograd::engine::evaluate_function: MmBackward0"
    events = [
        step(1, 0, 1000),
        mark("tracekit::forward", 5, 95),
        mark("tracekit::forward (layers.0)", 10, 30),
        span("aten::t", 12, 3, Sequence_number=4),
        span("aten::mm", 16, 10, Sequence_number=4),
        mark("tracekit::forward (layers.1)", 50, 30),
        span("aten::mul", 55, 10, Sequence_number=5),
        mark("tracekit::backward", 100, 100),
        span(evaluate, 110, 30, Sequence_number=5),
        span("mul backward", 112, 5),
        span(evaluate, 150, 30, Sequence_number=4),
        span("mm backward", 152, 5),
        span("epilogue", 190, 5),
        mark("tracekit::optimizer", 200, 50),
        span("adam", 210, 5),
    ]
    assert places(tmp_path, events) == {
        "aten::t": ("layers.0", "forward"),
        "aten::mm": ("layers.0", "forward"),
        "aten::mul": ("layers.1", "forward"),
        "mul backward": ("layers.1", "backward"),
        "mm backward": ("layers.0", "backward"),
        "epilogue": (None, "backward"),
        "adam": (None, "optimizer"),
    }


def test_ddp_sends_buffers_in_its_forward_with_the_recorders_phases_and_without(tmp_path: Path) -> None:
    plain = [
        step(1, 0, 1000),
        span("before", 5, 2),
        mark("DistributedDataParallel.forward", 10, 50),
        span("sent", 12, 2),
    ]
    inside = [span("own", 25, 5), span("between", 70, 5)]
    ours = [mark("tracekit::forward", 20, 30), mark("tracekit::backward", 100, 100)]
    expected = {"before": (None, "other"), "sent": (None, "forward"), "between": (None, "other")}
    assert places(tmp_path, [*plain, *inside, *ours]) == expected | {"own": ("", "forward")}
    assert places(tmp_path, [*plain, *inside]) == expected | {"own": (None, "forward")}


def test_phases_of_any_trace_come_from_autograd_and_the_optimizer(tmp_path: Path) -> None:
    evaluate = "autograd::engine::evaluate_function: AddBackward0"
    events = [
        step(1, 0, 500),
        span("load", 5, 2),
        flow("s", 1, 20),
        span("f", 20, 5),
        span(evaluate, 50, 10),
        span("b", 52, 2),
        flow("s", 2, 100),
        span("f2", 100, 5),
        span(evaluate, 150, 10),
        span("b2", 152, 2),
        span("clip", 200, 5),
        mark("Optimizer.step#SGD.step", 300, 50),
        span("sgd", 310, 5),
        span("gather", 400, 5),
    ]
    phases = {name: phase for name, (_, phase) in places(tmp_path, events).items()}
    assert phases == {
        "load": "forward",
        "f": "forward",
        "b": "backward",
        "f2": "forward",
        "b2": "backward",
        "clip": "other",
        "sgd": "optimizer",
        "gather": "optimizer",
    }


def test_modules_that_repeat_are_layers_where_nothing_else_tells(tmp_path: Path) -> None:
    def module(name: str, ts: float, dur: float) -> dict[str, Any]:
        return span(f"nn.Module: {name}", ts, dur, cat="python_function")

    events = [
        step(1, 0, 500),
        module("Decoder_0", 5, 190),
        span("embed", 8, 2),
        module("Block_0", 10, 80),
        module("Linear_0", 20, 20),
        span("first", 25, 5),
        module("Block_1", 100, 80),
        module("Linear_1", 120, 20),
        span("second", 125, 5),
        span("between", 185, 5),
    ]
    run = tracekit.open(write(tmp_path / "r.json", events))
    assert run.work.select("name", "layer", "layer_from").rows() == [
        ("embed", None, None),
        ("first", "Block_0", "nn.Module"),
        ("second", "Block_1", "nn.Module"),
        ("between", None, None),
    ]
    told = tracekit.open(write(tmp_path / "s.json", [*events, mark("tracekit::forward (layers.7)", 2, 300)]))
    assert set(told.work.select("layer", "layer_from").rows()) == {("layers.7", "recorder")}


def test_memory_is_sorted_and_judged_by_where_it_was_allocated(tmp_path: Path) -> None:
    events = [
        step(1, 0, 500),
        mark("FSDP::pre_forward (layers.0)", 10, 20),
        mark("FSDP::all_gather (layers.0)", 12, 10),
        memory(40, 64, 0xA, 164),
        memory(15, 100, 0xB, 100),
        mark("FSDP::post_forward (layers.0)", 50, 5),
        memory(60, -100, 0xB, 64),
        memory(70, -7, 0xC, 57),
    ]
    table = tracekit.open(write(tmp_path / "r.json", events)).allocations
    assert table.select("delta_bytes", "allocated_bytes", "category", "layer").rows() == [
        (100, 100, "collective buffers", "layers.0"),
        (64, 164, "unknown", "layers.0"),
        (-100, 64, "collective buffers", None),
        (-7, 57, "before the window", None),
    ]
