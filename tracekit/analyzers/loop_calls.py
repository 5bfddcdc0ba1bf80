"""Collectives that a training loop issues by itself, outside of every wrapper: metrics, losses, norms, seeds.

They are told by place (known to be outside forward and backward), by what the plan does not have, and by size and
count. Small alone is no proof: gradients are sent in pieces, and biases one by one. A call is the loop's own if its
elements are integers, if it has one number, if it alone has as many as there are gradients (their norms), or if all of
a kind are few and none of them has a parameter's or a unit's size, nor do reductions in a row add up to one.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

import polars as pl

from tracekit.analyzers import volume

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.analyzers.expectation import Expectation
    from tracekit.manifest import Manifest
    from tracekit.model.run import Run

KINDS = ("all_reduce", "all_gather", "broadcast", "reduce")
# Metrics, losses and norms are scalars or short lists. More elements than this, together, are told as unexplained.
MOST_NUMEL = 1024
_REDUCTIONS = ("all_reduce", "reduce")
_INTEGERS = ("bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64")
_STEP = ("rank", "step")
_CALL = ("kind", "payload_numel", "dtype")
_OUTSIDE = pl.col("kind").is_in(KINDS) & pl.col("phase").is_in(["optimizer", "other"])


def loop_calls(run: Run, known: Expectation, steps: pl.DataFrame, groups: Sequence[str] = ()) -> pl.DataFrame:
    """Sums of such calls in each of the steps (rank, step) and group: passes_numel, payload_bytes, backend_numel, num.

    None without a plan, which alone tells what is beyond it.
    """
    sizes = ("passes_numel", "payload_bytes", "backend_numel")
    calls = each_loop_call(run, known, steps)
    return calls.group_by(*_STEP, *groups).agg(*(volume.known_sum(size) for size in sizes), pl.len().alias("num"))


def each_loop_call(run: Run, known: Expectation, steps: pl.DataFrame) -> pl.DataFrame:
    """Such calls, as rows of `volume.sized`; those whose size is unknown are not among them."""
    sized = volume.sized(run).join(steps, on=list(_STEP), how="semi")
    beyond = _beyond(sized.filter(_OUTSIDE).drop_nulls("payload_numel"), known.calls.filter(_OUTSIDE))
    # A plan may be that a single rank sends nothing.
    has_plan = known.calls.height > 0 or (known.complete and not known.missing)
    if not has_plan or beyond.is_empty():
        return sized.clear()
    manifest = known.manifest or run.manifest
    gradients, norms = _gradient_sizes(manifest), _num_gradients(manifest)
    of_integers = pl.col("dtype").is_in(_INTEGERS).fill_null(value=False)
    sure = of_integers | ((pl.col("payload_numel") == 1) & (1 not in gradients))
    kept = [beyond.filter(sure)]
    for calls in beyond.filter(~sure).partition_by(*_STEP, "kind", maintain_order=True):
        numels = calls["payload_numel"].to_list()
        few = sum(numels) <= MOST_NUMEL and not _like_gradients(calls["kind"][0], numels, gradients)
        kept.append(calls if few or numels == [norms] else calls.clear())
    return pl.concat(kept)


def _beyond(calls: pl.DataFrame, planned: pl.DataFrame) -> pl.DataFrame:
    """The calls of each step less as many of a kind, type and size as the plan has, those of its axes first."""
    counts = planned.group_by(_CALL).agg(pl.len().alias("planned"), pl.col("axis").unique().alias("axes"))
    joined = calls.join(counts, on=list(_CALL), how="left", nulls_equal=True)
    elsewhere = ~pl.col("axis").is_in(pl.col("axes")).fill_null(value=False)
    ordered = joined.sort(elsewhere, "start_ns", maintain_order=True)
    nth = pl.int_range(pl.len()).over(*_STEP, *_CALL)
    beyond = ordered.filter(nth >= pl.col("planned").fill_null(0))
    return beyond.select(calls.columns).sort("start_ns", maintain_order=True)


def _gradient_sizes(manifest: Manifest | None) -> set[int]:
    """Elements of each trained parameter, of all of a layer's and of the whole model's."""
    layers: dict[str, int] = {}
    sizes: set[int] = set()
    for one in manifest.parameters if manifest else []:
        if one.requires_grad and one.tied_to is None:
            layers[one.layer] = layers.get(one.layer, 0) + one.numel
            sizes.add(one.numel)
    return sizes | {*layers.values(), *((manifest.psi, manifest.psi_train) if manifest else ())}


def _num_gradients(manifest: Manifest | None) -> int:
    return sum(one.requires_grad and one.tied_to is None for one in manifest.parameters) if manifest else 0


def _like_gradients(kind: str, numels: list[int], sizes: set[int]) -> bool:
    """Whether one of the calls, or reductions in a row, have as many elements as a parameter, a layer or the model."""
    if kind not in _REDUCTIONS:
        return not sizes.isdisjoint(numels)
    return any(reached in sizes for first in range(len(numels)) for reached in accumulate(numels[first:]))
