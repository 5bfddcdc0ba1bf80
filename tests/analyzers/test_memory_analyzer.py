from __future__ import annotations

import polars as pl
from fakes import SMALL, manifest_of, run_of, step

from tracekit.analyzers.memory.curve import MEMORY_SCHEMA, memory
from tracekit.analyzers.memory.growth import growth
from tracekit.analyzers.memory.ledger import NO_COPY, memory_ledger
from tracekit.analyzers.memory.model_states import MODEL_STATES_SCHEMA, model_states
from tracekit.analyzers.memory.peak import peak
from tracekit.manifest import Axis, Held, RankInfo
from tracekit.model.memory.blocks import BLOCKS_SCHEMA

MIB = 2**20


def event(ts, delta, category, *, total=None, reserved=None, device="cpu", **more) -> dict[str, object]:
    return {
        "ts_ns": ts,
        "delta_bytes": delta,
        "category": category,
        "allocated_bytes": total,
        "reserved_bytes": reserved,
        "device": device,
        **more,
    }


def with_held(held, *, device="cpu"):
    from msgspec.structs import replace

    return replace(manifest_of("fsdp2", SMALL), ranks=[RankInfo(rank=0, device=device, held_bytes=held)])


HELD = Held(parameters=100, gradients=0, optimizer_state=200, buffers=10)


def test_a_cpu_curve_starts_at_what_was_held():
    events = [event(1, 50, "activations", total=50, reserved=0), event(2, -50, "activations", total=0, reserved=0)]
    frame = memory(run_of(with_held(HELD), allocations=events))
    assert frame.select("ts_ns", "allocated_bytes", "reserved_bytes", "activations_bytes").rows() == [
        (1, 360, None, 50),
        (2, 310, None, 0),
    ]
    assert frame.select("parameters_bytes", "optimizer_state_bytes", "buffers_bytes").row(0) == (100, 200, 10)


def test_what_is_freed_later_was_there_before():
    events = [event(1, 50, "activations"), event(2, -30, "before the window")]
    frame = memory(run_of(with_held(HELD), allocations=events))
    assert frame.select("allocated_bytes", "before_the_window_bytes").rows() == [(390, 30), (360, 0)]


def test_gradients_held_at_the_start_are_the_ones_freed():
    held = Held(parameters=100, gradients=40, optimizer_state=200, buffers=10)
    frame = memory(run_of(with_held(held), allocations=[event(1, -30, "before the window")]))
    # 350 were held; the 30 that go are counted once, as gradients of before.
    assert frame.select("allocated_bytes", "gradients_bytes", "before_the_window_bytes").row(0) == (320, 10, 0)


def test_a_gpu_curve_follows_the_allocators_totals():
    # The first event says 8,845,120 after 2,104,320 more: 6,740,800 were there before, of which 310 are accounted for.
    events = [
        event(1, 2_104_320, "activations", total=8_845_120, reserved=10 * MIB, device="cuda:0"),
        event(2, -512, "before the window", total=8_844_608, reserved=10 * MIB, device="cuda:0"),
    ]
    frame = memory(run_of(with_held(HELD, device="cuda:0"), allocations=events))
    assert frame["allocated_bytes"].to_list() == [8_845_120, 8_844_608]
    assert frame["before_the_window_bytes"].to_list() == [6_740_490, 6_739_978]
    assert frame["reserved_bytes"].to_list() == [10 * MIB, 10 * MIB]


def test_gradients_that_a_gpu_held_and_frees_are_not_counted_twice():
    held = {**HELD, "gradients": 30} if isinstance(HELD, dict) else Held(100, 30, 200, 10)
    events = [
        event(1, 50, "activations", total=390, device="cuda:0"),
        event(2, -30, "before the window", total=360, device="cuda:0"),
    ]
    frame = memory(run_of(with_held(held, device="cuda:0"), allocations=events))
    assert frame["allocated_bytes"].to_list() == [390, 360]
    assert frame["before_the_window_bytes"].to_list() == [30, 0]
    assert frame["gradients_bytes"].to_list() == [0, 0]


