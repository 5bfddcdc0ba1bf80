"""Own time of a CPU's operators: each moment of a thread belongs to the innermost operator that is open.

An operator like ``aten::mm`` calls small ones (``aten::resolve_conj``) before it does its work, so counting only leaf
operators would lose most of the time. Each thread is cut at every begin and end of an operator; torch.profiler calls
the result self time.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit.model.as_of import latest

IntArray = npt.NDArray[np.int64]


def own_time(ops: pl.DataFrame, thread: list[str]) -> pl.DataFrame:
    """Return `ops` (start_ns, dur_ns, index) cut into stretches of own time, each with its `start_ns` and `dur_ns`.

    Stretches of one thread do not overlap and together cover what its operators cover; empty ones are left out.
    """
    parts = [_cut(group) for group in ops.partition_by(thread, maintain_order=True)]
    return pl.concat(parts) if parts else ops


def _cut(ops: pl.DataFrame) -> pl.DataFrame:
    ops = ops.filter(pl.col("dur_ns") > 0).with_columns((pl.col("start_ns") + pl.col("dur_ns")).alias("end_ns"))
    ops = ops.sort("start_ns", "end_ns", "index", descending=[False, True, False])
    starts, ends = ops["start_ns"].to_numpy(), ops["end_ns"].to_numpy()
    number = np.arange(ops.height)
    # In nested order, what is open before i are the earlier ones that have not ended.
    depth = number - np.searchsorted(np.sort(ends), starts, side="right")
    at = np.concatenate((starts, ends))
    owner = np.concatenate((number, _parents(number, depth)))
    # At one moment first the ends, innermost first, then the begins, outermost first: the last one decides.
    is_begin = np.repeat((1, 0), ops.height)
    inner_first = np.concatenate((number, -number))
    order = np.lexsort((inner_first, is_begin, at))
    at, owner = at[order], owner[order]
    lengths = np.diff(at, append=at[-1:])
    real = (lengths > 0) & (owner >= 0)
    stretches = ops[owner[real]].drop("end_ns")
    return stretches.with_columns(pl.Series("start_ns", at[real]), pl.Series("dur_ns", lengths[real]))


def _parents(number: IntArray, depth: IntArray) -> IntArray:
    """Return the index of the operator around each one, the last one before it one level up; -1 for none."""
    frame = pl.DataFrame({"number": number, "depth": depth})
    above = frame.select(pl.col("number").alias("parent"), "number", (pl.col("depth") + 1).alias("depth"))
    return latest(frame, "number", above, "number", ["depth"])["parent"].fill_null(-1).to_numpy()
