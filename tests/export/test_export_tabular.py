"""Numbers survive the way out: integers whole, unknown null."""

from __future__ import annotations

import io
import json

import polars as pl
import pytest

from tracekit.export import tabular

BIG = 1_700_000_000_123_456_789  # more than a float holds

FRAME = pl.DataFrame(
    {
        "rank": [0, 1],
        "ts_ns": [BIG, None],
        "ratio": [0.5, float("nan")],
        "name": ['a"b,\n', None],
        "whole": [True, None],
    },
    schema={"rank": pl.Int32, "ts_ns": pl.Int64, "ratio": pl.Float64, "name": pl.String, "whole": pl.Boolean},
)


def as_json(frame):
    stream = io.BytesIO()
    tabular.write_json(frame, stream, table="work", about={"run": "r"})
    return json.loads(stream.getvalue(), parse_constant=pytest.fail)


def test_json_keeps_integers_and_nulls():
    assert as_json(FRAME) == {
        "format": 1,
        "table": "work",
        "run": "r",
        "rows": [
            {"rank": 0, "ts_ns": BIG, "ratio": 0.5, "name": 'a"b,\n', "whole": True},
            {"rank": 1, "ts_ns": None, "ratio": None, "name": None, "whole": None},
        ],
    }


@pytest.mark.parametrize("frame", [FRAME.clear(), pl.DataFrame()])
def test_json_of_no_rows(frame):
    assert as_json(frame)["rows"] == []


def test_json_of_one_row():
    assert as_json(FRAME.head(1))["rows"][0]["ts_ns"] == BIG


def test_json_of_more_rows_than_are_written_at_once():
    frame = pl.DataFrame({"n": range(tabular._ROWS_AT_ONCE * 2 + 1)})
    assert [row["n"] for row in as_json(frame)["rows"]] == frame["n"].to_list()


def test_csv():
    stream = io.BytesIO()
    tabular.write_csv(FRAME.select("rank", "ts_ns", "name"), stream)
    assert stream.getvalue() == f'rank,ts_ns,name\n0,{BIG},"a""b,\n"\n1,,\n'.encode()


@pytest.mark.parametrize("frame", [FRAME, FRAME.head(1), FRAME.clear()])
def test_parquet_reads_back_the_same(frame):
    stream = io.BytesIO()
    tabular.write_parquet(frame, stream, table="work")
    stream.seek(0)
    assert pl.read_parquet(stream).equals(frame)
    stream.seek(0)
    metadata = pl.read_parquet_metadata(stream)
    assert (metadata["tracekit.format"], metadata["tracekit.table"]) == ("1", "work")
