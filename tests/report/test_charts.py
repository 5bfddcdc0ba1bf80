from __future__ import annotations

from copy import copy

import polars as pl
import pytest
from fake_runs import US, empty_run, fake_run
from fakes import SMALL, collective, manifest_of, parameter, run_of
from planned_runs import run_as_planned

from tracekit.analyzers.stages.pipeline import PIPELINE_SCHEMA
from tracekit.errors import UsageError
from tracekit.layer_names import NO_LAYER, ROOT
from tracekit.report.drawing import (
    chart_rows,
    chart_specs,
    memory_rows,
    style,
    thinning,
    timeline,
    vega_lite,
    waterfall,
)
from tracekit.report.drawing.charts import CHARTS, chart

pytestmark = pytest.mark.slow


def spec(name, run):
    """The chart as the page gets it."""
    return CHARTS[name].draw(CHARTS[name].rows(run))


def written_by_altair(spec):
    """The same chart as altair validates and writes it, with its data in place and without altair's own look."""
    import altair as alt

    with alt.data_transformers.enable("default", consolidate_datasets=False), alt.theme.enable("none"):
        return alt.Chart.from_dict(spec).to_dict()


def matched(run):
    """The run with every collective met on all ranks, none of which came late."""
    one, kinds = copy(run), run.collectives.schema
    one.collectives = run.collectives.with_columns(
        transfer_ns="dur_ns",
        wait_ns=pl.lit(0, pl.Int64),
        match=pl.struct("step", "kind", "layer").rank("dense").cast(kinds["match"]),
        num_matched=pl.lit(2, kinds["num_matched"]),
    )
    return one


def piped(run):
    """The run with rows of a pipeline: two stages of which the second waits."""
    one = copy(run)
    one._tables = {}
    row = {"device": "cpu", "step": 5, "micro_batch": 0, "phase": "forward", "transfer_ns": 10, "busy_ns": 50}
    stages = [row | {"rank": rank, "stage": rank, "wait_ns": 30 * rank, "bubble_ns": 40} for rank in (0, 1)]
    one._tables["pipeline", ()] = pl.DataFrame(stages, schema=PIPELINE_SCHEMA)
    one.steps = run.steps.with_columns(complete=pl.lit(value=False))
    return one


def parameters(spec):
    return {param["name"] for param in spec["params"]}


@pytest.mark.parametrize("name", CHARTS)
@pytest.mark.parametrize("run", [empty_run(), fake_run(num_steps=1), fake_run()], ids=["empty", "one step", "full"])
def test_every_chart_is_what_altair_would_write(name, run):
    if name == "waiting":
        run = matched(run)
    if name == "pipeline" and run.name != "empty":
        run = piped(run)
    drawn = CHARTS[name].rows(run)
    assert drawn.rows.is_empty() == (run.name == "empty")
    for rows in (drawn.rows, drawn.rows.head(1)):
        spec = CHARTS[name].draw(drawn._replace(rows=rows), CHARTS[name].top([drawn]))
        assert written_by_altair(spec) == spec


@pytest.mark.parametrize("run", [empty_run(), fake_run()], ids=["empty", "full"])
def test_the_comparison_is_what_altair_would_write(run):
    spec = chart_specs.comparison(chart_rows.comparison_rows([run, run]).rows)
    assert written_by_altair(spec) == spec


def test_specifications_are_of_the_version_that_altair_writes():
    import altair as alt

    assert alt.SCHEMA_URL == vega_lite.SCHEMA


def test_a_chart_of_a_run_is_altairs():
    import altair as alt

    bars = chart(fake_run(), "overlap")
    assert isinstance(bars, alt.Chart)
    assert bars.to_dict()["width"] == 640, "what is saved has no place whose width it could take"
    lanes = chart(fake_run(), "timeline")
    assert isinstance(lanes, alt.VConcatChart)
    assert {part["width"] for part in lanes.to_dict()["vconcat"]} == {640}


def test_a_chart_that_cannot_be_drawn_says_why():
    with pytest.raises(UsageError, match="there is no chart 'overlaps': there are volume, ledger, overlap"):
        chart(fake_run(), "overlaps")
    with pytest.raises(UsageError, match="'memory': The trace has no memory events"):
        chart(empty_run(), "memory")


