from __future__ import annotations

import polars as pl
import pytest
from fakes import SMALL, collective, common_fixture, manifest_of, parameter, run_of, step, work
from msgspec.structs import replace
from planned_runs import as_planned, run_as_planned

from tracekit.manifest import Held, Precision, RankInfo, StepTimes
from tracekit.report.sentences import sentences


def sentence(run, start) -> str | None:
    return next((text for text in sentences(run) if text.startswith(start)), None)


def test_fsdp2_is_told_why_it_moves_less():
    # Ψ = 100, of which 8 in the root.
    model = (parameter("root", 2, 4), parameter("a.w", 2, 46, layer="a"))
    manifest = manifest_of("fsdp2", model, units=("a", ""))
    assert sentence(run_as_planned(manifest), "FSDP2") == (
        "FSDP2 moved 2.92Ψ a step, 0.08Ψ less than 3Ψ because the root unit is not gathered again; "
        "0 % of its time was hidden under compute."
    )


def test_deepspeed_is_told_what_it_does_instead():
    model = [parameter("w", 1000, 1)]
    manifest = manifest_of("zero2", model, units=("",), precision=Precision("bfloat16", None))
    run = run_as_planned(manifest, work=[work("compute", "stream 7", 0, 1)])
    assert sentence(run, "DeepSpeed's stage 2") == (
        "DeepSpeed's stage 2 moved 3.00Ψ a step, not 2Ψ: it all-reduces gradients (2Ψ) where the ZeRO paper "
        "reduce-scatters them (Ψ); 100 % of its time was hidden under compute."
    )


def test_what_the_closed_form_says_is_said_to_be_so():
    text = sentence(run_as_planned(manifest_of("zero2-fsdp2", SMALL)), "FSDP2 without resharding")
    assert text is not None
    assert "moved 2.00Ψ a step, as the closed form says; " in text


def test_several_reasons_are_named_largest_first():
    model = (parameter("root", 3, 2), parameter("a.w", 4, 2, layer="a"))
    text = sentence(run_as_planned(manifest_of("fsdp2", model, units=("a", ""))), "FSDP2")
    # Ψ = 14: root 6 not gathered again, 2 of padding in a gather and a reduction.
    assert text is not None
    assert (
        "2.86Ψ a step, 0.14Ψ less than 3Ψ because the root unit is not gathered again, although dim 0 is padded" in text
    )


def test_the_step_that_is_explained_worst_is_the_one_that_is_told():
    manifest = manifest_of("zero2-fsdp2", SMALL)
    calls = [*as_planned(manifest), *as_planned(manifest, number=6)]
    extra = collective("all_reduce", "stream 20", 0, 1, numel=12, step=6)
    run = run_of(manifest, steps=[step(5, 0, 100), step(6, 100, 200)], collectives=[*calls, extra])
    text = sentence(run, "FSDP2")
    assert text is not None
    assert "moved 2.00Ψ to 3.00Ψ a step, where its plan says 2.00Ψ: +1.00Ψ stay unexplained" in text


def test_nothing_is_compared_where_no_step_is_known_whole():
    unknown = collective("all_reduce", "stream 20", 0, 1)
    text = sentence(run_as_planned(manifest_of("zero2-fsdp2", SMALL), unknown), "FSDP2")
    assert text is not None
    assert "moved 2.00Ψ a step at least; how that stands to 2Ψ is unknown" in text


def test_the_unexplained_is_admitted():
    extra = collective("all_reduce", "stream 20", 0, 1, numel=12)
    text = sentence(run_as_planned(manifest_of("zero2-fsdp2", SMALL), extra), "FSDP2")
    assert text is not None
    assert "moved 3.00Ψ a step, where its plan says 2.00Ψ: +1.00Ψ stay unexplained" in text


