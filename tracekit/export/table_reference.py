"""The reference of all tables as Markdown, made of the registry: `python -m tracekit.export.table_reference FILE`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tracekit import table_registry

if TYPE_CHECKING:
    from tracekit.table_registry import Table
    from tracekit.table_schema import Column, Groupings

_OPENING = """\
# Tables

<!-- Made by `make docs-tables` from the registry (tracekit/table_registry.py) and the schemas beside each table. -->

Every table has one name: `tracekit show TABLE RUN` prints it, `run.table("TABLE")` is the polars frame, and
`report.json` holds its rows. Times are whole nanoseconds, sizes whole bytes, and what is not known is null.
`tracekit.tables()` lists the tables; `Table.schema.columns` holds what is said here of their columns.
"""


def page() -> str:
    """The whole page: an index, then a section a table."""
    tables = table_registry.tables()
    index = "\n".join(f"- [{table.name}](#{table.name}): {table.answers}" for table in tables)
    return "\n".join([_OPENING, index, *(_section(table) for table in tables), ""])


def _section(table: Table) -> str:
    """Section of one table: its question and needs, its groupings, its columns."""
    told = [f"{table.answers[0].upper()}{table.answers[1:]}.", f"Needs {_needs(table)}."]
    if table.groupings:
        told.append(_grouped(table.groupings))
    if not table.in_report:
        told.append("Not in `report.json` by default.")
    columns = [*table.schema.columns.values(), *table.schema.varying]
    head = ["| column | type | unit | null when | meaning |", "|---|---|---|---|---|"]
    return "\n".join(["", f"## {table.name}", "", " ".join(told), "", *head, *map(_row, columns)])


def _needs(table: Table) -> str:
    if table.needs == table_registry.RANK:
        return "one rank: the rows of a rank are made from its file alone"
    return "all ranks: of those that are not at hand nothing is counted, and what only they could tell is null"


def _grouped(groupings: Groupings) -> str:
    names = ", ".join(f"`{name}`" for name in groupings.names if name not in groupings.always)
    default = ", ".join(f"`{name}`" for name in groupings.default)
    beside = ", ".join(f"`{name}`" for name in groupings.always)
    how = f"beside {beside}" if beside else f"in place of {default}"
    return f"`--by` groups it by any of {names}, {how}."


def _row(column: Column) -> str:
    kind = str(column.dtype() if isinstance(column.dtype, type) else column.dtype)
    cells = (f"`{column.name}`", kind, column.unit, column.null, column.meaning)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def main(args: list[str]) -> None:
    """Writes the page to the file that is named."""
    Path(args[0]).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
