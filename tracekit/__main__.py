"""The `tracekit` command, and `python -m tracekit`, which is the same."""

from __future__ import annotations

import atexit
import gc
import os
import sys

TYPE_CHECKING = False  # typing's own costs as much as Python's start
if TYPE_CHECKING:
    from typing import NoReturn


_GC_THRESHOLD = 1_000_000


def main() -> NoReturn:
    """Runs the command line and ends the process with its exit code; the version is told before Typer is imported."""
    if sys.argv[1:] == ["--version"] and _tells_version():
        sys.exit(0)
    # numpy's BLAS would start a thread for each core as it is loaded, and nothing here multiplies matrices.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # A command makes many small objects that live to its end, hardly any in cycles: looking for those takes longer than
    # all the rest of the collector saves, and at the end the process goes with everything in it.
    gc.set_threshold(_GC_THRESHOLD)
    atexit.register(gc.freeze)
    from tracekit.cli import main as run_command_line

    run_command_line()


def _tells_version() -> bool:
    """True when the version is written; where stdout takes nothing, the command line says why."""
    from tracekit import __version__

    try:
        print(f"tracekit {__version__}", flush=True)
    except (OSError, ValueError):
        return False
    return True


if __name__ == "__main__":
    main()
