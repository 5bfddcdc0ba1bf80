from __future__ import annotations

import json

import polars as pl
import pytest
from fakes import SMALL, collective, manifest_of, parameter, run_of, step
from planned_runs import FSDP2, ZERO2, as_planned, run_as_planned

from tracekit.analyzers.expectation import expectation, read_plan
from tracekit.analyzers.ledger import ledger
from tracekit.errors import InputError, UsageError
from tracekit.plan import plan, terms
from tracekit.plan.schema import PLACES

COLUMNS = ["term", "numel", "payload_bytes"]


def rest(frame) -> list[tuple[int | None, ...]]:
    sizes = ["numel", "payload_bytes", "backend_numel"]
    return frame.filter(pl.col("term") == "unexplained").select(sizes).unique().rows()


def test_the_ledger_walks_from_theory_to_the_trace():
    assert ledger(run_as_planned(ZERO2)).select(COLUMNS).rows() == [
        ("theory", 48, 96),
        ("all-reduce in place of reduce-scatter", 24, 0),
        ("overflow check", 2, 1),
        ("gradient norm", 2, 4),
        ("measured", 76, 101),
        ("unexplained", 0, 0),
    ]


def test_what_no_term_explains_is_named():
    loss = collective("all_reduce", "stream 20", 0, 1, numel=1)
    rows = ledger(run_as_planned(FSDP2, loss)).select(COLUMNS).rows()
    assert rows[-2:] == [("measured", 66, 180), ("unexplained", 2, 4)]


def test_64_norms_after_backward_are_norms_and_no_gradients():
    # Case 70: a clipping that all-reduces one 4-byte norm a parameter.
    norms = [collective("all_reduce", "s", i, i + 1, numel=1, phase="optimizer", axis="dp_shard") for i in range(64)]
    frame = ledger(run_as_planned(FSDP2, *norms))
    assert ("the loop's own collectives", 128, 256) in frame.select(COLUMNS).rows()
    assert rest(frame) == [(0, 0, 0)]
    gradients = ledger(run_as_planned(FSDP2, *norms), by=["phase"]).filter(pl.col("phase") == "backward")
    assert rest(gradients) == [(0, 0, 0)]


def test_the_norms_of_the_plan_are_not_counted_twice():
    frame = ledger(run_as_planned(ZERO2))
    assert not frame["term"].str.contains("own collectives").any()


def test_a_large_all_reduce_is_never_a_norm():
    big = collective("all_reduce", "s", 0, 1, numel=2000, phase="optimizer", axis="dp_shard")
    assert rest(ledger(run_as_planned(FSDP2, big))) == [(4000, 8000, 4000)]


def test_nothing_is_compared_while_sizes_are_unknown_unless_asked():
    run = run_as_planned(FSDP2, collective("all_reduce", "stream 20", 0, 1))
    assert rest(ledger(run)) == [(None, None, None)]
    row = ledger(run).filter(pl.col("term") == "measured").row(0, named=True)
    assert (row["numel"], row["coverage"]) == (64, 8 / 9)
    assert rest(ledger(run, partial=True)) == [(0, 0, 0)]


def test_emulation_is_a_column_and_a_term_of_its_own():
    # Case 55: gloo all-reduces what was to be reduce-scattered: Ψ = 24 more, 4Ψ less the root's gather.
    run = run_as_planned(manifest_of("fsdp2", SMALL, backend="gloo"))
    emulated = pl.when(pl.col("kind") == "reduce_scatter").then(pl.lit("all_reduce")).otherwise("kind")
    run.collectives = run.collectives.with_columns(emulated.alias("backend_kind"))
    rows = dict(ledger(run).select("term", "backend_numel").iter_rows())
    assert rows == {
        "theory": 72,
        "root unit not gathered again": -8,
        "gradients reduced in another type": 0,
        "emulated by the backend": 24,
        "measured": 4 * 24 - 8,
        "unexplained": 0,
    }
    assert ledger(run).filter(pl.col("term") == "measured")["numel"].to_list() == [64]


@pytest.mark.parametrize("manifest", [FSDP2, ZERO2, manifest_of("hsdp", SMALL), manifest_of("zero1", SMALL)])
@pytest.mark.parametrize("by", [("layer",), ("kind", "axis"), PLACES])
def test_terms_add_up_in_every_group(manifest, by):
    frame = ledger(run_as_planned(manifest), by=by)
    assert rest(frame) == [(0, 0, 0)]
    walked = ~pl.col("term").is_in(["measured", "unexplained"])
    for size in ("numel", "payload_bytes"):
        whole = frame.filter(walked)[size].sum()
        assert whole == frame.filter(pl.col("term") == "measured")[size].sum() == terms(manifest)[size].sum()


