"""Lets a program of this folder that was started by its path import the others as the package `runners`.

The folder is that package whatever it is called, and wins over one of that name in the working folder. Beside a
checkout's runners lies its tracekit; a wheel's are inside it, as `tracekit/_runners`.
"""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

HERE = Path(__file__).resolve().parent


def join_package() -> None:
    """Registers the package, and takes the folder itself, which Python puts there, from the import path."""
    if sys.path and Path(sys.path[0]).resolve() == HERE:
        del sys.path[0]
    if HERE.name != "_runners":
        sys.path.insert(0, str(HERE.parent))
    spec = spec_from_file_location("runners", HERE / "__init__.py", submodule_search_locations=[str(HERE)])
    assert spec is not None
    sys.modules["runners"] = module_from_spec(spec)