def test_charts_share_their_selections():
    run = fake_run()
    for name in ("overlap", "timeline", "breakdown", "peak", "memory", "waiting"):
        assert {"pick_layer", "pick_rank"} <= parameters(spec(name, run))
    assert "zoom" in parameters(spec("timeline", run))


def test_the_same_run_draws_the_same_chart():
    for name in CHARTS:
        assert spec(name, fake_run()) == spec(name, fake_run())


def test_names_are_data_and_never_expressions():
    odd = "'] || alert(1) || ['</script>"
    run = fake_run(num_steps=1)
    run.work = run.work.with_columns(layer=pl.lit(odd), name=pl.lit(odd))
    run.collectives = run.collectives.with_columns(layer=pl.lit(odd))

    def without_data(node):
        if isinstance(node, dict):
            return {key: without_data(value) for key, value in node.items() if key != "data"}
        return [without_data(value) for value in node] if isinstance(node, list) else node

    for name in ("overlap", "timeline"):
        assert odd not in str(without_data(spec(name, run)))


def test_volume_is_a_mean_step_of_a_rank_in_psi():
    rows = chart_rows.volume_rows(fake_run(num_steps=2)).rows
    assert rows.select("source", "kind", "psi").rows() == [
        ("theory", "all_gather", 1.0),
        ("theory", "reduce_scatter", 1.0),
        ("plan", "all_gather", 1.0),
        ("plan", "reduce_scatter", 1.0),
        ("measured", "all_gather", 1.0),
        ("measured", "reduce_scatter", 1.0),
    ]
    assert rows["label"].unique().to_list() == ["2.00Ψ"]


def test_what_a_backend_really_ran_has_a_bar_of_its_own():
    run = fake_run()
    run.collectives = run.collectives.with_columns(
        backend_kind=pl.when(pl.col("kind") == "reduce_scatter").then(pl.lit("all_reduce")).otherwise("backend_kind")
    )
    ran = chart_rows.volume_rows(run).rows.filter(pl.col("source") == "backend ran")
    assert ran.select("kind", "psi").rows() == [("all_gather", 1.0), ("all_reduce", 2.0)]


WALK = ["term", "way", "numel", "label"]


def test_the_walk_goes_from_level_to_level():
    # Psi = 24, of which 8 in the root: 72 - 8 elements, and 12 * 2 that no plan knows.
    extra = collective("all_reduce", "stream 20", 0, 1, numel=12, phase="backward")
    rows = waterfall.rows(run_as_planned(manifest_of("fsdp2", SMALL), extra)).rows
    assert rows.select(WALK).rows() == [
        ("theory", "total", 72, "3.00Ψ"),
        ("root unit not gathered again", "less than the theory", -8, "−0.33Ψ"),
        ("measured", "total", 88, "3.67Ψ"),
        ("unexplained", "unexplained", 24, "+1.00Ψ"),
    ]
    levels = [(round(24 * low), round(24 * high)) for low, high in rows.select("from_psi", "to_psi").iter_rows()]
    assert levels == [(0, 72), (72, 64), (0, 88), (64, 88)]
    assert rows["row"][1] == f"root unit not gathered{waterfall.BREAK}again"


def test_a_walk_is_the_mean_of_steps_and_tells_small_terms_in_elements():
    norm = collective("all_reduce", "stream 20", 0, 1, numel=1, phase="optimizer")
    run = run_as_planned(manifest_of("zero2-fsdp2", [*SMALL[:3], parameter("last", 2, 1000)]), norm)
    later = run.steps.with_columns(pl.lit(6, pl.Int64).alias("step"))
    second = run.collectives.filter(pl.col("phase") != "optimizer").with_columns(pl.lit(6, pl.Int64).alias("step"))
    run.steps, run.collectives = pl.concat([run.steps, later]), pl.concat([run.collectives, second])
    # The norm's 1 * 2 elements in one of two steps.
    rows = waterfall.rows(run).rows
    assert rows.select(WALK).rows() == [
        ("theory", "total", 4040, "2.00Ψ"),
        ("the loop's own collectives", "more than the theory", 1, "+1 element"),
        ("measured", "total", 4041, "2.00Ψ"),
        ("unexplained", "unexplained", 0, "0"),
    ]