def test_held_bytes_belong_to_the_device_that_was_measured():
    frame = memory(run_of(with_held(HELD, device="cuda:0"), allocations=[event(1, 5, "activations")]))
    assert frame.select("allocated_bytes", "parameters_bytes").row(0) == (5, 0)


def test_the_categories_always_add_up():
    events = [
        event(1, 7, "activations", total=1000, device="cuda:0"),
        event(2, 9, "gradient buffers", total=1020, device="cuda:0"),  # 11 bytes came unseen
        event(3, -7, "activations", total=1013, device="cuda:0"),
    ]
    frame = memory(run_of(allocations=events))
    parts = [name for name in frame.columns if name not in list(MEMORY_SCHEMA)[:5]]
    assert frame.select(pl.sum_horizontal(parts)).to_series().to_list() == frame["allocated_bytes"].to_list()


def test_devices_and_ranks_have_curves_of_their_own():
    events = [event(1, 5, "activations", rank=rank) for rank in (0, 1)]
    assert memory(run_of(allocations=events)).select("rank", "allocated_bytes").rows() == [(0, 5), (1, 5)]


def test_the_peak_is_taken_apart_at_the_highest_point():
    events = [
        event(1, 50, "activations"),
        event(2, 70, "gathered parameters"),
        event(3, -50, "activations"),
    ]
    frame = peak(run_of(with_held(HELD), allocations=events))
    assert frame.select("ts_ns", "category", "bytes").rows() == [
        (2, "optimizer state", 200),
        (2, "parameters", 100),
        (2, "gathered parameters", 70),
        (2, "activations", 50),
        (2, "buffers", 10),
    ]


def test_what_the_allocator_keeps_beyond_is_told_apart():
    events = [event(1, 60, "activations", total=100, reserved=300, device="cuda:0")]
    assert peak(run_of(allocations=events)).select("category", "bytes").rows() == [
        ("reserved beyond allocated", 200),
        ("activations", 60),
        ("before the window", 40),
    ]


def test_the_floor_is_the_lessons_beside_what_was_held():
    # Ψ = 24 on 2 ranks, stage 3: 16Ψ/N = 192.
    assert model_states(run_of(with_held(HELD))).drop("rank").rows() == [
        (3, 2, "parameters", 24, 100),
        (3, 2, "gradients", 24, 0),
        (3, 2, "optimizer_state", 144, 200),
        (3, 2, "buffers", None, 10),
        (3, 2, "total", 192, 310),
    ]


def test_stage_2_keeps_parameters_whole():
    rows = model_states(run_of(manifest_of("zero2", SMALL))).filter(pl.col("rank") == 1)
    assert rows["theory_bytes"].to_list() == [48, 24, 144, None, 216]


def test_parameters_that_are_held_elsewhere_make_no_category_negative():
    # Offloaded: 310 bytes held by the rank, of which the GPU has allocated 60.
    events = [event(1, 60, "activations", total=60, device="cuda:0")]
    frame = memory(run_of(with_held(HELD, device="cuda:0"), allocations=events))
    assert frame.select("parameters_bytes", "activations_bytes", "before_the_window_bytes").rows() == [(0, 60, 0)]


def test_tensor_parallelism_has_no_floor():
    mesh = [Axis("dp_shard", 2), Axis("tp", 2)]
    assert model_states(run_of(manifest_of("fsdp2-tp", SMALL, ranks=4, mesh=mesh))).is_empty()


def test_held_is_unknown_where_it_was_not_measured():
    assert model_states(run_of(with_held(None)))["held_bytes"].to_list() == [None] * 5


