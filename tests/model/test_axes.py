from __future__ import annotations

import polars as pl
import pytest
from fakes import SMALL, manifest_of

from tracekit.manifest import Axis
from tracekit.model.collectives.axes import with_axes

EVENTS = pl.Schema({"rank": pl.Int32, "cycle": pl.Int32, "ph": pl.String, "cat": pl.String, "name": pl.String}) | {
    "ts_ns": pl.Int64,
    "dur_ns": pl.Int64,
}
ROWS = {
    "rank": pl.Int32,
    "cycle": pl.Int32,
    "step": pl.Int64,
    "kind": pl.String,
    "phase": pl.String,
    "in_numel": pl.Int64,
    "out_numel": pl.Int64,
    "group_size": pl.Int32,
    "group_desc": pl.String,
    "at_ns": pl.Int64,
}
HSDP = [Axis("dp_replicate", 3), Axis("dp_shard", 2)]
TP = [Axis("dp_shard", 2), Axis("tp", 2)]


def marks(*spans) -> pl.DataFrame:
    """FSDP2's annotations: name, start, length."""
    rows = [(0, 0, "X", "user_annotation", name, start, length) for name, start, length in spans]
    return pl.DataFrame(rows, schema=EVENTS, orient="row")


def axes(calls, mesh, events=None) -> list[tuple[str | None, int | None, str | None]]:
    base = {"rank": 0, "cycle": 0, "step": 5, "phase": "backward", "group_size": None, "group_desc": None}
    frame = pl.DataFrame([{**base, **call} for call in calls], schema=ROWS)
    manifest = manifest_of("hsdp", SMALL, mesh=mesh) if mesh is not None else None
    found = with_axes(frame, manifest, marks() if events is None else events)
    return found.select("axis", "group_size", "axis_from").rows()


def call(kind, at, ins=8, outs=8, **more):
    return {"kind": kind, "at_ns": at, "in_numel": ins, "out_numel": outs, **more}


def test_inside_fsdp_all_reduces_are_the_replicas_and_the_rest_the_shards():
    events = marks(("FSDP::all_gather (a)", 0, 10), ("FSDP::post_backward_reduce (a)", 20, 10))
    calls = [call("all_gather", 5, 4, 8), call("reduce_scatter", 21, 8, 4), call("all_reduce", 25, 4, 4)]
    assert axes(calls, HSDP, events) == [
        ("dp_shard", 2, "annotation"),
        ("dp_shard", 2, "annotation"),
        ("dp_replicate", 3, "annotation"),
    ]


def test_outside_of_fsdp_activations_are_tp():
    events = marks(
        ("FSDP::pre_forward (a)", 0, 10), ("FSDP::all_gather (a)", 2, 3), ("FSDP::all_gather_copy_out (a)", 6, 3)
    )
    calls = [
        call("all_reduce", 5, phase="forward"),
        call("all_gather", 7, 4, 8, phase="forward"),
        call("all_reduce", 50),
    ]
    assert axes(calls, TP, events) == [("tp", 2, "order")] * 3


def test_norms_go_over_the_shards_first_and_over_tp_next():
    norms = [call("all_reduce", at, numel, numel, phase="optimizer") for at, numel in ((1, 7), (2, 14), (3, 14))]
    assert [axis for axis, *_ in axes(norms, TP)] == ["dp_shard", "dp_shard", "tp"]
    assert [axis for axis, *_ in axes(norms, HSDP)] == ["dp_shard"] * 3


@pytest.mark.parametrize(
    ("numels", "expected"),
    [
        ((5,), ["dp_shard"]),
        ((5, 5), ["dp_shard", "tp"]),
        # As many parameters whole as split, or norms of one element each: only the last of them is that over tp.
        ((5, 5, 5), ["dp_shard", "dp_shard", "tp"]),
        ((1, 1, 1, 4), ["dp_shard", "dp_shard", "tp", "dp_shard"]),
    ],
)
def test_norms_of_one_size(numels, expected):
    norms = [call("all_reduce", at, numel, numel, phase="optimizer") for at, numel in enumerate(numels)]
    assert [axis for axis, *_ in axes(norms, TP)] == expected