def test_what_the_trace_lacks_is_missing_in_its_own_group():
    run = run_as_planned(FSDP2)
    run.collectives = run.collectives.filter(pl.col("layer") != "a")
    frame = ledger(run, by=["layer"]).filter(pl.col("term") == "unexplained")
    assert frame.select("layer", "numel").sort("layer").rows() == [("", 0), ("a", -24), ("b", 0)]


def test_steps_and_ranks_can_be_added_up():
    collectives = [*as_planned(FSDP2), *as_planned(FSDP2, rank=1), *as_planned(FSDP2, number=6)]
    run = run_of(FSDP2, steps=[step(5, 0, 1), step(5, 0, 1, rank=1), step(6, 1, 2)], collectives=collectives)
    frame = ledger(run, summed=True)
    assert frame.filter(pl.col("term") == "measured").select("rank", "step", "numel").rows() == [(None, None, 192)]
    assert rest(frame) == [(0, 0, 0)]


def test_a_foreign_trace_stops_at_what_is_measured():
    run = run_of(steps=[step(5, 0, 1)], collectives=[collective("all_reduce", "stream 20", 0, 1, numel=24)])
    assert ledger(run).select("term", "numel", "psi").rows() == [("measured", 48, None), ("unexplained", None, None)]
    assert expectation(run).missing == ["what the run should send: give --strategy and --params, or --plan"]


def test_a_foreign_trace_with_its_strategy_and_size_has_a_theory():
    run = run_of(steps=[step(5, 0, 1)], collectives=[collective("all_reduce", "stream 20", 0, 1, numel=24)])
    known = expectation(run, strategy="ddp", params=24)
    assert ledger(run, expected=known).select("term", "numel", "psi", "payload_bytes").rows() == [
        ("theory", 48, 2.0, None),
        ("measured", 48, 2.0, 96),
        ("unexplained", 0, 0.0, None),
    ]
    assert known.missing == ["the plan: give --params a file with parameter shapes, or --plan"]


def test_a_foreign_trace_with_a_plan_has_all(tmp_path):
    path = tmp_path / "plan.json"
    rows = plan(FSDP2).to_dicts()
    path.write_text(json.dumps({"format": 1, "rows": rows}))
    assert read_plan(path).equals(plan(FSDP2))
    foreign = run_as_planned(FSDP2)
    foreign.manifest = foreign.psi = None
    known = expectation(foreign, strategy="fsdp2", params=24, planned=path)
    assert ledger(foreign, expected=known).select(COLUMNS).rows() == [
        ("theory", 72, 0),
        ("planned beyond the theory", -8, 176),
        ("measured", 64, 176),
        ("unexplained", 0, 0),
    ]
    known = expectation(foreign, planned=path)
    assert rest(ledger(foreign, expected=known)) == [(0, 0, 0)]


@pytest.mark.parametrize("text", ["", "{}", '{"rows": [1]}', '{"rows": [{"kind": 3}]}', "\x00"])
def test_a_broken_plan_is_refused_in_one_sentence(tmp_path, text):
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"plan\.json: no plan .* write one with tracekit plan") as caught:
        read_plan(path)
    assert "\n" not in str(caught.value)


def test_unknown_names_are_refused():
    with pytest.raises(UsageError, match="grouped by 'lane': "):
        ledger(run_of(), by=["lane"])
    with pytest.raises(UsageError, match="--strategy moe is unknown"):
        expectation(run_of(), strategy="moe")


def test_incomplete_steps_have_no_ledger():
    run = run_of(FSDP2, steps=[step(5, 0, 1, complete=False, reason="cut")], collectives=as_planned(FSDP2)[:3])
    assert ledger(run).is_empty()


@pytest.mark.parametrize("manifest", [None, FSDP2])
@pytest.mark.parametrize("by", [(), PLACES])
@pytest.mark.parametrize("summed", [False, True])
def test_an_empty_run_gives_an_empty_ledger(manifest, by, summed):
    frame = ledger(run_of(manifest), by=by, summed=summed)
    assert frame.is_empty()
    assert frame.columns[: 2 + len(by)] == ["rank", "step", *by]


