from __future__ import annotations

import polars as pl
import pytest
from fakes import SMALL, collective, manifest_of, run_of, step
from planned_runs import FSDP2, ZERO2, as_planned, run_as_planned

from tracekit.analyzers.volume import backend, totals, volume
from tracekit.errors import UsageError


def test_payload_passes_and_wire_of_each_kind():
    # Four ranks, 1,000 elements: payload 4,000 bytes each; on the wire 3,000, 3,000 and 6,000.
    rows = [
        collective(kind, "stream 20", 0, 1, numel=1000) | {"in_numel": ins, "out_numel": outs, "wire_bytes": wire}
        for kind, ins, outs, wire in (
            ("all_gather", 250, 1000, 3000),
            ("reduce_scatter", 1000, 250, 3000),
            ("all_reduce", 1000, 1000, 6000),
        )
    ]
    frame = volume(run_of(steps=[step(5, 0, 1)], collectives=rows))
    columns = ["kind", "numel", "passes_numel", "payload_bytes", "wire_bytes", "coverage"]
    assert frame.select(columns).rows() == [
        ("all_gather", 1000, 1000, 4000, 3000, 1.0),
        ("all_reduce", 1000, 2000, 4000, 6000, 1.0),
        ("reduce_scatter", 1000, 1000, 4000, 3000, 1.0),
    ]
    assert frame["psi"].to_list() == [None] * 3


@pytest.mark.parametrize("manifest", [FSDP2, ZERO2, manifest_of("zero2-fsdp2", SMALL)])
@pytest.mark.parametrize("by", [(), ("layer",), ("layer", "phase", "dtype")])
def test_a_run_as_planned_equals_the_plan_in_every_group(manifest, by):
    frame = volume(run_as_planned(manifest), by=by)
    assert frame["passes_numel"].to_list() == frame["plan_passes_numel"].to_list()
    assert frame["payload_bytes"].to_list() == frame["plan_payload_bytes"].to_list()
    assert frame["psi"].sum() * 24 == pytest.approx(frame["passes_numel"].sum())


def test_what_the_plan_expects_and_the_trace_lacks_is_a_row():
    run = run_as_planned(FSDP2)
    run.collectives = run.collectives.filter(pl.col("kind") == "all_gather")
    row = volume(run).row(1, named=True)
    assert (row["kind"], row["num_collectives"], row["numel"], row["coverage"]) == ("reduce_scatter", 0, 0, None)
    assert row["plan_passes_numel"] == 24


def test_what_the_plan_does_not_know_has_no_plan():
    row = volume(run_as_planned(FSDP2, collective("broadcast", "stream 20", 0, 1, numel=4, axis="dp_shard")))
    assert row.filter(pl.col("kind") == "broadcast").select("numel", "plan_passes_numel").row(0) == (4, None)


def test_incomplete_steps_have_no_plan():
    run = run_of(FSDP2, steps=[step(5, 0, 1, complete=False, reason="cut")], collectives=as_planned(FSDP2)[:3])
    assert volume(run)["plan_passes_numel"].to_list() == [None]


def test_coverage_says_how_much_of_a_total_is_known():
    rows = [collective("all_gather", "stream 20", 0, 1, numel=8), collective("all_gather", "stream 20", 2, 3)]
    frame = volume(run_of(collectives=rows))
    assert frame.select("num_collectives", "numel", "payload_bytes", "coverage").row(0) == (2, 8, 32, 0.5)
    unknown = volume(run_of(collectives=rows[1:]))
    assert unknown.select("num_collectives", "numel", "payload_bytes", "coverage").row(0) == (1, None, None, 0.0)


def test_a_complete_step_without_collectives_moved_nothing():
    run = run_as_planned(FSDP2)
    run.collectives = run.collectives.clear()
    row = totals(run).row(0, named=True)
    assert (row["measured_numel"], row["backend_numel"], row["num_collectives"], row["wire_bytes"]) == (0, 0, 0, 0)
    assert row["plan_numel"] > 0


def test_totals_put_theory_plan_measured_and_backend_side_by_side():
    run = run_as_planned(FSDP2)
    emulated = pl.when(pl.col("kind") == "reduce_scatter").then(pl.lit("all_reduce")).otherwise("kind")
    run.collectives = run.collectives.with_columns(emulated.alias("backend_kind"))
    row = totals(run).row(0, named=True)
    sides = [row[f"{side}_numel"] for side in ("theory", "plan", "measured", "backend")]
    assert sides == [72, 64, 64, 88]
    assert row["theory_psi"] == 3.0
    assert row["backend_psi"] == pytest.approx(88 / 24)


def test_the_backend_is_held_to_what_it_did():
    row = collective("reduce_scatter", "stream 20", 0, 1, numel=10, backend_kind="all_reduce")
    frame = backend(run_of(collectives=[row, collective("broadcast", "stream 20", 0, 1, numel=3, backend_kind=None)]))
    assert frame.select("kind", "backend_kind", "numel", "passes_numel").rows() == [
        ("broadcast", "broadcast", 3, 3),
        ("reduce_scatter", "all_reduce", 10, 20),
    ]


def test_steps_of_a_trace_without_marks_are_measured():
    run = run_of(steps=[step(None, 0, 1)], collectives=[collective("all_reduce", "s", 0, 1, numel=2, step=None)])
    assert volume(run).select("step", "numel").rows() == [(None, 2)]
    assert totals(run).select("step", "measured_numel", "backend_numel").rows() == [(None, 4, 4)]


@pytest.mark.parametrize("manifest", [None, FSDP2])
def test_an_empty_run_gives_empty_tables(manifest):
    run = run_of(manifest)
    for frame in (volume(run), volume(run, by=["layer"]), totals(run), backend(run)):
        assert frame.is_empty()
    assert volume(run, by=["layer"]).columns[:5] == ["rank", "step", "kind", "axis", "layer"]


def test_an_unknown_column_is_refused():
    with pytest.raises(UsageError, match="grouped by 'lane': "):
        volume(run_of(), by=["lane"])


@pytest.mark.parametrize("parts", [1, 10])
def test_buckets_of_the_last_gather_change_its_count_and_not_its_volume(parts):
    # DeepSpeed's parameter all-gather after the optimizer is of no layer, in one call or in ten.
    numel = 1000 // parts
    place = {"layer": None, "phase": "optimizer", "axis": "dp_shard"}
    calls = [collective("all_gather", "stream 20", i, i + 1, numel=numel) | place for i in range(parts)]
    row = volume(run_of(collectives=calls), by=["layer", "phase"]).row(0, named=True)
    assert (row["num_collectives"], row["numel"], row["payload_bytes"]) == (parts, 1000, 4000)
    assert (row["layer"], row["phase"]) == (None, "optimizer")


@pytest.mark.parametrize(
    ("gradients", "psi"), [(["all_reduce"], 3.0), (["reduce", "reduce"], 2.0), (["reduce_scatter"], 2.0)]
)
def test_the_three_shapes_of_stage_2_are_told_apart_by_kind(gradients, psi):
    # Ψ = 24: gradients all-reduced, reduced to each owner, or reduce-scattered; then one gather of the parameters.
    sends = [collective(kind, "s", i, i + 1, numel=24 // len(gradients)) for i, kind in enumerate(gradients)]
    gather = collective("all_gather", "s", 8, 9, numel=24)
    frame = volume(run_of(manifest_of("zero2", SMALL), collectives=[*sends, gather]))
    assert frame["psi"].sum() == psi
    assert set(frame["kind"]) == {"all_gather", *gradients}
