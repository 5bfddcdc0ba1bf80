"""What the registry says of tables' columns, against the frames that tables are."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
from fakes import run_of
from polars.testing import assert_frame_equal

import tracekit
from tracekit.errors import UsageError
from tracekit.table_registry import RANK, TABLES, find, names
from tracekit.table_schema import Column, Groupings, Schema

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SAMPLES = sorted(path for path in (ROOT / "traces").iterdir() if path.is_dir())
GROUPED = [table for table in TABLES if table.groupings]


def needs_hta(name):
    if name.startswith("hta-"):
        pytest.importorskip("hta", reason="HTA is not installed: its tables cannot be made")


@pytest.fixture(scope="module", params=SAMPLES, ids=[path.name for path in SAMPLES])
def sample(request):
    return tracekit.open(request.param, cache=False)


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """A trace of one event, which is of no step, no collective and no memory."""
    path = tmp_path_factory.mktemp("bare") / "trace.json"
    event = {"ph": "X", "cat": "python_function", "name": "f", "pid": 1, "tid": 1, "ts": 1, "dur": 1}
    path.write_text(json.dumps({"traceEvents": [event]}))
    return tracekit.open(path, cache=False)


def column_of(table, name):
    """The column by the schema, or as the table can be grouped by it."""
    groupings = table.groupings
    more = {column.name: column for column in groupings.columns} if groupings else {}
    return table.schema.find(name) or more.get(name)


def check(table, frame):
    """Every column is described with its type, and nulls only where the description says when."""
    for name, dtype in frame.schema.items():
        column = column_of(table, name)
        assert column is not None, f"{table.name}.{name} is not described"
        assert column.dtype == dtype, f"{table.name}.{name}"
        assert column.null or not frame[name].null_count(), f"{table.name}.{name} has nulls: say when"


def check_order(table, frame):
    """Exactly the columns of the schema, in its order; varying ones may stand among them."""
    fixed = [name for name in frame.columns if name in table.schema.columns]
    assert fixed == list(table.schema.columns), table.name


@pytest.mark.parametrize("name", names())
def test_tables_of_samples_are_as_described(name, sample):
    needs_hta(name)
    frame = sample.table(name)
    check_order(find(name), frame)
    check(find(name), frame)


@pytest.mark.parametrize("name", names())
def test_tables_of_a_bare_run_are_as_described(name, bare):
    needs_hta(name)
    assert bare.table(name).schema == find(name).schema
    check(find(name), bare.table(name))


@pytest.mark.parametrize("name", [table.name for table in TABLES if not table.columns])
def test_tables_of_empty_tables_are_as_described(name):
    needs_hta(name)
    frame = run_of().table(name)
    assert (frame.height, frame.schema) == (0, find(name).schema)


@pytest.mark.parametrize("table", TABLES, ids=names())
def test_every_column_has_a_sentence_and_a_unit_where_its_name_tells_one(table):
    columns = [*table.schema.columns.values(), *table.schema.varying]
    assert columns
    for column in columns:
        assert column.meaning.endswith("."), column
        assert not column.null.endswith("."), column
        if column.name.endswith(("_ns", "_bytes", "_numel")):
            assert column.unit, column


@pytest.mark.parametrize("table", GROUPED, ids=[table.name for table in GROUPED])
def test_a_table_is_grouped_by_each_column_it_says(table, sample):
    measures = [name for name in table.schema if name not in table.groupings.default]
    for name in table.groupings.names:
        frame = sample.table(table.name, by=(name,))
        keys = list(dict.fromkeys((*table.groupings.always, name)))
        assert frame.columns == [*keys, *measures]
        check(table, frame)


def test_tables_that_can_be_grouped():
    assert [table.name for table in GROUPED] == ["overlap", "idle", "volume", "ledger", "exposure", "peak"]
    assert all(isinstance(table.schema, Schema) for table in TABLES)


def test_a_wrong_grouping_names_what_there_is(bare):
    with pytest.raises(UsageError, match=r"exposure cannot be grouped by 'causes': did you mean cause\? \(there are "):
        bare.table("exposure", by=["causes"])
    with pytest.raises(
        UsageError, match="steps has no --by: only overlap, idle, volume, ledger, exposure, peak can be grouped"
    ):
        bare.table("steps", by=["rank"])


def test_keys_of_a_grouping():
    columns = tuple(Column(name, int, "x.") for name in "abc")
    replaced = Groupings(columns, default=("a", "b"))
    added = Groupings(columns, default=("a",), always=("a",))
    assert (replaced.keys(None, "t"), replaced.keys(["c"], "t"), replaced.keys([], "t")) == (["a", "b"], ["c"], [])
    assert (added.keys(None, "t"), added.keys(["c", "a"], "t")) == (["a"], ["a", "c"])


@pytest.fixture(scope="module")
def whole_and_alone():
    """A run of four ranks, and one of its ranks."""
    return [tracekit.open(ROOT / "traces" / path, cache=False) for path in ("hsdp", "hsdp/rank1.json.gz")]


@pytest.mark.parametrize("name", [table.name for table in TABLES if table.needs == RANK])
def test_a_ranks_rows_need_its_file_alone(name, whole_and_alone):
    needs_hta(name)
    rows, own = (run.table(name).filter(pl.col("rank") == 1) for run in whole_and_alone)
    if name == "repairs":  # some are of the run as a whole
        rows, own = (frame.drop_nulls("file") for frame in (rows, own))
    if name == "work":  # calls are counted over all ranks
        rows, own = (frame.drop("call") for frame in (rows, own))
    assert_frame_equal(rows, own, rel_tol=1e-12)
