"""Units that are gathered more often than a forward and a backward take are named, and no others."""

from __future__ import annotations

import pytest
from fakes import SMALL, collective, manifest_of, run_of, step

from tracekit.report.gathers import gathered_often

UNITS = ("layers.0", "layers.1", "layers.2")


def gathers(layer, forward, backward, *, number=5):
    phases = ["forward"] * forward + ["backward"] * backward
    return [
        collective("all_gather", "stream 20", n, n + 1, numel=8, layer=layer, phase=phase, step=number)
        for n, phase in enumerate(phases)
    ]


def said(*calls, manifest=None, complete=True):
    steps = [step(5, 0, 1000) | {"complete": complete}]
    return gathered_often(run_of(manifest, steps=steps, collectives=[row for rows in calls for row in rows]))


def usual(forward=1, backward=1):
    return [row for unit in UNITS for row in gathers(unit, forward, backward)]


def test_once_for_forward_and_once_for_backward_is_usual():
    assert said(usual()) is None


def test_a_unit_that_is_gathered_again_is_named_with_the_likely_causes():
    text = said(usual(), gathers("layers.3", 1, 2))
    assert text == (
        "In a step of one micro-batch all-gathers bring layers.3 3 times: more than once for forward and once for "
        "backward. Likely causes: activation checkpointing that does not coincide with the unit, a second forward of "
        "it, or an evaluation in the step."
    )


def test_the_root_unit_has_its_name():
    assert "(root) 4 times" in str(said(usual(), gathers("", 3, 1)))


def test_many_units_are_counted():
    text = str(said(*(gathers(f"layers.{n}", 1, 3) for n in range(6)), gathers("a", 1, 1)))
    assert "layers.0 4 times, layers.1 4 times, layers.2 4 times, and 3 other units" in text


def test_every_micro_batch_gathers_anew():
    manifest = manifest_of("fsdp2", SMALL, micro_batches=3)
    assert said(usual(3, 3), manifest=manifest) is None
    assert "layers.9 7 times" in str(said(usual(3, 3), gathers("layers.9", 4, 3), manifest=manifest))
    # Without a manifest the units themselves tell.
    assert said(usual(3, 3)) is None


@pytest.mark.parametrize("strategy", ["zero3-deepspeed", "fsdp2-graph", "ddp"])
def test_frameworks_that_gather_no_units_are_not_asked(strategy):
    assert said(usual(), gathers("layers.3", 9, 9), manifest=manifest_of(strategy, SMALL)) is None


def test_buckets_unknown_layers_and_cut_steps_are_left_out():
    assert said(usual(), gathers("layers.1..layers.2", 9, 9), gathers(None, 9, 9)) is None
    assert said(usual(), gathers("layers.3", 9, 9), complete=False) is None
