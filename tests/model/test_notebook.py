"""A run in a notebook: what it shows, its charts, and what the tab key offers."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_runs import fake_run

import tracekit
from tracekit import table_registry
from tracekit.errors import UsageError
from tracekit.export.notebook import run_html
from tracekit.model.run import Run

ZERO2 = Path(__file__).parents[2] / "traces" / "zero2"


@pytest.fixture(scope="module")
def run():
    return tracekit.open(ZERO2, cache=False)


def test_it_shows_what_it_holds(run):
    page = run._repr_html_()
    assert "<strong>zero2</strong>" in page
    assert f"<th>ranks</th><td>{run.world_size} of {run.world_size}</td>" in page
    assert "<th>strategy</th><td>zero2</td>" in page
    assert f"<th>Ψ</th><td>{run.psi:,} parameters</td>" in page
    for table in table_registry.TABLES:
        assert f"run[&quot;{table.name}&quot;]" in page


def test_names_from_files_are_escaped():
    page = run_html(fake_run("<script>alert(1)</script>"))
    assert "<script>" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page


def test_a_table_by_its_name_in_brackets(run):
    assert run["overlap"] is run.table("overlap")
    with pytest.raises(UsageError, match="did you mean overlap"):
        run["overlpa"]
    with pytest.raises(TypeError):
        list(run)


def test_a_chart_is_the_pages(run):
    alt = pytest.importorskip("altair", reason="altair is not installed: charts cannot be made")
    assert isinstance(run.chart("overlap"), alt.TopLevelMixin)
    with pytest.raises(UsageError, match="there is no chart 'overlpa'"):
        run.chart("overlpa")


def test_the_tab_key_finds_tables(run):
    ipython = pytest.importorskip("IPython", reason="IPython is not installed: its completer cannot be asked")
    from IPython.core.completer import provisionalcompleter

    shell = ipython.core.interactiveshell.InteractiveShell()
    shell.user_ns["run"] = run
    text = 'run["model-'
    with provisionalcompleter():
        found = [completion.text for completion in shell.Completer.completions(text, len(text))]
    assert "model-states" in " ".join(found)
    with provisionalcompleter():
        attributes = [completion.text for completion in shell.Completer.completions("run.all", 7)]
    assert "allocations" in " ".join(attributes)


def test_the_tab_key_is_told_every_table():
    assert Run._ipython_key_completions_(fake_run()) == table_registry.names()
