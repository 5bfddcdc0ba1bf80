"""Terms of a plan's volume: each call's share of the ZeRO paper's closed form, and the named differences.

A strategy gives its calls, each saying what part of it the paper counts, and the parts of the paper's that it omits.
Both together lead from the theory to the plan, exactly and in every place (layer, phase, kind, axis, dtype).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.collective_kinds import PASSES
from tracekit.plan.micro_batches import MIDDLE
from tracekit.plan.schema import PLACES, TERMS_SCHEMA, Term, item_size, payload_numel

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tracekit.plan.schema import Call

THEORY = "theory"
OTHER_TYPE = "gradients reduced in another type"
OTHER_GATHER_TYPE = "parameters gathered in another type"
ALL_REDUCE = "all-reduce in place of reduce-scatter"
MICRO_BATCHES = "further micro-batches"
ALIGNMENT = "alignment padding"
AS_BYTES = "mixed types gathered as bytes"
ROOT_KEPT = "root unit not gathered again"
UNITS_KEPT = "units kept gathered"
NO_BACKWARD = "units without a backward not gathered again"
SAVED = "gathered parameters saved for backward"
TIED = "tied parameters gathered at each use"
RELEASED = "parameters gathered more than twice"
FROZEN = "frozen parameters not reduced"
FROZEN_UNSENT = "frozen parameters not sent"
NO_GRADIENT = "parameters without a gradient"
IGNORED = "ignored parameters not sent"
SPLIT = "parameters split over tp"
REPLICATED = "replicate-axis all-reduce"
ACTIVATIONS = "tensor-parallel activations"
RECOMPUTED = "activations recomputed"
NORM = "gradient norm"
OVERFLOW = "overflow check"
USED = "map of used parameters"
UNUSED = "units that did not run"
BUFFERS = "buffers broadcast"
SINGLE = "a single rank sends nothing"
SINGLE_GATHER = "a single rank gathers nothing"


def terms_frame(calls: Sequence[Call], absent: Iterable[Term], times: int = 1) -> pl.DataFrame:
    """Terms by place with TERMS_SCHEMA: theory first, then what is left out, then what is added; no zeros.

    The theory is what the calls hold of it less what `absent` (negative terms) leaves out; it is the closed form where
    the strategy accounts for every parameter. `times`: how often the middle micro-batch happens, see micro_batches.py.
    """
    shares = [share for call in calls for share in _repeated(call, times)]
    missing = list(absent)
    theory = [share for share in shares if share.term == THEORY]
    theory += [term._replace(term=THEORY, numel=-term.numel, payload_bytes=-term.payload_bytes) for term in missing]
    theory = theory or [Term(THEORY, 0, 0)]
    rows = [*theory, *missing, *(share for share in shares if share.term != THEORY)]
    frame = pl.DataFrame(rows, schema=TERMS_SCHEMA, orient="row")
    summed = frame.group_by("term", *PLACES, maintain_order=True).agg(pl.col("numel", "payload_bytes").sum())
    kept = (pl.col("numel") != 0) | (pl.col("payload_bytes") != 0) | (pl.col("term") == THEORY)
    return summed.filter(kept).select(TERMS_SCHEMA.names())


def totals(terms: pl.DataFrame, by: Sequence[str] = ()) -> pl.DataFrame:
    """Terms summed over all places but `by`, in their order; terms that sum to nothing are left out."""
    summed = terms.group_by("term", *by, maintain_order=True).agg(pl.col("numel", "payload_bytes").sum())
    kept = (pl.col("numel") != 0) | (pl.col("payload_bytes") != 0) | (pl.col("term") == THEORY)
    return summed.filter(kept).select("term", "numel", "payload_bytes", *by)


def _repeated(call: Call, times: int) -> Iterator[Term]:
    """Shares of a call in the whole step."""
    if times == 1 or call.micro_batch != MIDDLE:
        return _shares(call)
    return (
        share._replace(numel=share.numel * times, payload_bytes=share.payload_bytes * times) for share in _shares(call)
    )


def _shares(call: Call) -> Iterator[Term]:
    """Shares of a call, which sum to its elements times passes and to its payload's bytes."""
    place = (call.layer, call.phase, call.kind, call.axis, call.dtype)
    numel, passes, size = payload_numel(call), PASSES[call.kind], item_size(call.dtype)
    if call.term is not None:
        yield Term(call.term, numel * passes, numel * size, *place)
        return
    own = numel if call.own is None else call.own
    own_bytes = own * size if call.own_bytes is None else call.own_bytes
    yield Term(THEORY, own * call.once, own_bytes, *place)
    yield Term(ALL_REDUCE, own * (passes - call.once), 0, *place)
    yield Term(AS_BYTES, call.raw * passes, 0, *place)
    retyped = OTHER_GATHER_TYPE if call.kind in ("all_gather", "broadcast") else OTHER_TYPE
    yield Term(retyped, 0, (own + call.raw) * size - own_bytes, *place)
    rest = numel - own - call.raw
    yield Term(call.rest, rest * passes, rest * size, *place)
