"""What every plan is made of: one expected collective, one named term, and the frames that hold them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tracekit.read.manifest import Manifest, Parameter

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

TERMS_SCHEMA = pl.Schema({"term": pl.String, "numel": pl.Int64, "payload_bytes": pl.Int64})

# How often the payload crosses the group (DESIGN: all-reduce is a reduce-scatter and an all-gather in one).
PASSES = {"all_gather": 1, "reduce_scatter": 1, "broadcast": 1, "reduce": 1, "all_reduce": 2, "all_to_all": 1}

ITEM_SIZES = {
    "float64": 8,
    "int64": 8,
    "float32": 4,
    "int32": 4,
    "bfloat16": 2,
    "float16": 2,
    "int16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}


class Call(NamedTuple):
    """One expected collective of a step, in the column order of the plan."""

    layer: str | None
    phase: str
    micro_batch: int | None
    kind: str
    axis: str
    group_size: int
    dtype: str
    in_numel: int
    out_numel: int


class Term(NamedTuple):
    """One named part of a step's volume; numel is weighted by passes, payload_bytes is not."""

    term: str
    numel: int
    payload_bytes: int


def item_size(dtype: str) -> int:
    """Bytes of one element of a torch data type.

    Raises:
        KeyError: the type is unknown.
    """
    return ITEM_SIZES[dtype]


def is_floating(dtype: str) -> bool:
    """Whether mixed precision applies to the type."""
    return dtype.startswith(("float", "bfloat"))


def payload_numel(call: Call) -> int:
    """Elements of the full tensor: an all-gather's output, everything else's input."""
    return call.out_numel if call.kind == "all_gather" else call.in_numel


def own_parameters(manifest: Manifest) -> list[Parameter]:
    """Parameters in registration order, tied ones once."""
    return [parameter for parameter in manifest.parameters if parameter.tied_to is None]


def axis_size(manifest: Manifest, axis: str = "dp_shard") -> int:
    """Ranks along a mesh axis; the whole world where the mesh does not name it."""
    return next((entry.size for entry in manifest.mesh if entry.axis == axis), manifest.world_size)


def plan_frame(calls: Iterable[Call]) -> pl.DataFrame:
    """Expected collectives as a frame with PLAN_SCHEMA; none gives an empty frame."""
    rows = [
        (*call, payload_numel(call), payload_numel(call) * item_size(call.dtype), PASSES[call.kind]) for call in calls
    ]
    return pl.DataFrame(rows, schema=PLAN_SCHEMA, orient="row")


def terms_frame(terms: Iterable[Term]) -> pl.DataFrame:
    """Terms as a frame with TERMS_SCHEMA: `theory` always, the others only where they differ from nothing."""
    rows = [term for term in terms if term.term == "theory" or term.numel or term.payload_bytes]
    return pl.DataFrame(rows, schema=TERMS_SCHEMA, orient="row")
