"""What a block of memory was for, from small recordings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kineto import GLOO, mark, memory, span, step, write

import tracekit

# Forward from 10 to 100 µs, backward from 100 to 200, the optimizer from 200 to 240.
STEP = [
    step(1, 0, 300),
    mark("tracekit::forward", 10, 90),
    mark("tracekit::backward", 100, 100),
    mark("tracekit::optimizer", 200, 40),
]


def blocks(tmp_path: Path, events: list[dict[str, Any]]):
    return tracekit.open(write(tmp_path / "r.json", [*STEP, *events])).blocks


def came_and_went(came: float, went: float | None, size: int = 1024) -> list[dict[str, Any]]:
    events = [memory(came, size, 0xA, size)]
    return events if went is None else [*events, memory(went, -size, 0xA, 0)]


@pytest.mark.parametrize(
    ("came", "went", "inside", "category"),
    [
        (20, 150, [], "activations"),
        (20, 50, [], "temporaries"),
        (20, None, [], "unknown"),
        (120, 150, [], "temporaries"),
        (120, 220, [], "gradients"),
        (120, None, [], "gradients"),
        (210, 220, [], "temporaries"),
        (210, None, [], "optimizer state"),
        (20, 220, [], "temporaries"),
        (20, 150, [mark("FSDP::all_gather_copy_out (layers.0)", 15, 10)], "gathered parameters"),
        (20, 25, [mark("FSDP::all_gather (layers.0)", 15, 10)], "collective buffers"),
        (120, 150, [mark("FSDP::post_backward_reduce (layers.0)", 115, 50)], "gradient buffers"),
        # What it leaves is the shard of the gradient.
        (120, None, [mark("FSDP::post_backward_reduce (layers.0)", 115, 10)], "gradients"),
        # Freed where it is reduced: the whole gradient of the unit.
        (
            120,
            150,
            [span("aten::mm", 118, 5), mark("FSDP::post_backward_reduce (layers.0)", 145, 10)],
            "gradients",
        ),
        # A range that has ended tells nothing.
        (20, 150, [mark("FSDP::all_gather (layers.0)", 12, 5)], "activations"),
    ],
)
def test_the_category_is_told_by_range_or_by_the_phases_in_which_it_came_and_went(
    tmp_path, came, went, inside, category
):
    found = blocks(tmp_path, [*inside, *came_and_went(came, went)])
    assert found.select("bytes", "category").rows() == [(1024, category)]
    assert (found["category_from"][0] is None) == (category == "unknown")


def test_of_a_reduction_that_a_backend_copies_the_copy_is_a_gradient_buffer(tmp_path):
    call = span("c10d::_reduce_scatter_base_", 115, 50)
    found = blocks(tmp_path, [call, span("aten::clone", 118, 5), *came_and_went(120, 150)])
    assert found.select("category", "category_from", "operator").row(0) == (
        "gradient buffers",
        "collective call",
        "aten::clone",
    )


def test_a_free_that_was_not_recorded_was_before_the_next_block_at_its_place(tmp_path):
    events = [memory(20, 4096, 0x1000, 4096), memory(120, 512, 0x1800, 4608), memory(130, -512, 0x1800, 4096)]
    run = tracekit.open(write(tmp_path / "r.json", [*STEP, *events]))
    assert run.blocks.select("bytes", "end_ns", "end_from", "category").rows() == [
        (4096, 120_000, "its address was used again", "activations"),
        (512, 130_000, "recorded", "temporaries"),
    ]
    # The recording's own total still holds it; the curve does not.
    assert run.allocations["allocated_bytes"].to_list() == [4096, 4608, 4096]
    assert run.table("memory")["allocated_bytes"].to_list() == [4096, 4608, 512, 0]


def test_a_second_free_of_an_address_is_of_what_was_there_before(tmp_path):
    events = [memory(20, 64, 0xA, 64), memory(30, -64, 0xA, 0), memory(40, -64, 0xA, 0)]
    run = tracekit.open(write(tmp_path / "r.json", [*STEP, *events]))
    assert run.allocations["category"].to_list() == ["temporaries", "temporaries", "before the window"]
    assert run.blocks.height == 1


def test_ranks_and_devices_have_addresses_of_their_own(tmp_path):
    on_gpu = memory(25, -64, 0xA, 0)
    on_gpu["args"] |= {"Device Type": 1, "Device Id": 0}
    run = tracekit.open(write(tmp_path / "r.json", [*STEP, memory(20, 64, 0xA, 64), on_gpu]))
    assert run.blocks.select("device", "end_ns").rows() == [("cpu", None)]


def test_the_operator_is_the_innermost_that_does_more_than_make_room(tmp_path):
    around = [span("aten::linear", 15, 20), span("aten::addmm", 18, 10), span("aten::empty", 19, 5)]
    found = blocks(tmp_path, [*around, *came_and_went(20, 150), memory(40, 8, 0xB, 8)])
    assert found["operator"].to_list() == ["aten::addmm", None]


@pytest.mark.parametrize(
    ("call", "category"),
    [
        ("c10d::_reduce_scatter_base_", "gradient buffers"),
        ("_c10d_functional::all_reduce", "temporaries"),
        ("aten::flatten_dense_tensors", "gradient buffers"),
    ],
)
def test_what_the_backend_held_too_is_gone_when_its_call_or_phase_is_over(tmp_path, call, category):
    # No free is recorded, and nothing else comes to the address; backward has its last allocation at 190 µs.
    events = [
        span(call, 115, 50),
        span("aten::clone", 118, 5),
        memory(120, 1024, 0xA, 1024),
        memory(190, 8, 0x9000, 1032),
    ]
    run = tracekit.open(write(tmp_path / "r.json", [*STEP, *events, memory(210, 8, 0xA000, 1040)]))
    made = run.blocks.row(0, named=True)
    assert (made["end_ns"], made["end_from"], made["category"]) == (190_000, "its call was done", category)
    assert run.table("memory")["allocated_bytes"].to_list() == [1024, 1032, 8, 16]


def test_a_backends_copy_is_gone_when_the_backend_is_done(tmp_path):
    call = [span("c10d::_reduce_scatter_base_", 115, 10), span("gloo:all_reduce", 122, 30, tid=GLOO)]
    events = [*call, memory(120, 1024, 0xA, 1024), memory(190, 8, 0x9000, 1032)]
    run = tracekit.open(write(tmp_path / "r.json", [*STEP, *events]))
    assert run.blocks["end_ns"][0] == 152_000


def test_an_event_without_a_time_is_listed_and_changes_nothing(tmp_path):
    lost = memory(30, 4096, 0xB, 4160)
    lost["ts"] = "x"
    run = tracekit.open(write(tmp_path / "r.json", [*STEP, memory(20, 64, 0xA, 64), lost]))
    assert run.blocks["bytes"].to_list() == [64]
    assert run.table("memory")["allocated_bytes"].to_list() == [64]
