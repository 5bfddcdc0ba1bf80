"""A step of many micro-batches is what each of them sends, without planning each of them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from polars.testing import assert_frame_equal

from tracekit.manifest import Manifest
from tracekit.plan import build, plan, terms
from tracekit.plan.schema import plan_frame
from tracekit.plan.shares import terms_frame, totals
from tracekit.plan.strategies import planner_of
from tracekit.reference_models import find_size
from tracekit.strategies import STRATEGIES, find

OPTIONS: list[dict[str, Any]] = [
    {},
    {"sync_every_micro_batch": False},
    {"reshard_after_backward": False},
    {"sync_every_micro_batch": False, "reshard_after_backward": False, "clip_grad_norm": 1.0},
]


def run_of(strategy: str, micro_batches: int, options: dict[str, Any]) -> Manifest:
    mesh = dict.fromkeys(find(strategy).axes, 2)
    made = build.of_model(
        strategy,
        find_size("nano"),
        mesh=mesh,
        precision=build.precision_of(strategy, None, None),
        micro_batches=micro_batches,
        options={"batch_size": 1, "seq_len": 9},
    )
    return msgspec.structs.replace(made, options={**made.options, **options})


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("micro_batches", [1, 3, 4, 7])
def test_as_if_each_were_planned(strategy: str, micro_batches: int, options: dict[str, Any]) -> None:
    manifest = run_of(strategy, micro_batches, options)
    planner = planner_of(manifest)
    assert planner is not None
    every = planner.collectives(manifest)
    assert_frame_equal(plan(manifest), plan_frame(every))
    expected = totals(terms_frame(every, planner.absent(manifest)))
    assert_frame_equal(terms(manifest), expected, check_row_order=False)


def test_a_large_count_plans_three() -> None:
    manifest = run_of("fsdp2", 50_000, {})
    calls = plan(manifest)
    assert calls.height == 50_000 * plan(run_of("fsdp2", 1, {})).height
    assert calls["micro_batch"].max() == 49_999
