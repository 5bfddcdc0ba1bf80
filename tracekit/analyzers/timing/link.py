"""Transfer time of collectives by size: what was measured, the fit beside it, bandwidth as nccl-tests defines it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit import common_columns as c
from tracekit.collective_kinds import PASSES
from tracekit.table_schema import Column, Schema
from tracekit.timing.cost import Fit, crossings, fit
from tracekit.units import counted

if TYPE_CHECKING:
    from tracekit.model.run import Run

_NO_AXIS = "its axis is unknown: then calls are told apart by their group"
LINK_SCHEMA = Schema(
    c.KIND.but(meaning="Collective that the backend ran: gloo, for one, emulates reduce_scatter by all_reduce."),
    c.AXIS.but(null=_NO_AXIS),
    c.GROUP.but(null="the axis is known, or the trace names no group"),
    c.GROUP_SIZE.but(null=""),
    Column("bytes", pl.Int64, "Payload of these calls."),
    Column("num_calls", pl.Int64, "Number of calls of that size, each counted once for all ranks."),
    Column(
        "num_shared",
        pl.Int64,
        "Those of them beside which another call of the same rank ran for more than a twentieth of their transfer.",
    ),
    Column("transfer_ns", pl.Int64, "Median of their transfer times, waits left out."),
    Column("fitted_ns", pl.Int64, "Time that α + c·√s + β·s gives them."),
    Column("low_ns", pl.Int64, "Nine of ten such calls take longer, by fits that had not seen their size."),
    Column("high_ns", pl.Int64, "Nine of ten such calls take no longer, by fits that had not seen their size."),
    Column("algbw", pl.Int64, "Payload over the median transfer time, rounded down.", own_unit="bytes/s"),
    Column(
        "busbw",
        pl.Int64,
        "That times 2(n-1)/n for an all_reduce and (n-1)/n for the others: what a link must carry (nccl-tests).",
        own_unit="bytes/s",
    ),
    Column("alpha_ns", pl.Float64, "α of the fit: what a call takes whatever its size."),
    Column("c", pl.Float64, "c of the fit, which grows with the root of the size.", own_unit="ns/√byte"),
    Column("beta", pl.Float64, "β of the fit, which grows with the size.", own_unit="ns/byte"),
    Column("coverage", pl.Float64, "Share of the calls of this kind and axis that the fit rests on."),
    Column("fitted_on", pl.String, "Number of calls and sizes that the fit rests on."),
)
_KEY = ["kind", "axis", "group", "group_size"]
# Share of a transfer beside which another may run without counting as sharing the link.
_ALONE = 0.05


def link(run: Run) -> pl.DataFrame:
    """A row a kind, axis and size of what the backend ran: LINK_SCHEMA, by size.

    Calls of which the transfer time is unknown (a rank of the group is missing) and batched transfers are left out; of
    the rest the fit takes those beside which no other call of the rank ran or, where there is none, all.
    """
    rows = [
        _row(key, made, sizes)
        for key, made in _made(run).items()
        for sizes in _by_size(_calls_of(_calls(run), key)).iter_rows(named=True)
    ]
    return pl.DataFrame(rows, schema=LINK_SCHEMA)


def fits(run: Run) -> dict[tuple[str, str], Fit]:
    """The cost of each collective that the backend ran, by its kind and axis (its group where that is unknown)."""
    return {(kind, axis or group or ""): made for (kind, axis, group, _), made in _made(run).items()}


def _made(run: Run) -> dict[tuple[str, str | None, str | None, int], Fit]:
    """The fit of each kind, axis, group and group size; of one kind and axis the larger group comes last."""
    calls = _calls(run)
    return {
        (kind, axis, group, ranks): _fit(_calls_of(calls, (kind, axis, group, ranks)), kind, ranks, axis or group)
        for kind, axis, group, ranks in calls.select(_KEY).unique().sort(_KEY).iter_rows()
    }


def _fit(calls: pl.DataFrame, kind: str, ranks: int, where: str | None) -> Fit:
    alone = calls.filter(~pl.col("shared"))
    used = calls if alone.is_empty() else alone
    source = f"{kind}{f' on {where}' if where else ''} of this run"
    if alone.is_empty():
        source += f", of which {counted(calls.height, 'call')} ran beside others and so hold shared time"
    return fit(used["bytes"].to_list(), used["transfer_ns"].to_list(), kind=kind, ranks=ranks, source=source)


def _calls(run: Run) -> pl.DataFrame:
    """Calls whose size and transfer time are known, each once: _KEY, bytes, transfer_ns and whether one is `shared`."""
    ranks = pl.coalesce("group_size", "num_needed").cast(pl.Int32)
    kind = pl.coalesce("backend_kind", "kind")
    known = pl.col("batch").is_null() & (pl.col("transfer_ns") > 0) & (pl.col("payload_bytes") > 0) & (ranks > 1)
    return (
        _with_shared(run.collectives)
        .filter(known, kind.is_in(list(PASSES)))
        .with_columns(kind.alias("kind"), ranks.alias("group_size"))
        .with_columns(pl.when(pl.col("axis").is_null()).then("group").alias("group"))
        .group_by("match", *_KEY, pl.col("payload_bytes").alias("bytes"), maintain_order=True)
        .agg(pl.col("transfer_ns").first(), pl.col("shared").any())
    )


def _with_shared(rows: pl.DataFrame) -> pl.DataFrame:
    """The collectives with `shared`: another one of the same rank ran while it transferred, waits left out."""
    end = pl.col("start_ns") + pl.col("dur_ns")
    lasts = pl.coalesce("transfer_ns", "dur_ns")
    place = ["rank", "cycle", "device"]
    rows = rows.drop_nulls("start_ns").with_columns((end - lasts).alias("from"), end.alias("end")).sort("from", "end")
    before = (pl.col("end").cum_max().shift(1).over(place) - pl.col("from")).fill_null(0)
    after = (pl.col("end") - pl.col("from").shift(-1).over(place)).fill_null(0)
    return rows.with_columns((pl.max_horizontal(before, after) > _ALONE * lasts).alias("shared"))


def _calls_of(calls: pl.DataFrame, key: tuple[str, str | None, str | None, int]) -> pl.DataFrame:
    return calls.filter(pl.col(name).eq_missing(pl.lit(value)) for name, value in zip(_KEY, key, strict=True))


def _by_size(calls: pl.DataFrame) -> pl.DataFrame:
    return (
        calls.group_by("bytes")
        .agg(
            pl.len().alias("num_calls"),
            pl.col("shared").sum().alias("num_shared"),
            pl.col("transfer_ns").median().round().cast(pl.Int64),
            pl.lit(calls.height).alias("of"),
        )
        .sort("bytes")
    )


def _row(key: tuple[str, str | None, str | None, int], made: Fit, sizes: dict[str, int]) -> dict[str, object]:
    """One row of LINK_SCHEMA from a size's medians and the fit of its kind."""
    kind, axis, group, ranks = key
    nbytes, taken = sizes["bytes"], sizes["transfer_ns"]
    _, low, high = made.time_ns(nbytes)
    rate = nbytes * 1_000_000_000 // taken
    return {
        "kind": kind,
        "axis": axis,
        "group": group,
        "group_size": ranks,
        "bytes": nbytes,
        **{name: sizes[name] for name in ("num_calls", "num_shared", "transfer_ns")},
        "fitted_ns": round(made.curve.ns(nbytes)),
        "low_ns": low,
        "high_ns": high,
        "algbw": rate,
        "busbw": int(rate * crossings(kind, ranks)),
        "alpha_ns": made.alpha_ns,
        "c": made.c,
        "beta": made.beta,
        "coverage": made.num_calls / sizes["of"],
        "fitted_on": made.coverage.removeprefix("fitted on "),
    }
