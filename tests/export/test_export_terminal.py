"""What a person sees: units in headers, – for unknown, and no name that can do harm."""

from __future__ import annotations

import io
from functools import cache
from pathlib import Path

import polars as pl
import pytest
from rich.cells import cell_len
from rich.console import Console

import tracekit
from tracekit.export import terminal
from tracekit.table_registry import TABLES


@cache
def sample_run():
    return tracekit.open(Path(__file__).parents[2] / "traces" / "fsdp2")


def shown(name, values, dtype=pl.Int64, units=None):
    column = terminal.columns(pl.DataFrame({name: pl.Series(values, dtype=dtype)}), units)[0]
    return column.header, column.cells


def drawn(frame, width=None, **options):
    stream = io.StringIO()
    console = Console(
        file=stream, width=width or 10_000, force_terminal=width is not None, color_system=None, markup=False
    )
    terminal.draw(frame, console, **options)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("name", "values", "header", "cells"),
    [
        ("dur_ns", [1_500_000, None, 2_000_000], "dur ms", ["1.500", "–", "2.000"]),
        ("dur_ns", [12, 999], "dur ns", ["12", "999"]),
        ("dur_ns", [2_500, 1_000], "dur µs", ["2.500", "1.000"]),
        ("dur_ns", [1_500_000_000, 1], "dur s", ["1.500", "0.000"]),
        ("wire_bytes", [3 * 2**20, 2**19], "wire MiB", ["3.000", "0.500"]),
        ("delta_bytes", [-(2**20), 2**10], "delta MiB", ["-1.000", "0.001"]),
        ("bytes", [100, 7], "bytes B", ["100", "7"]),
        ("start_ns", [1_000_000_000_000, 1_000_002_000_000], "start ms from first", ["0.000", "2.000"]),
        ("numel", [1_234_567, None], "numel", ["1,234,567", "–"]),
        ("step", [12345], "step", ["12345"]),
        ("dur_ns", [], "dur ms", []),
        ("dur_ns", [None], "dur ms", ["–"]),
    ],
)
def test_units(name, values, header, cells):
    assert shown(name, values) == (header, cells)


def test_ratios_are_percent_and_psi_is_a_multiple():
    assert shown("overlap_ratio", [0.31234, None], pl.Float64) == ("overlap %", ["31.23", "–"])
    assert shown("psi", [2.93, 3.0], pl.Float64) == ("Ψ", ["2.930", "3.000"])


def test_a_unit_can_be_given():
    assert shown("memory_bytes", [26_250_000_000], units={"memory_bytes": (10**9, "GB")}) == ("memory GB", ["26.25"])


def test_instants_share_one_origin():
    frame = pl.DataFrame({"start_ns": [5_000_000], "end_ns": [8_000_000]})
    assert [column.cells for column in terminal.columns(frame)] == [["0.000"], ["3.000"]]


def test_words():
    assert shown("reason", ["cut", None], pl.String) == ("reason", ["cut", "–"])
    assert shown("complete", [True, False], pl.Boolean) == ("complete", ["yes", "no"])
    assert shown("axis", [None, None], pl.Null) == ("axis", ["–", "–"])


@pytest.mark.parametrize(
    ("name", "harmless"),
    [
        ("[bold red]x[/]", "[bold red]x[/]"),
        ("\x1b[31mred\x07", "\\x1b[31mred\\x07"),
        ("two\nlines\r", "two\\x0alines\\x0d"),
        ("\u202egnp", "\\u202egnp"),
        ("\x9b0m", "\\x9b0m"),
        ("层.0", "层.0"),
        ("x" * 61, "x" * 59 + "…"),
    ],
)
def test_names_come_from_files_and_are_made_harmless(name, harmless):
    frame = pl.DataFrame({"name": [name, "y"]})
    text = drawn(frame)
    assert harmless in text
    assert "\x1b" not in text


def test_empty_and_one_row_frames():
    frame = pl.DataFrame({"rank": [0], "dur_ns": [5]})
    assert "no rows" in drawn(frame.clear())
    assert "every row" not in drawn(frame)
    assert drawn(pl.DataFrame()).strip() == "no rows"


