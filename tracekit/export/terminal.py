"""A frame as a table that a person reads: units in the headers, unknown as –, names made harmless.

Times are shown as milliseconds (or what fits), absolute times as offsets from the table's first, bytes as MiB (or what
fits), multiples of Ψ as they are. Labels that are the same in every row are said once below the table, and columns
that are unknown throughout or do not fit the terminal are named there; those of the least worth leave first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from tracekit.layer_names import ROOT
from tracekit.text import plain, plain_line
from tracekit.units import ABSENT, BYTE_UNITS, TIME_UNITS, Units, largest_unit

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rich.console import Console

# Columns that hold sentences of ours, not names from files: they are not cut.
_SENTENCES = ("advice", "done", "reason", "what")
_INSTANTS = ("start_ns", "end_ns", "ts_ns", "launched_ns", "issued_ns")
# Numbers that name or sort rather than measure.
_PLACES = {"rank", "step", "cycle", "first_step", "last_step", "index", "call", "pid", "tid", "seq", "address"}
_LABELS = _PLACES | {"group_size", "num_ranks", "passes", "dp", "stage"}
_MOST_DECIMALS = 3
# Which columns a narrow terminal keeps, the first before the others: what a row is of, what it answers, what its rows
# are told apart by. After these come other times, bytes and ratios, then other numbers, then words and places.
_WORTH = (
    {"rank", "step", "term", "edit", "file", "name", "what", "level", "component", "host", "lane"},
    {"exposed_ns", "overlap_ratio", "dur_ns", "idle_ns", "wait_ns", "psi", "complete", "cause", "verdict"},
    {"allocated_bytes", "bytes", "held_bytes", "difference", "hidden_by", "hidden_ns"},
    {"kind"},
    {"layer", "phase", "device", "stage", "micro_batch", "category"},
    {"comm_ns", "overlapped_ns", "transfer_ns", "payload_bytes", "step_ns", "compute_ns"},
)


@dataclass(frozen=True)
class Column:
    """One column as text: its header with the unit, and its cells."""

    name: str
    header: str
    cells: list[str]
    numeric: bool

    @property
    def says_the_same(self) -> bool:
        """True where it is a label with one value throughout, or unknown throughout."""
        return len(set(self.cells)) == 1 and (not self.numeric or self.name in _LABELS or self.cells[0] == ABSENT)

    @property
    def width(self) -> int:
        from rich.cells import cell_len

        return max(cell_len(self.header), *(cell_len(cell) for cell in self.cells), 1)


def columns(frame: pl.DataFrame, units: Mapping[str, tuple[int, str]] | None = None) -> list[Column]:
    """The frame's columns as text. `units` overrides the unit of a column: `{"memory_bytes": (10**9, "GB")}`."""
    first, last = _instants(frame)
    instant_unit = _unit_of(last - first, TIME_UNITS)
    given = dict.fromkeys(_INSTANTS, instant_unit) | dict(units or {})
    return [_column(series, first, given.get(series.name)) for series in frame.iter_columns()]