def test_empty_tables_have_their_schemas():
    run = run_of()
    assert memory(run).schema == MEMORY_SCHEMA
    assert list(peak(run).schema) == ["rank", "device", "category", "ts_ns", "step", "since_step_ns", "bytes"]
    assert model_states(run).schema == MODEL_STATES_SCHEMA
    assert model_states(run_of(manifest_of("unheard of", SMALL))).is_empty()


def test_the_peak_by_layer_and_operator_adds_up_to_the_same():
    events = [
        event(1, 50, "activations", layer="a", operator="aten::mm"),
        event(2, 30, "activations", layer="b", operator="aten::mm"),
        event(3, 7, "temporaries", layer="b"),
        event(4, -50, "activations"),
    ]
    run = run_of(with_held(HELD), allocations=events, steps=[step(5, 0, 1)])
    assert peak(run, by=["layer"]).select("step", "since_step_ns", "layer", "bytes").rows() == [
        (5, 3, None, 310),
        (5, 3, "a", 50),
        (5, 3, "b", 37),
    ]
    assert peak(run, by=["operator"]).select("operator", "bytes").rows() == [(None, 317), ("aten::mm", 80)]
    assert peak(run, by=["category", "layer"])["bytes"].sum() == 397


def test_growth_is_what_every_step_leaves_behind():
    def block(step_number, start, end, layer, size, **more):
        made = {"rank": 0, "cycle": 0, "device": "cpu", "category": "unknown", "operator": "aten::mm"}
        return {**made, "step": step_number, "start_ns": start, "end_ns": end, "layer": layer, "bytes": size, **more}

    run = run_of(steps=[step(number, number, number + 1) for number in range(4)])
    run.blocks = pl.DataFrame(
        [block(number, 1000 * number + 5, None, "layers.7", 100) for number in range(4)]
        # Gradients live until the next step; a first step's state is made once.
        + [block(number, 1000 * number + 5, 1000 * number + 1500, "layers.0", 10) for number in range(4)]
        + [block(0, 6, None, "layers.1", 1000)]
        + [block(n, 1000 * n + 5, None, "", 1, category="collective buffers") for n in range(4)],
        schema=BLOCKS_SCHEMA,
    )
    assert growth(run).drop("rank", "device").rows() == [("layers.7", "aten::mm", "unknown", 3, 3, 100)]
    run.steps = run.steps.head(2)
    assert growth(run).is_empty()


def test_the_ledger_walks_from_the_closed_form_to_the_peak():
    # Ψ = 24 on 2 ranks: fp32 shards of 48 bytes, two moments of 96, and 28 more that the plan knows nothing of.
    held = Held(parameters=48, gradients=0, optimizer_state=96 + 28, buffers=0)
    events = [event(1, 50, "activations"), event(2, 7, "unknown")]
    lines = memory_ledger(run_of(with_held(held), allocations=events))
    found = {
        (component, source): size for component, source, size in lines.select("component", "source", "bytes").rows()
    }
    assert found["parameters", "theory"] == found["parameters", "plan"] == 24
    assert found["gradients", "theory"] == -found["gradients", "step"] == 24
    assert found["optimizer state", "theory"] == 144
    assert lines.filter(term=NO_COPY)["bytes"].item() == -48
    assert found["activations", "step"] == 50
    assert found["unknown", "unexplained"] == 7
    assert found["total", "measured"] == 48 + 124 + 57
    assert lines["bytes"].sum() == 2 * found["total", "measured"]
    planned_state = lines.filter(component="optimizer state").filter(pl.col("source") != "unexplained")["bytes"].sum()
    assert found["optimizer state", "unexplained"] == 124 - planned_state


def test_without_a_closed_form_or_measured_state_there_is_no_ledger():
    events = [event(1, 50, "activations")]
    assert memory_ledger(run_of(allocations=events)).is_empty()
    assert memory_ledger(run_of(with_held(None), allocations=events)).is_empty()
    assert memory_ledger(run_of(with_held(HELD))).is_empty()
