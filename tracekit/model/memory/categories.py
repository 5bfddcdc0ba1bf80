"""What a block of memory was for: the rules in the order in which they decide, each with the evidence it rests on.

FSDP2 and FSDP1 allocate inside ranges of their own (torch 2.13: `_fsdp_param_group.py` and `_fsdp_collectives.py` of
`torch/distributed/fsdp/_fully_shard/`; `torch/distributed/fsdp/_runtime_utils.py`). Where there are none, the phases in
which a block came and went decide: what forward makes and backward frees was saved for backward; what backward makes
and leaves behind is a gradient; what comes and goes inside one phase was temporary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from tracekit.dtypes import ITEM_SIZES
from tracekit.strategies import STRATEGIES

if TYPE_CHECKING:
    from tracekit.manifest import Manifest

GATHERED, BUFFERS, GRADIENT_BUFFERS = "gathered parameters", "collective buffers", "gradient buffers"
GRADIENTS, ACTIVATIONS, TEMPORARIES, STATE = "gradients", "activations", "temporaries", "optimizer state"
_DEEPSPEED_BACKWARD = "PreBackwardFunctionForModuleBackward"
_REDUCING = ["post_backward_reduce", "_post_backward_hook"]
UNKNOWN, BEFORE_WINDOW = "unknown", "before the window"


class Rule(NamedTuple):
    """A category, the evidence for it, and the blocks that it holds for."""

    category: str
    evidence: str
    holds: pl.Expr


def with_category(blocks: pl.DataFrame, manifest: Manifest | None) -> pl.DataFrame:
    """Return blocks with `category` and `category_from`.

    `blocks` has end_ns (null: alive at the window's end), bytes, what made them (`makers.with_makers`), and of both
    moments phase and stretch (a number for each time that a phase is entered).
    """
    decided, evidence = pl.lit(UNKNOWN), pl.lit(None, pl.String)
    for rule in reversed(_rules(manifest)):
        decided = pl.when(rule.holds).then(pl.lit(rule.category)).otherwise(decided)
        evidence = pl.when(rule.holds).then(pl.lit(rule.evidence)).otherwise(evidence)
    return blocks.with_columns(decided.alias("category"), evidence.alias("category_from"))


def _rules(manifest: Manifest | None) -> list[Rule]:
    mark, end_mark = pl.col("mark").fill_null(""), pl.col("end_mark").fill_null("")
    phase, end_phase = pl.col("phase"), pl.col("end_phase").fill_null("")
    gone = pl.col("end_ns").is_not_null()
    # Outside of every step and phase all time is one stretch, which tells nothing.
    placed = (phase != "other") | pl.col("step").is_not_null()
    inside = gone & placed & (pl.col("stretch") == pl.col("end_stretch"))
    outlives = ~gone | (end_phase != "backward")
    reducing, reduced = mark.is_in(_REDUCING), end_mark.is_in(_REDUCING)
    gathering = mark.is_in(["_pre_backward_hook", "_pre_backward_prefetch", "_pre_forward_prefetch"])
    flat = pl.col("bytes").is_in(_flat_sizes(manifest))
    ahead = phase.is_in(["forward", "other"])
    ranged, sized, lived = "range of the wrapper", "size of a flat parameter", "phases in which it came and went"
    called, emptied = "collective call", "room that no operator fills"
    laid_out = "laid out as one tensor in backward"
    call = pl.col("call_kind").fill_null("")
    empty = pl.col("operator").is_null() | (pl.col("operator") == _DEEPSPEED_BACKWARD)
    fetched = pl.lit(_gathers_by_itself(manifest)) & phase.is_in(["forward", "backward"]) & empty
    return [
        Rule(GATHERED, ranged, mark == "all_gather_copy_out"),
        Rule(BUFFERS, ranged, mark == "all_gather"),
        Rule(GRADIENT_BUFFERS, called, (phase == "backward") & (call == "reduce_scatter")),
        Rule(GRADIENT_BUFFERS, laid_out, (phase == "backward") & pl.col("flattened")),
        Rule(BUFFERS, called, call != ""),
        Rule(GRADIENTS, ranged, reducing & outlives),
        Rule(GRADIENT_BUFFERS, ranged, reducing),
        Rule(GRADIENTS, ranged, (phase == "backward") & reduced & pl.col("operator").is_not_null()),
        Rule(GATHERED, sized, flat & (gathering | (phase == "forward"))),
        Rule(GRADIENTS, sized, flat & (phase == "backward")),
        Rule(GATHERED, emptied, fetched),
        Rule(TEMPORARIES, lived, inside),
        Rule(STATE, lived, (phase == "optimizer") & ~gone),
        Rule(GRADIENTS, lived, phase == "backward"),
        Rule(ACTIVATIONS, lived, ahead & (end_phase == "backward")),
        Rule(TEMPORARIES, lived, gone & placed),
    ]


def _gathers_by_itself(manifest: Manifest | None) -> bool:
    """Whether DeepSpeed gathers the parameters (0.19, its `zero/partition_parameters`): it has no ranges for that."""
    if manifest is None or manifest.strategy not in STRATEGIES:
        return False
    strategy = STRATEGIES[manifest.strategy]
    return strategy.framework == "DeepSpeed" and strategy.stage == 3


def _flat_sizes(manifest: Manifest | None) -> list[int]:
    """Bytes of each of FSDP1's flat parameters in the type that it is computed in."""
    if manifest is None:
        return []
    item = ITEM_SIZES.get(manifest.precision.param_dtype or "float32", 4)
    return sorted({unit.flat.numel * item for unit in manifest.units if unit.flat is not None})