def test_an_emulating_backend_is_told():
    run = run_as_planned(manifest_of("fsdp2", SMALL, backend="gloo"))
    emulated = pl.when(pl.col("kind") == "reduce_scatter").then(pl.lit("all_reduce")).otherwise("kind")
    run.collectives = run.collectives.with_columns(emulated.alias("backend_kind"))
    assert sentence(run, "gloo") == "gloo ran reduce_scatter as all_reduce, so 3.67Ψ a step really crossed."


def test_the_largest_exposed_part_is_named_with_its_place():
    run = common_fixture()
    run.collectives = run.collectives.with_columns(pl.lit("").alias("layer"), pl.lit("forward").alias("phase"))
    assert sentence(run, "Exposed") == (
        "Exposed communication took 50.0 µs of a step of 150.0 µs (33 %); "
        "the largest part, 50.0 µs, is all_gather of the root unit in forward."
    )


def test_memory_stands_beside_its_model_states():
    held = Held(parameters=1024, optimizer_state=2048)
    manifest = replace(manifest_of("fsdp2", SMALL), ranks=[RankInfo(rank=0, device="cpu", held_bytes=held)])
    events = [{"device": "cpu", "ts_ns": 1, "delta_bytes": 4096, "category": "activations"}]
    assert sentence(run_of(manifest, allocations=events), "Memory") == (
        "Memory peaked at 7.00 KiB on rank 0, the largest part activations (4.00 KiB), "
        "6.81 KiB above the 192 B of model states in the closed form."
    )


def test_81_decimal_gigabytes_are_told_in_binary_ones():
    events = [{"ts_ns": 1, "delta_bytes": 81_352_720_384, "category": "activations"}]
    assert sentence(run_of(allocations=events), "Memory") == (
        "Memory held at least 75.77 GiB at its peak on rank 0, the largest part activations (75.77 GiB); "
        "its model states are unknown."
    )


def test_a_foreign_trace_is_told_in_bytes_with_what_is_missing():
    run = run_of(
        steps=[step(5, 1000, 1200)],
        work=[work("compute", "stream 7", 1010, 1110), work("comm", "stream 20", 1060, 1160)],
        collectives=[
            collective("all_gather", "stream 20", 1060, 1160, numel=256),
            collective("broadcast", "stream 20", 1060, 1060),
        ],
    )
    moved = "Each rank moved, in one step: all_gather 1.00 KiB in 1 call, broadcast of unknown size in 1 call"
    exposed = "Exposed communication took 50.0 µs of a step of 150.0 µs (33 %)"
    assert sentences(run) == [
        f"{moved}; 50 % of its time was hidden under compute.",
        "Sizes are known for 1 of 2 collectives, so totals are lower bounds.",
        f"{exposed}; the largest part, 50.0 µs, is all_gather, layer and phase unknown.",
        "There is no manifest, so Ψ is unknown and nothing can be compared with 2Ψ or 3Ψ.",
        "The trace has no memory events, so its memory is unknown.",
        "Waits and skew of all 1 collectives are unknown: only one rank is here.",
    ]


def test_a_share_is_not_rounded_to_all_or_nothing():
    kernels = [work("compute", "stream 7", 0, 999), work("compute", "stream 7", 2000, 2001)]
    nearly = run_of(
        steps=[step(5, 0, 3000)], work=kernels, collectives=[collective("all_gather", "stream 20", 0, 1000)]
    )
    hardly = run_of(
        steps=[step(5, 0, 3000)], work=kernels, collectives=[collective("all_gather", "stream 20", 998, 1998)]
    )
    assert "; more than 99 % of its time was hidden" in sentences(nearly)[0]
    assert "; less than 1 % of its time was hidden" in sentences(hardly)[0]


def test_exposed_communication_of_two_steps_at_once_is_no_more_than_the_steps():
    calls = [collective("all_gather", lane, 100, 1000, step=n) for lane, n in (("stream 20", 5), ("stream 21", 6))]
    kernels = [work("compute", "stream 7", 0, 1), work("compute", "stream 7", 2, 3, step=6)]
    text = sentence(run_of(steps=[step(5, 0, 1), step(6, 1, 2)], work=kernels, collectives=calls), "Exposed")
    assert text is not None
    assert "(90 %)" in text


