"""The JavaScript that draws the page's charts: Vega, Vega-Lite and Vega-Embed as one script.

vl-convert holds their sources, and takes more than a second to bundle them. So the script is made once and kept: in the
package where whoever built it put it there, else in the user's cache folder.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from pathlib import Path

from tracekit.errors import UsageError
from tracekit.report.drawing.vega_lite import SCHEMA

# The libraries are found by the page's own script under these names.
_GLOBALS = "window.vegaEmbed = vegaEmbed; window.vega = vega; window.vegaLite = vegaLite;"
_BUILT_IN = "vega.js"
_PACKAGE = "vl-convert-python"


@cache
def library() -> str:
    """The script, fit to stand inside a script element.

    Raises:
        UsageError: it is nowhere, and vl-convert, which makes it, is not installed.
    """
    built_in = files("tracekit.report").joinpath("assets", _BUILT_IN)
    if built_in.is_file():
        return built_in.read_text("utf-8")
    try:
        made_by = version(_PACKAGE)
    except PackageNotFoundError as error:
        raise UsageError(
            f"the page needs {_PACKAGE} for its charts, which is not here: pip install {_PACKAGE}"
        ) from error
    place = _place(made_by)
    if kept := place and _kept(place):
        return kept
    script = bundle()
    if place:
        _keep(place, script)
    return script


def bundle() -> str:
    """The script made anew, in more than a second."""
    import vl_convert

    # .../vega-lite/v6.4.1.json, of which vl-convert goes by 6.4.
    vega_lite = SCHEMA.rsplit("/v", 1)[1].rsplit(".", 2)[0]
    return vl_convert.javascript_bundle(_GLOBALS, vega_lite).replace("</script", "<\\/script")


def _place(made_by: str) -> Path | None:
    from platformdirs import user_cache_path

    key = hashlib.sha256(f"{made_by} {SCHEMA} {_GLOBALS}".encode()).hexdigest()[:16]
    with suppress(OSError, RuntimeError):
        return user_cache_path("tracekit", appauthor=False) / "page" / f"vega-{key}.js"
    return None


def _kept(place: Path) -> str | None:
    """The script that was kept here, if it is whole: its first line is the digest of the rest."""
    with suppress(OSError, ValueError):
        digest, _, script = place.read_bytes().decode().partition("\n")
        if digest == _digest(script):
            return script
    return None


def _keep(place: Path, script: str) -> None:
    """Keep it where that is possible, under another name until it is whole."""
    partial = place.with_name(f"{place.name}.{os.getpid()}.partial")
    with suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(f"{_digest(script)}\n{script}".encode())
        partial.replace(place)
    with suppress(OSError):
        partial.unlink(missing_ok=True)


def _digest(script: str) -> str:
    return hashlib.sha256(script.encode()).hexdigest()