def test_a_walk_needs_a_theory_and_says_when_the_end_is_unknown():
    assert waterfall.rows(run_as_planned(manifest_of("unheard of", SMALL))).rows.is_empty()
    run = run_as_planned(manifest_of("zero2-fsdp2", SMALL), collective("broadcast", "stream 20", 0, 1))
    drawn = waterfall.rows(run)
    assert drawn.rows["term"].to_list() == ["theory", "measured"]
    assert "What is unexplained cannot be told" in drawn.note


def test_the_amounts_of_a_walk_stand_where_there_is_room():
    rows = waterfall.rows(run_as_planned(manifest_of("fsdp2", SMALL))).rows
    texts = [layer for layer in waterfall.chart(rows)["layer"] if layer["mark"]["type"] == "text"]
    assert [(text["mark"]["align"], text["mark"]["color"]) for text in texts] == [
        ("right", "white"),
        ("right", style.INK),
    ]
    short = waterfall.chart(rows, top=30.0)
    texts = [layer for layer in short["layer"] if layer["mark"]["type"] == "text"]
    assert [text["mark"]["align"] for text in texts] == ["left"]


def test_overlap_splits_hidden_from_exposed():
    rows = chart_rows.overlap_rows(fake_run(num_ranks=1)).rows
    root = rows.filter(pl.col("row") == "(root) · forward").select("activity", "ms", "share").rows()
    assert root == [(style.EXPOSED, 0.04, 0.0), (style.HIDDEN, 0.0, 0.0)]
    other = rows.filter(pl.col("row") == "layers.3 · backward").select("activity", "ms", "share").rows()
    assert other == [(style.EXPOSED, 0.0, 1.0), (style.HIDDEN, 0.04, 1.0)]


def test_breakdown_parts_add_up_to_the_step():
    rows = chart_rows.breakdown_rows(fake_run(num_ranks=1, num_steps=1)).rows
    assert rows.select("activity", "ms").rows() == [(style.COMPUTE, 0.6), (style.EXPOSED, 0.08), (style.IDLE, 0.32)]


def test_many_steps_are_cut_and_it_is_said():
    drawn = chart_rows.breakdown_rows(fake_run(num_ranks=2, num_steps=30))
    assert drawn.rows["row"].n_unique() == chart_rows.MAX_BARS
    assert "The first 48 of 60 steps" in drawn.note


def test_the_timeline_is_the_median_step_from_its_first_slice():
    drawn = timeline.rows(fake_run(num_ranks=1))
    assert drawn.note == "Step 1, rank 0."
    assert drawn.rows["row"].unique(maintain_order=True).to_list() == [
        "rank 0 · phase",
        "0 compute",
        "0 communication",
        "0 exposed",
    ]
    first = drawn.rows.filter(pl.col("row") == "0 communication").row(0, named=True)
    assert (first["start_ms"], first["end_ms"], first["name"]) == (0.0, 0.04, "all_gather (root)")
    # Compute of six layers without gaps: a piece a layer and phase.
    assert drawn.rows.filter(pl.col("row") == "0 compute").height == 12


def test_more_ranks_than_lanes_are_said():
    assert timeline.rows(fake_run(num_ranks=6, num_steps=1)).note == "Step 0, ranks 0, 1, 2 and 3 of 6."


def test_a_long_step_is_thinned_and_it_is_said():
    run = fake_run(num_ranks=1, num_steps=1)
    short = pl.DataFrame({"start_ns": [10**18 + 2 * i * 10 for i in range(12_000)]})
    row = run.work.head(1).drop("start_ns", "index", "dur_ns")
    many = short.join(row, how="cross").with_columns(dur_ns=pl.lit(10, pl.Int64), index=pl.lit(1, pl.Int64))
    run.work = many.select(run.work.columns)
    drawn = timeline.rows(run)
    assert drawn.rows.height <= thinning.MAX_ROWS
    assert "12,001 pieces of work are drawn as" in drawn.note
    written_by_altair(timeline.chart(drawn.rows))


