"""Figures of the devices of one rank, each for itself: two devices are never added up into one time, nor averaged."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from tracekit.model.run import Run

# So many devices are told one by one; of more, the least and the most.
_TOLD = 3


def several_devices(run: Run, table: pl.DataFrame) -> list[str]:
    """The devices of the table, by number, where some rank has more than one; none where each has one."""
    per_rank = table.group_by("rank").agg(pl.col("device").n_unique())["device"]
    if (per_rank.max() or 0) == 1 or run.work.is_empty():
        return []
    number = pl.col("device").str.extract(r"(\d+)$", 1).cast(pl.Int64, strict=False)
    return table.select("device", number.alias("number")).unique().sort("number", "device")["device"].to_list()


def by_device(run: Run, table: pl.DataFrame, figure: Callable[[pl.DataFrame], tuple[float, str] | None]) -> str:
    """The figure of the table in words, or that of each device in it where some rank has more than one.

    `figure` returns a value to order by and its words, None where there is none; it is not asked about no rows.
    """
    devices = several_devices(run, table)
    if not devices:
        found = figure(table)
        return found[1] if found else "nothing"
    told = [(*found, device) for device in devices if (found := figure(table.filter(device=device)))]
    if len(told) > _TOLD:
        least, most = min(told), max(told)
        return f"from {least[1]} on {least[2]} to {most[1]} on {most[2]}"
    return ", ".join(f"{words} on {device}" for _, words, device in told)
