"""What devices are called: their kind as torch names it, and a number (``cuda:0``, ``xpu:1``, ``mtia:17``)."""

from __future__ import annotations

import polars as pl

from tracekit.model import names
from tracekit.model.event_kinds import Kinds, by_value
from tracekit.model.recordings import RUN

# torch's c10::DeviceType by number; AMD's GPUs are cuda to torch. 20 is PrivateUse1: what the rank's rows are called.
DEVICE_TYPES = {0: "cpu", 1: "cuda", 6: "cuda", 9: "xla", 12: "xpu", 13: "mps", 15: "hpu", 19: "mtia"}


def device_kinds(rows: pl.DataFrame, kinds: Kinds) -> pl.Series:
    """Return the kind of device of each device row: by its own category, else by the runtime of its rank, else cuda.

    A rank whose launches tell no kind (no ``xpu_runtime``) has that of the rows whose category does.
    """
    own = by_value(rows["cat"], names.device_kind_of).alias("own")
    table = rows.select(RUN).with_columns(own)
    for launched in (_told(kinds.launches, names.launched_kind_of), _told(rows, names.device_kind_of)):
        table = table.join(launched, on=RUN, how="left", maintain_order="left")
        table = table.with_columns(pl.coalesce("own", "told").alias("own")).drop("told")
    return table["own"].fill_null("cuda").alias("device_kind")


def _told(events: pl.DataFrame, kind_of: names.KindOf) -> pl.DataFrame:
    """Return the kind of device that categories of each recording tell: rank, cycle, told; the first of several."""
    categories = events.select(*RUN, "cat").unique()
    told = categories.with_columns(by_value(categories["cat"], kind_of).alias("told")).drop_nulls("told")
    return told.group_by(RUN).agg(pl.col("told").min())


def allocator_device(instants: pl.DataFrame, kernels: pl.DataFrame) -> pl.DataFrame:
    """Return instants of allocators with `device`, named as the kernels (rank, cycle, device) of that device are.

    Some backends (``privateuseone``) are known by their number alone: their kind is that of the rank's kernels.
    """
    of_rank = kernels.group_by(RUN).agg(pl.col("device").str.extract("^([^:]+)", 1).min().alias("of_rank"))
    table = instants.join(of_rank, on=RUN, how="left", maintain_order="left")
    by_type = pl.col("device_type").replace_strict(DEVICE_TYPES, default=None, return_dtype=pl.String)
    kind = pl.coalesce(by_type, "of_rank", pl.lit("cuda"))
    number = pl.col("device_id").fill_null(0).clip(0)
    device = pl.when(kind == "cpu").then(pl.lit("cpu")).otherwise(pl.format("{}:{}", kind, number))
    return table.with_columns(device.alias("device")).drop("of_rank")