def slice_frame(*spans):
    return pl.DataFrame(
        [(lane, label, start, end) for lane, label, start, end in spans],
        schema=["lane", "label", "start_ns", "end_ns"],
        orient="row",
    )


def test_touching_neighbours_always_join_and_others_only_as_needed():
    frame = slice_frame(
        ("a", "x", 0, 10), ("a", "x", 10, 20), ("a", "x", 23, 30), ("a", "x", 40, 50), ("a", "y", 50, 60)
    )
    joined, gap = thinning.merge_slices(frame, ["lane"], ["label"], limit=4)
    assert joined.select("start_ns", "end_ns", "count").rows() == [(0, 20, 2), (23, 30, 1), (40, 50, 1), (50, 60, 1)]
    assert gap == 0
    joined, gap = thinning.merge_slices(frame, ["lane"], ["label"], limit=3)
    assert joined.select("start_ns", "end_ns", "count").rows() == [(0, 30, 3), (40, 50, 1), (50, 60, 1)]
    assert gap == 3


def test_neighbours_of_another_label_part_what_is_alike():
    frame = slice_frame(("a", "x", 0, 10), ("a", "y", 10, 20), ("a", "x", 20, 30))
    joined, _ = thinning.merge_slices(frame, ["lane"], ["label"], limit=1)
    assert joined["count"].to_list() == [1, 1, 1]


def test_merging_nothing_and_one():
    for rows in (0, 1):
        joined, gap = thinning.merge_slices(slice_frame(("a", "x", 0, 10)).head(rows), ["lane"], ["label"])
        assert (joined.height, gap) == (rows, 0)


def test_a_thinned_curve_keeps_its_extremes_and_ends():
    values = [100] * 10_000
    values[1234], values[8765] = 999, 1
    frame = pl.DataFrame({"ts_ns": range(10_000), "bytes": values})
    thin = thinning.thin_curve(frame, "bytes", 400)
    assert thin.height <= 400
    assert thin.filter(pl.col("bytes") != 100).rows() == [(1234, 999), (8765, 1)]
    assert (thin["ts_ns"][0], thin["ts_ns"][-1]) == (0, 9_999)
    assert thinning.thin_curve(frame.head(1), "bytes", 400).height == 1


def test_layers_are_in_the_order_of_their_numbers():
    labels = ["layers.10", "layers.9", NO_LAYER, ROOT, "layers.2..layers.3", "layers.2"]
    assert list(thinning.layer_order(labels)) == [
        ROOT,
        "layers.2",
        "layers.2..layers.3",
        "layers.9",
        "layers.10",
        NO_LAYER,
    ]


def test_memory_keeps_the_peak_and_the_model_states():
    drawn = memory_rows.memory_rows(fake_run(num_ranks=1))
    # ZeRO-2 of 6,000 parameters on one rank: 16 bytes each.
    assert drawn.more == {"level_mib": 16 * 6_000 / 2**20}
    _, peaks, label, *level = spec("memory", fake_run(num_ranks=1))["layer"]
    (peak,) = peaks["data"]["values"]
    assert peak["mib"] == drawn.rows["mib"].max()
    assert label["data"]["values"] == [peak]
    assert level[0]["data"]["values"][0]["mib"] == 16 * 6_000 / 2**20


def test_times_are_exact_before_they_are_floats():
    frame = pl.DataFrame({"t": [10**18 + 123_456]})
    assert frame.select(thinning.ms("t", 10**18)).item() == 0.123456
    assert US == 1_000


def test_lanes_name_the_device_only_where_a_rank_has_several():
    run = fake_run(num_steps=1)
    own = pl.format("cuda:{}", "rank")
    run.work = run.work.with_columns(device=own)
    assert "0 compute" in timeline.rows(run).rows["row"]
    run.work = run.work.with_columns(
        device=pl.when(pl.col("class") == "comm").then(pl.lit("cuda:1")).otherwise(pl.lit("cuda:0"))
    )
    assert "0 compute cuda:0" in timeline.rows(run).rows["row"]


def test_a_curve_that_never_leaves_zero_has_no_peak_to_draw():
    run = run_of(allocations=[{"ts_ns": 1, "delta_bytes": 0, "category": "temporaries", "device": "cpu"}])
    assert memory_rows.category_rows(run).rows.is_empty()