@pytest.mark.parametrize(
    ("layer", "phase", "place"),
    [
        ("layers.1", "backward", "all_gather of layers.1 in backward"),
        ("layers.3..layers.2", "backward", "all_gather of layers.3 to layers.2 in backward"),
        ("(root)..layers.3", "other", "all_gather of the root unit to layers.3"),
        (None, "optimizer", "all_gather in optimizer"),
    ],
)
def test_a_place_is_told_as_far_as_it_is_known(layer, phase, place):
    run = common_fixture()
    run.collectives = run.collectives.with_columns(
        pl.lit(layer, pl.String).alias("layer"), pl.lit(phase).alias("phase")
    )
    text = sentence(run, "Exposed")
    assert text is not None
    assert text.endswith(f"the largest part, 50.0 µs, is {place}.")


def test_unknown_sizes_are_said_to_be_unknown():
    run = run_of(steps=[step(5, 0, 1)], collectives=[collective("all_gather", "stream 20", 0, 1)])
    assert "The sizes of all 1 collectives are unknown: only their durations can be told." in sentences(run)


def test_the_price_of_recording_is_told_when_it_is_felt():
    manifest = manifest_of("fsdp2", SMALL)
    slow, quick = (replace(manifest, step_times=StepTimes(overhead_ratio=ratio)) for ratio in (1.16, 1.01))
    assert (
        sentence(run_of(slow), "Recording")
        == "Recording made steps 16 % longer, so read times as shares, not as speeds."
    )
    assert sentence(run_of(quick), "Recording") is None


def test_incomplete_steps_are_told_with_their_reasons_most_frequent_first():
    lost = [step(n, n, n + 1, complete=False, reason="no activity") for n in (6, 7)]
    run = run_of(steps=[step(5, 0, 1), *lost, step(8, 8, 9, complete=False, reason="ends early")])
    assert sentence(run, "3 of 4 recorded") == (
        "3 of 4 recorded steps are incomplete and stand outside comparisons: "
        "no activity (2 steps); ends early (1 step)."
    )
    cut = run_of(steps=[step(5, 0, 1), step(6, 1, 2, complete=False)])
    assert "1 of 2 recorded steps is incomplete and stands outside comparisons." in sentences(cut)


def test_without_a_complete_step_means_are_not_said_to_be_of_complete_ones():
    run = run_of(steps=[step(5, 0, 1, complete=False), step(6, 1, 2, complete=False)])
    assert "All 2 recorded steps are incomplete, so no mean is one of whole steps." in sentences(run)


def test_many_reasons_are_counted():
    steps = [step(n, n, n + 1, complete=False, reason=f"reason {n}") for n in range(5)]
    text = sentence(run_of(steps=[*steps, step(9, 9, 10)]), "5 of 6")
    assert text is not None
    assert text.endswith("reason 0 (1 step); reason 1 (1 step); reason 2 (1 step); 2 other reasons.")


def test_missing_marks_are_told():
    assert sentence(run_of(steps=[step(None, 0, 1)]), "The trace has no step marks")


def test_repairs_are_counted_with_ranks_and_cut_files_come_first():
    found = [
        {"rank": 2, "file": "b", "what": "invalid UTF-8 in text", "count": 2},
        {"rank": 1, "file": "a", "what": "invalid UTF-8 in text", "count": 1},
        {"rank": 1, "file": "a", "what": "ends early: the list of events is not closed", "count": 1},
        {"rank": None, "what": "step numbers differ between ranks", "count": 1},
    ]
    assert sentence(run_of(repairs=found), "Reading") == (
        "Reading took 4 repairs: rank 1, ends early: the list of events is not closed; "
        "ranks 1-2, invalid UTF-8 in text (3 times); counts of rank 1 are lower bounds."
    )
    assert sentence(run_of(repairs=found[:1]), "Reading") == (
        "Reading took 2 repairs: rank 2, invalid UTF-8 in text (2 times)."
    )
    assert sentence(run_of(repairs=found[3:]), "Reading") is None