def test_wrong_plans_are_caught():
    run = run_as_planned(FSDP2)
    more = manifest_of("fsdp2", [*SMALL, parameter("c.w", 2, 2, layer="c")], units=("a", "b", "c", ""))
    narrow = manifest_of("fsdp2", SMALL, micro_batches=2)
    for wrong in (more, narrow):
        assert rest(ledger(run, expected=expectation(run, params=wrong))) != [(0, 0, 0)]


def beyond(*calls, manifest=FSDP2):
    """Elements × passes and bytes of the loop's own collectives, and what stays unexplained."""
    frame = ledger(run_as_planned(manifest, *calls))
    own = frame.filter(pl.col("term") == "the loop's own collectives").select("numel", "payload_bytes").rows()
    return own, rest(frame)[0][0]


def extra(kind, numel, *, phase="other", **more):
    return collective(kind, "s", 50, 51, numel=numel, phase=phase, axis="dp_shard", **more)


@pytest.mark.parametrize(
    ("calls", "own", "unexplained"),
    [
        # Metrics: five numbers, summed by each rank; a broadcast seed; gathered losses.
        ([extra("all_reduce", 5)], [(10, 20)], 0),
        ([extra("broadcast", 1)], [(1, 4)], 0),
        ([extra("all_gather", 2), extra("all_gather", 2)], [(4, 16)], 0),
        ([extra("all_reduce", 5), extra("broadcast", 3, phase="optimizer")], [(13, 32)], 0),
        # The norm of each of four gradients; an object's bytes, whatever their number; one number a parameter.
        ([extra("all_reduce", 4)], [(8, 16)], 0),
        ([extra("broadcast", 5000) | {"dtype": "uint8"}], [(5000, 20000)], 0),
        ([extra("all_reduce", 1)] * 64, [(128, 256)], 0),
        # Small is no proof that it is no gradient: a parameter of 8 elements, one of 4 twice, pieces of a unit, of all.
        ([extra("all_reduce", 8)], [], 16),
        ([extra("all_reduce", 4)] * 2, [], 16),
        ([extra("all_reduce", 3), extra("all_reduce", 5)], [], 16),
        ([extra("all_reduce", 10), extra("all_reduce", 10), extra("all_reduce", 4)], [], 48),
        ([extra("all_reduce", 600)] * 2, [], 2400),
        # A parameter broadcast is no seed, and a call whose place is unknown is not known to be outside.
        ([extra("broadcast", 8)], [], 8),
        ([extra("all_reduce", 5, phase=None)], [], 10),
        # In backward, of a kind that no loop issues, or larger than metrics are.
        ([extra("all_reduce", 5, phase="backward")], [], 10),
        ([extra("reduce_scatter", 6)], [], 6),
        ([extra("all_reduce", 1025)], [], 2050),
    ],
)
def test_what_the_loop_issues_by_itself_is_a_term_and_nothing_else(calls, own, unexplained):
    assert beyond(*calls) == (own, unexplained)


def test_of_calls_that_the_plan_has_only_those_beyond_it_are_the_loops():
    # ZeRO-2's plan has a norm of one element in float32 itself.
    planned = run_as_planned(ZERO2).collectives.filter(pl.col("phase") == "optimizer", pl.col("payload_numel") == 1)
    assert planned.height > 0
    assert beyond(extra("all_reduce", 1, dtype="float32"), manifest=ZERO2) == ([(2, 4)], 0)


def test_a_norm_that_the_trace_lacks_is_not_made_up_for_by_another_call():
    run = run_as_planned(ZERO2, extra("broadcast", 1))
    run.collectives = run.collectives.filter(~((pl.col("payload_numel") == 1) & (pl.col("phase") == "optimizer")))
    frame = ledger(run)
    assert frame.filter(pl.col("term") == "the loop's own collectives")["numel"].to_list() == [1]
    assert rest(frame)[0][0] == -4


@pytest.mark.parametrize("by", [("phase",), ("axis",), ("dtype",), PLACES])
def test_the_loops_own_are_the_same_calls_in_every_group(by):
    calls = [extra("all_reduce", 1, phase="other"), extra("all_reduce", 5), extra("broadcast", 3)]
    for manifest in (FSDP2, ZERO2):
        frame = ledger(run_as_planned(manifest, *calls), by=by)
        assert frame.filter(pl.col("term") == "the loop's own collectives")["numel"].sum() == 15
        assert frame.filter(pl.col("term") == "unexplained")["numel"].sum() == 0
