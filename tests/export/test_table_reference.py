"""docs/tables.md is what the registry says."""

from __future__ import annotations

from pathlib import Path

from tracekit import table_registry
from tracekit.export import table_reference

PAGE = Path(__file__).parents[2] / "docs" / "tables.md"


def test_the_page_is_not_stale():
    assert PAGE.read_text("utf-8") == table_reference.page(), "docs/tables.md is stale: run make docs-tables"


def test_every_table_and_column_is_in_it():
    sections = {part.partition("\n")[0]: part for part in PAGE.read_text("utf-8").split("\n## ")[1:]}
    assert list(sections) == table_registry.names()
    for table in table_registry.TABLES:
        for column in (*table.schema.columns.values(), *table.schema.varying):
            assert f"| `{column.name}` | {column.dtype} |" in sections[table.name]


def test_it_tells_what_a_table_needs_and_how_it_is_grouped(tmp_path):
    table_reference.main([str(tmp_path / "page.md")])
    page = (tmp_path / "page.md").read_text("utf-8")
    assert "any of `layer`, `phase`, `dtype`, `group`, `group_size`, beside `rank`, `step`, `kind`, `axis`." in page
    assert "Needs all ranks: " in page
    assert "Not in `report.json` by default." in page
