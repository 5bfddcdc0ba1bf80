"""The strategies that a trace looks like, by the kinds of its collectives and the phases in which they come.

For traces without a manifest, and against names that are wrong. Elements decide: a norm or a metric beside a model's
gradients changes nothing. Of each strategy the signature is that of its planner (`tracekit/plan/strategies/`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.strategies import STRATEGIES, title

if TYPE_CHECKING:
    from tracekit.model.run import Run

# What is less than this part of the largest sum is a metric, a norm or padding.
_PART = 0.05
# (kind, phase) that a step has, of the pairs of _ASKED, for the strategies that look so.
_GATHER, _REGATHER, _LATE_GATHER = ("all_gather", "forward"), ("all_gather", "backward"), ("all_gather", "optimizer")
_SCATTER, _REDUCE = ("reduce_scatter", "backward"), ("all_reduce", "backward")
# Gradients wait for backward: what is all-reduced in forward are activations.
_ACTIVATIONS = ("all_reduce", "forward")
_OWNERS, _TO_OWNERS = ("broadcast", "optimizer"), ("reduce", "backward")
SIGNATURES: dict[frozenset[tuple[str, str]], tuple[str, ...]] = {
    frozenset({_REDUCE}): ("ddp",),
    frozenset({_REDUCE, _OWNERS}): ("zero1",),
    frozenset({_REDUCE, _LATE_GATHER}): ("zero1-deepspeed", "zero2"),
    frozenset({_TO_OWNERS, _LATE_GATHER}): ("zero2",),
    frozenset({_GATHER, _SCATTER}): ("zero2-fsdp2", "zero2-fsdp1"),
    frozenset({_GATHER, _REGATHER, _SCATTER}): ("fsdp2", "fsdp1", "zero3-deepspeed"),
    frozenset({_GATHER, _REGATHER, _SCATTER, _REDUCE}): ("hsdp",),
    frozenset({_GATHER, _REGATHER, _SCATTER, _REDUCE, _ACTIVATIONS}): ("fsdp2-tp",),
}
_ASKED = frozenset().union(*SIGNATURES)


def looks_like(run: Run) -> tuple[str, ...]:
    """Names of the strategies that the complete steps look like, all of them alike; none where no signature fits."""
    whole = run.steps.filter("complete").select("rank", "step").unique()
    calls = run.collectives.join(whole, on=["rank", "step"], how="semi", nulls_equal=True).drop_nulls("payload_numel")
    reductions = pl.col("kind").is_in(["all_reduce", "reduce_scatter", "reduce"]) & (pl.col("phase") == "backward")
    last = pl.col("at").filter(reductions).max().over("rank", "step")
    # What comes after the last reduction updates parameters; what comes before is DDP's sending of its buffers.
    late = (pl.col("phase") == "other") & (pl.col("at") > last)
    phase = pl.when(late).then(pl.lit("optimizer")).otherwise("phase").alias("phase")
    sums = (
        calls.with_columns(pl.coalesce("issued_ns", "start_ns").alias("at"))
        .with_columns(phase)
        .group_by("kind", "phase")
        .agg(pl.col("payload_numel").sum())
    )
    most = sums["payload_numel"].max()
    if not isinstance(most, int) or not most:
        return ()
    seen = {(kind, at) for kind, at, numel in sums.iter_rows() if numel >= _PART * most}
    names = SIGNATURES.get(frozenset(seen & _ASKED), ())
    # FSDP2 annotates what it sends; the others have no such names.
    annotated = (calls["layer_from"] == "FSDP2").any()
    return tuple(name for name in names if STRATEGIES[name].framework == "torch FSDP2") if annotated else names


def in_words(names: tuple[str, ...]) -> str:
    """Titles of strategies as alternatives: "FSDP2, FSDP1 or DeepSpeed's stage 3"."""
    titles = [title(name) for name in names]
    return titles[0] if len(titles) == 1 else f"{', '.join(titles[:-1])} or {titles[-1]}"