def draw(
    frame: pl.DataFrame,
    console: Console,
    *,
    title: str = "",
    units: Mapping[str, tuple[int, str]] | None = None,
    keep: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> None:
    """Prints the table and `notes` under it. Labels in `keep` stay even where they are the same throughout."""
    from rich.table import Table
    from rich.text import Text

    every = columns(frame, units)
    shown, constant = split_constant(every, frame.height, keep)
    fitting, hidden = _fit(shown, console.width if console.is_terminal else None)
    if title:
        console.print(Text(title, style="bold"), soft_wrap=not console.is_terminal)
    if frame.is_empty():
        console.print(Text("no rows", style="dim"), soft_wrap=True)
        return
    table = Table()
    for column in fitting:
        table.add_column(
            Text(column.header), justify="right" if column.numeric else "left", no_wrap=True, overflow="ellipsis"
        )
    for row in zip(*(column.cells for column in fitting), strict=True):
        table.add_row(*(Text(cell) for cell in row))
    console.print(table)
    for note in [*_notes(constant, hidden), *notes]:
        console.print(Text(note, style="dim"), soft_wrap=True)


def constant_notes(constant: list[Column]) -> list[str]:
    """Notes for the columns that were left out: the value of every row."""
    known = [f"{column.header} {column.cells[0]}" for column in constant if column.cells[0] != ABSENT]
    unknown = [column.name for column in constant if column.cells[0] == ABSENT]
    told = {"every row": known, "unknown throughout": unknown}
    return [f"{what}: {', '.join(entries)}" for what, entries in told.items() if entries]


def _notes(constant: list[Column], hidden: list[Column]) -> list[str]:
    notes = constant_notes(constant)
    if hidden:
        notes.append(
            f"{len(hidden)} more columns, wider than this terminal: "
            f"{', '.join(column.header for column in hidden)} (--columns picks)"
        )
    return notes


def split_constant(every: list[Column], height: int, keep: Sequence[str] = ()) -> tuple[list[Column], list[Column]]:
    """The columns worth drawing, and the labels that say the same in every row."""
    if height < 2:
        return every, []
    constant = [column for column in every if column.name not in keep and column.says_the_same]
    return [column for column in every if column not in constant], constant


def _fit(shown: list[Column], width: int | None) -> tuple[list[Column], list[Column]]:
    """The columns most worth of those that fit into `width` cells, at least one, and the rest; both in table order."""
    if width is None:
        return shown, []
    left, fitting = width - 1, set[int]()
    for index in sorted(range(len(shown)), key=lambda index: (_worth(shown[index]), index)):
        needed = shown[index].width + 3
        if needed <= left or not fitting:
            fitting.add(index)
            left -= needed
    return (
        [column for index, column in enumerate(shown) if index in fitting],
        [column for index, column in enumerate(shown) if index not in fitting],
    )


def _worth(column: Column) -> int:
    """The order in which columns claim room, least first: what a row is, what it answers, then what leads there."""
    name = column.name
    for worth, names in enumerate(_WORTH):
        if name in names:
            return worth
    if name in _INSTANTS or name in _PLACES or not column.numeric:
        return len(_WORTH) + 2
    return len(_WORTH) + (not name.endswith(("_ns", "_bytes", "_ratio")))


def _instants(frame: pl.DataFrame) -> tuple[int, int]:
    """The first and the last instant that the frame names; 0 and 0 where it names none."""
    every = [frame[name].drop_nulls() for name in _INSTANTS if name in frame.columns]
    known = [series for series in every if not series.is_empty()]
    edges = [int(edge) for series in known for edge in (series.item(series.arg_min()), series.item(series.arg_max()))]
    return min(edges, default=0), max(edges, default=0)


def _column(series: pl.Series, first: int, unit: tuple[int, str] | None) -> Column:
    name, dtype = series.name, series.dtype
    if dtype == pl.Null:
        return Column(name, name, [ABSENT] * series.len(), numeric=False)
    if not dtype.is_numeric():
        root = ROOT if name == "layer" else ""
        return Column(name, name, [root if value == "" else _word(value, name) for value in series], numeric=False)
    if name in _INSTANTS:
        series = series - first
    if name.endswith("_ns"):
        scale, label = unit or _unit(series, TIME_UNITS)
        suffix = f"{label} from first" if name in _INSTANTS else label
        return _scaled(series, name, f"{name.removesuffix('_ns')} {suffix}", scale)
    if name.endswith("bytes"):
        scale, label = unit or _unit(series, BYTE_UNITS)
        return _scaled(series, name, f"{name.removesuffix('_bytes')} {label}", scale)
    if name.endswith("_ratio") or name == "coverage":
        return _scaled(series * 100, name, f"{name.removesuffix('_ratio')} %", 1)
    return _scaled(series, name, "Ψ" if name == "psi" else name, 1)


def _scaled(series: pl.Series, name: str, header: str, scale: int) -> Column:
    """Numbers divided by the scale, with as many decimals as the smallest needs for four digits, at most three."""
    values = [None if value is None else value / scale if scale != 1 else value for value in series]
    if scale == 1 and series.dtype.is_integer():
        write: Callable[[Any], str] = _whole(name)
    else:
        sizes = [abs(value) for value in values if value]
        decimals = _MOST_DECIMALS if not sizes else 3 - math.floor(math.log10(min(sizes)))
        decimals = max(0, min(_MOST_DECIMALS, decimals))
        write = f"{{:,.{decimals}f}}".format
    return Column(name, header, [ABSENT if value is None else write(value) for value in values], numeric=True)


def _whole(name: str) -> Callable[[Any], str]:
    """Counts get thousands separators; numbers that only name something do not."""
    return str if name in _LABELS else "{:,}".format


def _unit(series: pl.Series, units: Units) -> tuple[int, str]:
    """The unit that suits the largest value."""
    known = series.drop_nulls().abs()
    return _unit_of(0 if known.is_empty() else int(known.item(known.arg_max())), units)


def _unit_of(size: int, units: Units) -> tuple[int, str]:
    """The largest unit that `size` fills; ms or MiB, as most columns beside it, for nothing at all."""
    return largest_unit(size, units) if size else units[2]


def _word(value: Any, name: str) -> str:
    if value is None:
        return ABSENT
    if isinstance(value, bool):
        return "yes" if value else "no"
    return plain_line(str(value)) if name in _SENTENCES else plain(str(value))
