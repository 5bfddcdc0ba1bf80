"""What made a block: the operator, the collective call or the wrapper's range in which it was allocated."""

from __future__ import annotations

import polars as pl

from tracekit.model import names
from tracekit.model.as_of import around
from tracekit.model.devices.operators import own_time
from tracekit.model.event_kinds import timed
from tracekit.model.recordings import RUN

_THREAD = [*RUN, "pid", "tid"]
# They only make room for another operator, or stand around what they call.
_NOT_A_MAKER = r"^(aten::(new_)?empty(_strided|_like)?|aten::resize_|PythonDispatchMode|autograd::engine::.*)$"


def with_makers(
    rows: pl.DataFrame, operators: pl.DataFrame, annotations: pl.DataFrame, calls: pl.DataFrame
) -> pl.DataFrame:
    """Return blocks with `operator`, `call_kind`, `mark` and `end_mark`; each null where there is none.

    `operator` is the innermost one on the same thread that does more than make an empty tensor, `call_kind` the kind of
    the collective that the CPU was issuing, `mark` the range in which FSDP1 or FSDP2 allocates what it
    communicates, `end_mark` that in which the block was freed.
    """
    ops = timed(operators.filter(~pl.col("name").str.contains(_NOT_A_MAKER))).rename({"ts_ns": "start_ns"})
    own = own_time(ops.select(*_THREAD, "index", "start_ns", "dur_ns", "name"), _THREAD).sort("start_ns")
    own = own.with_columns((pl.col("start_ns") + pl.col("dur_ns")).alias("end_ns"))
    span = ("start_ns", "end_ns")
    marks = _marks(annotations)
    return rows.with_columns(
        around(rows, "ts_ns", own, span, _THREAD)["name"].alias("operator"),
        around(rows, "ts_ns", calls.sort("start_ns"), span, _THREAD)["kind"].alias("call_kind"),
        around(rows, "ts_ns", marks, span, RUN)["mark"],
        around(rows, "end_ns", marks, span, RUN)["mark"].alias("end_mark"),
    )


def _marks(annotations: pl.DataFrame) -> pl.DataFrame:
    """Return the wrappers' ranges in which memory is allocated: rank, cycle, start_ns, end_ns, mark."""
    name, end = pl.col("name").str.extract(names.MEMORY_RANGE, 1), pl.col("ts_ns") + pl.col("dur_ns")
    found = annotations.filter(pl.col("ph") == "X").select(
        *RUN, pl.col("ts_ns").alias("start_ns"), end.alias("end_ns"), name.alias("mark")
    )
    return found.drop_nulls("mark").sort("start_ns")
