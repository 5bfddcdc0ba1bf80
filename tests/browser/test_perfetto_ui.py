from __future__ import annotations

import json

import pytest

pytestmark = pytest.mark.browser

#: In the UI's own words: the trace is parsed and every plugin has drawn its tracks.
LOADED = "globalThis.app && app.trace && app.trace.workspace.flatTracks.some(track => track.name === 'step')"


@pytest.fixture
def page(open_page, served_trace):
    page = open_page(1440, 1000)
    page.origin = served_trace.split("?")[0]
    page.goto(served_trace)
    page.wait_for_function(LOADED)
    return page


def query(page, sql, **columns):
    """Rows of a query to the trace processor in the page; columns are given as "num" or "str"."""
    return page.evaluate(
        """async ([sql, columns]) => {
            const spec = Object.fromEntries(Object.entries(columns).map(([k, v]) => [k, v === "num" ? 0 : ""]));
            const result = await app.trace.engine.query(sql);
            const rows = [];
            for (const it = result.iter(spec); it.valid(); it.next()) rows.push(Object.keys(spec).map(k => it[k]));
            return rows;
        }""",
        [sql, columns],
    )


def test_imports_without_an_error(page):
    assert page.evaluate("app.trace.traceInfo.importErrors") == 0
    assert (
        query(page, "select name, value from stats where severity != 'info' and value > 0", name="str", value="num")
        == []
    )


def test_shows_a_process_a_run_and_rank_with_its_tracks(page):
    names = page.evaluate("app.trace.workspace.flatTracks.map(track => track.name)")
    for run in ("fsdp2", "zero2"):
        for rank in (0, 1):
            assert any(name.startswith(f"{run} · rank {rank}") for name in names)
    tracks = ["step", "phase", "layer", "compute", "communication", "exposed communication"]
    tracks += ["allocated memory", "bytes moved"]
    for track in tracks:
        assert sum(name.split(" · ")[0] == track for name in names) >= 4
    # Unfolded without a click; the command runs once the trace is shown.
    page.wait_for_function("app.trace.workspace.flatTracks.some(t => t.name === 'step' && t.parent.expanded)")


def test_keeps_every_slice_and_counter(page, report):
    wanted = json.loads(report.json.read_bytes())["runs"]
    steps = sum(len(run["tables"]["steps"]) for run in wanted)
    assert query(page, "select count(*) as n from slice where name glob 'step *'", n="num") == [[steps]]
    known = sum(
        row["payload_bytes"] or 0
        for row in wanted[0]["tables"]["collectives"]
        if row["rank"] == 0 and row["dur_ns"] is not None
    )
    most = query(
        page,
        "select cast(max(value) as int) as n from counter join track on track.id = counter.track_id "
        "where track.name = 'bytes moved' group by track.id",
        n="num",
    )
    assert [known] in most


def test_exposed_time_is_the_same_as_in_the_report(page, report):
    wanted = sum(
        row["exposed_comm_ns"]
        for run in json.loads(report.json.read_bytes())["runs"]
        for row in run["tables"]["breakdown"]
    )
    sql = (
        "select sum(dur) as n from slice join track on track.id = slice.track_id "
        "where track.name = 'exposed communication'"
    )
    # Steps are windows: what is exposed between or after them is in the trace, not in the breakdown.
    assert query(page, sql, n="num")[0][0] >= wanted > 0


def test_asks_nobody_else(page):
    """What the UI asks of others never leaves: the server's content policy forbids it."""
    answered = page.evaluate("performance.getEntriesByType('resource').filter(r => r.responseStatus).map(r => r.name)")
    assert answered
    assert all(url.startswith((page.origin, "blob:", "data:")) for url in answered)
