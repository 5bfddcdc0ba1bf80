"""Collective calls as the CPU issued them: one row a call, whatever spelling its torch left.

One call leaves up to three nested rows (``c10d::allreduce_`` around ``record_param_comms`` around ``nccl:all_reduce``),
which are merged: arguments first, then the operator's shapes, then the annotation's.
"""

from __future__ import annotations

import json
import math
from typing import Any

import polars as pl

from tracekit.dtypes import dtype_of
from tracekit.model import names
from tracekit.model.event_kinds import Kinds, timed

# One row for each call. `start_ns`, `end_ns`: the outermost CPU row. `kind_from`: args, op or annotation. `sizes_from`:
# args, shapes or annotation, null where no size is known. `num_merged`: collectives coalesced into it. `external_ids`:
# of the rows with its arguments, to find its kernels.
CALLS_SCHEMA: dict[str, pl.DataType] = {
    "rank": pl.Int32(),
    "cycle": pl.Int32(),
    "call": pl.Int64(),
    "index": pl.Int64(),
    "pid": pl.Int64(),
    "tid": pl.Int64(),
    "start_ns": pl.Int64(),
    "end_ns": pl.Int64(),
    "kind": pl.String(),
    "kind_from": pl.String(),
    "num_merged": pl.Int64(),
    "group": pl.String(),
    "group_desc": pl.String(),
    "group_size": pl.Int64(),
    "group_ranks": pl.String(),
    "comms_id": pl.String(),
    "src_rank": pl.Int64(),
    "dst_rank": pl.Int64(),
    "seq": pl.Int64(),
    "dtype": pl.String(),
    "in_numel": pl.Int64(),
    "out_numel": pl.Int64(),
    "sizes_from": pl.String(),
    "external_ids": pl.List(pl.Int64()),
}
_ARGUMENTS = "record_param_comms"
# No tensor has more elements: a larger number is damage.
MOST_ELEMENTS = 2**50
OF_GROUP = ("group", "group_desc", "group_size", "group_ranks", "comms_id", "src_rank", "dst_rank", "seq")
_THREAD = ["rank", "cycle", "pid", "tid"]
# Operators whose first shape is the output and second the input; all others name their tensors first.
_OUTPUT_FIRST = ("all_gather", "reduce_scatter", "all_to_all")


def calls(kinds: Kinds, arguments: pl.DataFrame) -> pl.DataFrame:
    """Return CALLS_SCHEMA; waits and other rows that name no collective are left out.

    `arguments` are those of rows that name a collective, as read.
    """
    named = pl.any_horizontal(pl.col("name").str.starts_with(p) for p in names.CALL_PREFIXES)
    rows = timed(pl.concat([part.filter(named) for part in (kinds.operators, kinds.annotations)]))
    if rows.is_empty():
        return pl.DataFrame(schema=CALLS_SCHEMA)
    rows = rows.with_columns((pl.col("ts_ns") + pl.col("dur_ns")).alias("end_ns"))
    rows = rows.join(arguments, on=["rank", "cycle", "index"], how="left")
    rows = rows.sort(*_THREAD, "ts_ns", "end_ns", descending=[False] * 5 + [True])
    reach = pl.col("end_ns").cum_max().shift(1).over(_THREAD)
    rows = rows.with_columns((reach.is_null() | (pl.col("ts_ns") >= reach)).cum_sum().cast(pl.Int64).alias("call"))
    merged = [_merge(group) for group in rows.partition_by("call", maintain_order=True)]
    return pl.DataFrame([row for row in merged if row], schema=CALLS_SCHEMA, orient="row")


def _merge(rows: pl.DataFrame) -> dict[str, Any] | None:
    """Return the nested rows of one call merged; None where they name no collective."""
    dicts = rows.to_dicts()
    kind, kind_from = _kind(dicts)
    if kind is None:
        return None
    outer = dicts[0]
    described = [d for d in dicts if names.kind_of(d["collective"])]
    args = described[0] if described else {}
    sizes, sizes_from = _added(described) if len(described) > 1 else _sizes(dicts, args, kind)
    return {
        **{name: outer[name] for name in ("rank", "cycle", "call", "index", "pid", "tid", "end_ns")},
        "start_ns": outer["ts_ns"],
        "kind": kind,
        "kind_from": kind_from,
        "num_merged": max(len(described), 1),
        **{name: args.get(name) for name in OF_GROUP},
        **_peer(dicts, args, kind),
        "dtype": dtype_of(args.get("dtype")) or next((t for t in map(_dtype, dicts) if t), None),
        "in_numel": sizes[0],
        "out_numel": sizes[1],
        "sizes_from": sizes_from,
        "external_ids": [d["external_id"] for d in dicts if d["name"] == _ARGUMENTS and (d["external_id"] or 0) > 0],
    }


