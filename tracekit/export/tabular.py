"""A frame as JSON, CSV or Parquet. Values stay as they are: integers whole, unknown null."""

from __future__ import annotations

from io import BytesIO
from typing import IO, TYPE_CHECKING, Any

import msgspec

from tracekit.text import plain_line

if TYPE_CHECKING:
    from collections.abc import Mapping

    import polars as pl

FORMAT_VERSION = 1
"""Of the JSON object and of Parquet's metadata. 1: the first."""

_ROWS_AT_ONCE = 20_000


def write_json(frame: pl.DataFrame, stream: IO[bytes], *, table: str, about: Mapping[str, Any]) -> None:
    """Writes `{"format":1,"table":…,**about,"rows":[{column:value}]}`, a row a line."""
    head = msgspec.json.encode({"format": FORMAT_VERSION, "table": table, **about})
    stream.write(head[:-1] + b',"rows":[')
    encode = msgspec.json.Encoder().encode
    separator = b"\n"
    for part in frame.iter_slices(_ROWS_AT_ONCE):
        for row in part.iter_rows(named=True):
            stream.write(separator + encode(row))
            separator = b",\n"
    stream.write(b"\n]}\n" if frame.height else b"]}\n")


def write_csv(frame: pl.DataFrame, stream: IO[bytes]) -> None:
    """Writes a header and a line a row; unknown is an empty field."""
    # Through memory, so that a reader that went away is Python's BrokenPipeError and not an error of polars.
    stream.write(frame.clear().write_csv().encode())
    for part in frame.iter_slices(_ROWS_AT_ONCE):
        stream.write(part.write_csv(include_header=False).encode())


def defused(frame: pl.DataFrame) -> pl.DataFrame:
    """The frame with an apostrophe before text that a spreadsheet would run: what begins with = + - @, tab or CR."""
    import polars as pl

    text = pl.selectors.string()
    runs = text.str.contains(r"^[=+\-@\t\r]")
    return frame.with_columns(pl.when(runs).then(pl.lit("'") + text).otherwise(text).name.keep())


def printable(frame: pl.DataFrame) -> pl.DataFrame:
    """The frame with text spelt out that a terminal would act on."""
    import polars as pl

    columns = [column for column in frame.get_columns() if column.dtype == pl.String]
    texts = {column.name: [text if text is None else plain_line(text) for text in column] for column in columns}
    return frame.with_columns(pl.Series(name, values, dtype=pl.String) for name, values in texts.items())


def write_parquet(frame: pl.DataFrame, stream: IO[bytes], *, table: str) -> None:
    """Writes Parquet whose metadata names the table and the format version."""
    held = BytesIO()
    frame.write_parquet(held, metadata={"tracekit.format": str(FORMAT_VERSION), "tracekit.table": table})
    stream.write(held.getbuffer())
