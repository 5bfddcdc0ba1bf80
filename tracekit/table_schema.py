"""Columns of tables: name, type, unit, when they are null and what they say; schemas and groupings made of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import polars as pl

from tracekit.errors import UsageError
from tracekit.text import suggestion

if TYPE_CHECKING:
    from collections.abc import Sequence

# The unit that a name tells, by its end; a column whose unit is another says so itself.
_UNITS = {
    "_bytes_per_s": "bytes/s",
    "_ns": "ns",
    "bytes": "bytes",
    "numel": "elements",
    "psi": "Ψ",
    "ratio": "0 to 1",
    "share": "0 to 1",
    "coverage": "0 to 1",
    "_percent": "%",
}


@dataclass(frozen=True)
class Column:
    """One column of a table.

    `meaning` says what it holds and, unless it is read from the trace, how it is computed. `null` says when it is null;
    empty: never. A `name` such as `*_bytes` stands for columns whose names the run decides.
    """

    name: str
    dtype: pl.DataType | type[pl.DataType]
    meaning: str
    null: str = ""
    own_unit: str = ""

    @property
    def unit(self) -> str:
        """The unit of its values; empty for names, numbers of things and counts."""
        return self.own_unit or next((unit for end, unit in _UNITS.items() if self.name.endswith(end)), "")

    def but(self, **changes: Any) -> Column:
        """The same column with other words, as a table needs them."""
        return replace(self, **changes)


class Schema(pl.Schema):
    """Types of a table's columns by name, as polars takes them, and the columns themselves.

    `columns` are those that every run has, `varying` those whose names the run decides.
    """

    def __init__(self, *columns: Column) -> None:
        """Hold the columns in the order in which the table has them."""
        self.columns: dict[str, Column] = {}
        self.varying: tuple[Column, ...] = tuple(column for column in columns if "*" in column.name)
        super().__init__()
        for column in columns:
            if "*" not in column.name:
                self.columns[column.name] = column
                self[column.name] = column.dtype

    def find(self, name: str) -> Column | None:
        """The column of that name, or the one that stands for it; None where there is neither."""
        fits = (column for column in self.varying if fnmatchcase(name, column.name))
        return self.columns.get(name) or next(fits, None)


@dataclass(frozen=True)
class Groupings:
    """Columns that a table can be grouped by.

    `default` are its keys where nothing is asked for. Columns that are asked for take their place, but for those in
    `always`, which stay.
    """

    columns: tuple[Column, ...]
    default: tuple[str, ...]
    always: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        """The columns that can be asked for."""
        return [column.name for column in self.columns]

    def keys(self, by: Sequence[str] | None, table: str) -> list[str]:
        """The key columns of `table` grouped by `by`; by its default keys where that is None.

        Raises:
            UsageError: the table cannot be grouped by one of them.
        """
        if by is None:
            return list(self.default)
        unknown = next((name for name in by if name not in self.names), None)
        if unknown is not None:
            raise UsageError(f"{table} cannot be grouped by {unknown!r}: {suggestion(unknown, self.names)}")
        return list(dict.fromkeys((*self.always, *by)))