def groups(rank, calls, mesh, *, ranks) -> list[str | None]:
    base = {"rank": rank, "cycle": 0, "step": 5, "phase": "optimizer", "group_size": None, "group_desc": None}
    frame = pl.DataFrame([{**base, **call} for call in calls], schema=ROWS)
    return with_axes(frame, manifest_of("hsdp", SMALL, mesh=mesh, ranks=ranks), marks())["mesh_group"].to_list()


def test_groups_of_an_axis_are_named_by_their_first_rank_in_row_major_order():
    described = [call("all_reduce", at, group_desc=f"mesh_{axis}") for at, axis in enumerate(("dp_shard", "tp"))]
    found = {rank: groups(rank, described, TP, ranks=4) for rank in range(4)}
    # dp_shard has stride 2, tp has stride 1.
    assert found == {
        0: ["dp_shard:0", "tp:0"],
        1: ["dp_shard:1", "tp:0"],
        2: ["dp_shard:0", "tp:2"],
        3: ["dp_shard:1", "tp:2"],
    }


def test_a_group_smaller_than_its_axis_is_not_the_axis():
    assert groups(3, [call("all_gather", 1, 4, 8, group_size=2)], [Axis("dp_shard", 4)], ranks=4) == [None]


def test_a_guess_by_order_tells_no_group():
    assert groups(0, [call("all_reduce", 1)], TP, ranks=4) == [None]


def test_a_mesh_that_is_not_the_worlds_tells_no_group():
    described = [call("all_reduce", 1, group_desc="mesh_tp")]
    assert groups(0, described, TP, ranks=8) == [None]
    assert groups(5, described, TP, ranks=4) == [None]


def test_a_group_larger_than_the_axis_is_not_the_axis():
    events = marks(("FSDP::post_backward_reduce (a)", 0, 10))
    assert axes([call("all_reduce", 1, group_size=6)], HSDP, events) == [(None, 6, None)]
    assert axes([call("all_reduce", 1, phase="optimizer", group_size=4)], TP) == [(None, 4, None)]


def test_a_smaller_group_inside_fsdp_is_still_the_shard_axis():
    events = marks(("FSDP::all_gather (a)", 0, 10))
    assert axes([call("all_gather", 1, 4, 8)], [Axis("dp_shard", 4)], events) == [("dp_shard", 2, "annotation")]


@pytest.mark.parametrize(
    ("size", "expected"), [(None, ("dp_shard", 4, "size")), (4, ("dp_shard", 4, "size")), (2, (None, 2, None))]
)
def test_the_only_axis_is_meant_by_groups_of_its_size(size, expected):
    assert axes([call("all_reduce", 1, group_size=size)], [Axis("dp_shard", 4), Axis("tp", 1)]) == [expected]


def test_torch_names_the_group_of_an_axis():
    told = [call("all_reduce", 1, group_desc=f"mesh_{name}", group_size=2) for name in ("tp", "dp_shard", "cp")]
    assert axes(told, TP) == [("tp", 2, "group"), ("dp_shard", 2, "group"), ("tp", 2, "order")]


def test_without_a_manifest_only_sizes_are_known():
    assert axes([call("all_gather", 1, 4, 12), call("all_reduce", 2)], None) == [(None, 3, None), (None, None, None)]


def test_an_empty_run_has_no_axes():
    assert axes([], TP) == []


def test_another_rank_s_annotation_says_nothing():
    events = marks(("FSDP::all_gather (a)", 0, 10)).with_columns(pl.lit(1, pl.Int32).alias("rank"))
    assert axes([call("all_gather", 1, 4, 8)], HSDP, events) == [(None, 2, None)]
