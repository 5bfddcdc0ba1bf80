"""Rows of every plan: one expected collective, one named term, and the frames that hold them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from tracekit.collective_kinds import PASSES
from tracekit.dtypes import ITEM_SIZES
from tracekit.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable

# Elements that a call has beyond its parameters, unless it names them otherwise.
PADDING = "padding of dim 0"

PLAN_SCHEMA = pl.Schema(
    {
        "layer": pl.String,
        "phase": pl.String,
        "micro_batch": pl.Int32,
        "kind": pl.String,
        "axis": pl.String,
        "group_size": pl.Int32,
        "dtype": pl.String,
        "in_numel": pl.Int64,
        "out_numel": pl.Int64,
        "payload_numel": pl.Int64,
        "payload_bytes": pl.Int64,
        "passes": pl.Int8,
    }
)

# The places that a term is charged to, as a collective has them.
PLACES = ("layer", "phase", "kind", "axis", "dtype")
TERMS_SCHEMA = pl.Schema(
    {"term": pl.String, "numel": pl.Int64, "payload_bytes": pl.Int64, **dict.fromkeys(PLACES, pl.String)}
)


class Call(NamedTuple):
    """One expected collective of a step, in the column order of the plan, and how it comes from the theory.

    `own`: elements of its payload that the closed form counts, each once; None for all. `own_bytes`: what it takes
    them for; None for their bytes in `dtype`. `once`: how often it lets the payload cross. `term`: what the whole call
    is charged to where the closed form knows nothing of it. `rest`: what the elements beyond `own` are called.
    `raw`: elements that are bytes of others, because types were mixed.
    """

    layer: str | None
    phase: str
    micro_batch: int | None
    kind: str
    axis: str
    group_size: int
    dtype: str
    in_numel: int
    out_numel: int
    own: int | None = None
    own_bytes: int | None = None
    once: int = 1
    term: str | None = None
    rest: str = PADDING
    raw: int = 0


class Term(NamedTuple):
    """One named part of a step's volume; numel is weighted by passes, payload_bytes is not."""

    term: str
    numel: int
    payload_bytes: int
    layer: str | None = None
    phase: str | None = None
    kind: str | None = None
    axis: str | None = None
    dtype: str | None = None


def item_size(dtype: str) -> int:
    """Bytes of one element of a torch data type.

    Raises:
        InputError: the type has no whole bytes, or is unknown.
    """
    if dtype not in ITEM_SIZES:
        raise InputError(f"There is no plan for parameters of type {dtype[:40]}: how it is sent is not known.")
    return ITEM_SIZES[dtype]


def is_floating(dtype: str) -> bool:
    """True for types that mixed precision applies to."""
    return dtype.startswith(("float", "bfloat"))


def payload_numel(call: Call) -> int:
    """Elements of the full tensor: an all-gather's output, everything else's input."""
    return call.out_numel if call.kind == "all_gather" else call.in_numel


def plan_frame(calls: Iterable[Call]) -> pl.DataFrame:
    """Expected collectives as a frame with PLAN_SCHEMA; none gives an empty frame."""
    rows = [
        (*call[:9], payload_numel(call), payload_numel(call) * item_size(call.dtype), PASSES[call.kind])
        for call in calls
    ]
    return pl.DataFrame(rows, schema=PLAN_SCHEMA, orient="row")