def _peer(dicts: list[dict[str, Any]], args: dict[str, Any], kind: str) -> dict[str, int]:
    """Return the peer of a send or recv whose arguments do not name it: the operator's third input.

    c10d::send(Tensor[] tensors, ProcessGroup process_group, int dst, int tag) takes a place in the group, and so does
    c10d::recv_ (torch/csrc/distributed/c10d/Ops.cpp); `matching` tells whether it is a rank, too.
    """
    side = {"send": "dst_rank", "recv": "src_rank"}.get(kind)
    if side is None or args.get(side) is not None:
        return {}
    found = [_third(d["concrete_inputs"]) for d in dicts if d["name"].startswith("c10d::")]
    known = [place for place in found if place is not None]
    return {side: known[0]} if known else {}


def _third(concrete: str | None) -> int | None:
    """Return the third of some inputs, as JSON text of texts, where it is a number of 31 bits."""
    try:
        values = json.loads(concrete or "[]")
        place = int(values[2])
    except (ValueError, TypeError, IndexError, RecursionError):
        return None
    return place if 0 <= place < 2**31 else None


def _added(described: list[dict[str, Any]]) -> tuple[tuple[int | None, int | None], str | None]:
    """Return the elements of coalesced collectives together; None where kinds or dtypes differ or one is unknown."""
    sizes = [(d["in_numel"], d["out_numel"]) for d in described]
    alike = len({(names.kind_of(d["collective"]), d["dtype"]) for d in described}) == 1
    if not alike or any(None in pair for pair in sizes):
        return (None, None), None
    return (sum(i for i, _ in sizes), sum(o for _, o in sizes)), "args"


def _kind(dicts: list[dict[str, Any]]) -> tuple[str | None, str | None]:
    described = [(names.kind_of(d["collective"]), "args") for d in dicts if d["collective"]]
    ops = [(names.kind_of(d["name"]), "op") for d in dicts if d["name"].startswith("c10d::")]
    annotations = [(names.kind_of(d["name"]), "annotation") for d in dicts if ":" in d["name"]]
    return next(((k, source) for k, source in [*described, *ops, *annotations] if k), (None, None))


def _sizes(
    dicts: list[dict[str, Any]], args: dict[str, Any], kind: str
) -> tuple[tuple[int | None, int | None], str | None]:
    """Return the elements in and out, and where they were found."""
    if args.get("in_numel") is not None or args.get("out_numel") is not None:
        return (args["in_numel"], args["out_numel"]), "args"
    for row in dicts:
        if row["name"].startswith("c10d::") and "barrier" in row["name"]:
            return (0, 0), "shapes"
        if row["name"].startswith("c10d::") and row["input_dims"]:
            found = op_sizes(kind, row["input_dims"])
            if found != (None, None):
                return found, "shapes"
    for row in dicts:
        if row["name"].startswith("nccl:") and row["input_dims"]:
            numel = first_numel(row["input_dims"])
            if numel is not None:
                return (numel, numel if kind in ("all_reduce", "broadcast", "reduce") else None), "annotation"
    return (None, None), None


def op_sizes(kind: str, dims: str) -> tuple[int | None, int | None]:
    """Return elements in and out from the shapes of a ``c10d::`` operator, e.g. ``[[512], [256], [], []]``."""
    shapes = _load(dims)
    if not shapes:
        return None, None
    first = _numel(shapes[0])
    if kind in _OUTPUT_FIRST:
        return (_numel(shapes[1]) if len(shapes) > 1 else None), first
    return first, first


def first_numel(dims: str) -> int | None:
    """Return the elements of the first tensor in the shapes of an annotation or a backend's span."""
    shapes = _load(dims)
    if not shapes:
        return None
    return 1 if shapes[0] == [] else _numel(shapes[0])


def _load(dims: str) -> list[Any]:
    try:
        shapes = json.loads(dims)
    except ValueError:
        return []
    return shapes if isinstance(shapes, list) else []


def _numel(shape: Any) -> int | None:
    """Return the elements of a shape or a list of shapes; None for [], which operators write for other arguments."""
    if not isinstance(shape, list) or not shape:
        return None
    if all(isinstance(d, int) for d in shape):
        numel = math.prod(shape)
        return numel if 0 <= numel <= MOST_ELEMENTS else None
    parts = [1 if s == [] else _numel(s) for s in shape]
    known = [p for p in parts if p is not None]
    return sum(known) if len(known) == len(parts) else None


def _dtype(row: dict[str, Any]) -> str | None:
    """Return the dtype of the first tensor in a row's input types, or None."""
    types = _load(row["input_type"] or "[]")
    return dtype_of(types[0]) if types and isinstance(types[0], str) else None
