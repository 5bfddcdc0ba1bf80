"""What made a block: the operator, the collective call or the wrapper's range in which it was allocated."""

from __future__ import annotations

import polars as pl

from tracekit.model import names
from tracekit.model.as_of import around
from tracekit.model.devices.operators import own_time
from tracekit.model.event_kinds import Kinds, timed
from tracekit.model.recordings import RUN

_THREAD = [*RUN, "pid", "tid"]
# They clone what the backend then works on.
_FUNCTIONAL = "_c10d_functional::"
# It lays gradients out in one tensor that is then reduced.
_FLATTEN = "aten::flatten_dense_tensors"
_SPAN = ("start_ns", "end_ns")
# They only make room for another operator, or stand around what they call.
_NOT_A_MAKER = r"^(aten::(new_)?empty(_strided|_like)?|aten::resize_|PythonDispatchMode|autograd::engine::.*)$"


def with_makers(rows: pl.DataFrame, kinds: Kinds, calls: pl.DataFrame) -> pl.DataFrame:
    """Return blocks with `operator`, `call_kind`, `done_ns` and `mark` of their allocation, null where there is none.

    `operator` is the innermost one on the same thread that does more than make an empty tensor, `call_kind` the kind of
    the collective that the CPU was issuing, `done_ns` when the backend had run that, `mark` the range in which FSDP1 or
    FSDP2 allocates what it communicates. `flattened`: made of several tensors, to be sent as one. `for_backend`: made
    for a call or inside one, functional collectives included, so that the backend holds it too.
    """
    ops = timed(kinds.operators.filter(~pl.col("name").str.contains(_NOT_A_MAKER))).rename({"ts_ns": "start_ns"})
    own = own_time(ops.select(*_THREAD, "index", "start_ns", "dur_ns", "name"), _THREAD).sort("start_ns")
    own = own.with_columns((pl.col("start_ns") + pl.col("dur_ns")).alias("end_ns"))
    functional = _inside(rows, ops, pl.col("name").str.starts_with(_FUNCTIONAL))
    flattened = _inside(rows, ops, pl.col("name") == _FLATTEN)
    call = around(rows, "ts_ns", calls.sort("start_ns"), _SPAN, _THREAD)
    return rows.with_columns(
        around(rows, "ts_ns", own, _SPAN, _THREAD)["name"].alias("operator"),
        call["kind"].alias("call_kind"),
        call["done_ns"],
        flattened.alias("flattened"),
        (call["kind"].is_not_null() | functional | flattened).alias("for_backend"),
        mark_at(rows, "ts_ns", kinds).alias("mark"),
    )


def _inside(rows: pl.DataFrame, ops: pl.DataFrame, wanted: pl.Expr) -> pl.Series:
    """Return whether each row is inside one of the operators that are wanted, on its thread."""
    spans = ops.filter(wanted).sort("start_ns").with_columns((pl.col("start_ns") + pl.col("dur_ns")).alias("end_ns"))
    return around(rows, "ts_ns", spans, _SPAN, _THREAD)["name"].is_not_null()


def mark_at(rows: pl.DataFrame, time: str, kinds: Kinds) -> pl.Series:
    """Return the wrapper's range at the moment in column `time`; null where there is none."""
    return around(rows, time, _marks(kinds.annotations), _SPAN, RUN)["mark"]


def _marks(annotations: pl.DataFrame) -> pl.DataFrame:
    """Return the wrappers' ranges in which memory is allocated: rank, cycle, start_ns, end_ns, mark."""
    name, end = pl.col("name").str.extract(names.MEMORY_RANGE, 1), pl.col("ts_ns") + pl.col("dur_ns")
    found = annotations.filter(pl.col("ph") == "X").select(
        *RUN, pl.col("ts_ns").alias("start_ns"), end.alias("end_ns"), name.alias("mark")
    )
    return found.drop_nulls("mark").sort("start_ns")