def test_what_every_row_says_is_said_once():
    frame = pl.DataFrame({"rank": [0, 0], "step": [1, 2], "device": ["cpu", "cpu"], "idle_ns": [0, 0]})
    text = drawn(frame)
    assert "idle ms" in text.splitlines()[1]
    assert text.endswith("every row: rank 0, device cpu\n")
    assert "cpu" not in text.splitlines()[1]
    assert "every row: device cpu" in drawn(frame, keep=("rank",))


def test_what_no_row_knows_is_named_once():
    frame = pl.DataFrame({"step": [1, 2], "axis": [None, None]}, schema={"step": pl.Int64, "axis": pl.String})
    assert drawn(frame).endswith("unknown throughout: axis\n")


def test_the_root_unit_has_a_name_to_read():
    assert shown("layer", ["", "layers.0", None], pl.String) == ("layer", ["(root)", "layers.0", "–"])
    assert shown("name", [""], pl.String) == ("name", [""])


def test_columns_that_do_not_fit_a_terminal_are_named():
    frame = pl.DataFrame({f"column_{i}": [i, i + 1] for i in range(9)})
    text = drawn(frame, width=40)
    assert max(len(line) for line in text.splitlines() if "│" in line) <= 40
    assert "6 more columns, wider than this terminal: column_3," in text.replace("\n", " ")
    assert "more columns" not in drawn(frame)


OVERLAP = {
    "rank": [0, 1],
    "step": [3, 4],
    "layer": ["layers.0.attn.wq", "layers.1.attn.wq"],
    "kind": ["all_gather", "reduce_scatter"],
    "num_collectives": [12_000, 13_000],
    "comm_ns": [5_000_000, 6_000_000],
    "overlapped_ns": [1_000_000, 2_000_000],
    "exposed_ns": [4_000_000, 4_000_001],
    "overlap_ratio": [0.2, 0.3],
}


@pytest.mark.parametrize(
    ("width", "kept", "left"),
    [
        (40, ["exposed ms", "overlap %"], ["kind", "layer", "num_collectives", "comm ms", "overlapped ms"]),
        (60, ["kind", "exposed ms", "overlap %"], ["layer", "num_collectives", "overlapped ms"]),
        (80, ["kind", "exposed ms", "overlap %", "layer"], ["num_collectives", "comm ms", "overlapped ms"]),
        (140, ["num_collectives", "layer", "comm ms", "overlapped ms", "exposed ms", "overlap %"], []),
    ],
)
def test_a_narrow_terminal_keeps_what_a_table_answers(width, kept, left):
    """Left-out columns are named as in the header."""
    table, _, rest = drawn(pl.DataFrame(OVERLAP), width=width).partition("└")
    header = [cell.strip() for cell in table.splitlines()[1].split("┃")[1:-1]]
    assert [name for name in kept if name not in header] == []
    assert [name for name in left if name in header] == []
    named = rest.partition("terminal: ")[2].partition(" (--columns")[0].replace("\n", " ").split(", ")
    assert [name for name in left if name not in named] == []


@pytest.mark.parametrize("width", [40, 80, 120])
@pytest.mark.parametrize("table", [table for table in TABLES if not table.name.startswith("hta")], ids=lambda t: t.name)
def test_every_table_fits_and_names_what_it_leaves_out(table, width):
    frame = table.make(sample_run()).head(4)
    text = drawn(frame, width=width)
    assert all(cell_len(line) <= width for line in text.splitlines() if "│" in line or "┃" in line)
    shown, _ = terminal.split_constant(terminal.columns(frame), frame.height)
    header, flat = next((line for line in text.splitlines() if "┃" in line), ""), " ".join(text.split())
    missing = [column.header for column in shown if column.header not in header and column.header not in flat]
    assert frame.is_empty() or len(missing) <= ("…" in header)


def test_numbers_stand_right_and_words_left():
    lines = drawn(pl.DataFrame({"numel": [1, 1000], "kind": ["all_gather", "x"]})).splitlines()
    assert "│     1 │ all_gather │" in lines
    assert "│ 1,000 │ x          │" in lines