def test_waits_that_need_missing_ranks_are_said_to_need_them():
    met = {"num_matched": 2, "num_needed": 2, "transfer_ns": 0}
    alone = {"num_matched": 2, "num_needed": 4}
    rows = [collective("all_gather", "stream 20", n, n + 1, **need) for n, need in enumerate([met, alone, alone])]
    run = run_of(steps=[step(5, 0, 9)], collectives=[*rows, collective("broadcast", "stream 20", 5, 6, **alone)])
    assert sentence(run, "Waits") == ("Waits and skew of 2 of 3 collectives are unknown: only one rank is here.")
    run.world_size, run.missing_ranks = 4, [1, 3]
    assert sentence(run, "Waits") == (
        "Waits and skew of 2 of 3 collectives are unknown: needs 4 of 4 ranks, has 2 (no file of ranks 1, 3)."
    )
    run.collectives = run.collectives.filter(pl.col("num_needed") == 2)
    assert sentence(run, "Waits") is None
    run.collectives = run.collectives.with_columns(pl.lit(None, pl.Int64).alias("transfer_ns"))
    assert sentence(run, "Waits") == (
        "Waits and skew of all 1 collectives are unknown: "
        "the trace does not tell for certain which of them belong together on which ranks."
    )


@pytest.mark.parametrize(("length", "told"), [(1, None), (2, "2 % of the time that devices were busy")])
def test_work_outside_steps_is_told_from_one_percent_on(length, told):
    outside = work("compute", "stream 7", 200, 200 + length, step=None)
    run = run_of(steps=[step(5, 0, 100)], work=[work("compute", "stream 7", 0, 99), outside])
    text = next((t for t in sentences(run) if "outside all steps" in t), None)
    assert text is None if told is None else (text or "").startswith(told)


@pytest.mark.parametrize("manifest", [None, manifest_of("fsdp2", SMALL), manifest_of("unheard of", SMALL)])
def test_an_empty_run_is_told_to_be_empty(manifest):
    texts = sentences(run_of(manifest))
    assert texts[0].startswith("No communication was recorded: nothing can be said of how much moved, ")
    assert all(text.endswith(".") and "None" not in text and "nan" not in text for text in texts)


def test_names_of_traces_and_manifests_cannot_write_to_the_terminal():
    odd = "\x1b[31m\u202e\0" + "x" * 10**6
    run = common_fixture()
    named = pl.lit(odd)
    run.collectives = run.collectives.with_columns(layer=named, kind=named, phase=pl.lit("forward"))
    run.work = run.work.with_columns(layer=named)
    said = " ".join(sentences(run))
    assert "\\x1b[31m\\u202e\\x00xxx" in said
    assert said.isprintable()
    assert len(said) < 2_000


def test_what_grows_is_named_with_the_layer_that_made_it():
    run = run_of(steps=[step(number, number, number + 1) for number in range(4)])
    made = {"rank": 0, "cycle": 0, "device": "cuda:0", "category": "activations", "operator": "aten::mm"}
    run.blocks = pl.DataFrame(
        [
            {**made, "step": n, "start_ns": 1000 * n + 5, "end_ns": None, "layer": layer, "bytes": size}
            for n in range(4)
            for layer, size in (("layers.7", 3072), ("layers.1", 1024))
        ],
        schema=run.blocks.schema,
    )
    assert sentence(run, "Each of") == (
        "Each of 3 steps leaves 4.00 KiB behind on rank 0 that is still there when the next one ends, "
        "3.00 KiB of it made in layers.7 by aten::mm."
    )
    run.blocks = run.blocks.filter(layer="layers.1")
    run._tables.clear()
    assert "all of it made in layers.1 by aten::mm." in sentence(run, "Each of")
    run.blocks = run.blocks.head(1)
    run._tables.clear()
    assert sentence(run, "Each of") is None
