"""Errors of a recording that the caller can fix, one sentence each."""

from __future__ import annotations

import sys
import warnings


class RecordError(RuntimeError):
    """The recording cannot start as asked; the text is one sentence that says what to do."""


class RunExistsError(RecordError):
    """The output folder holds a run already and `overwrite` is off."""


def tell(text: str) -> None:
    """Warns; where the program makes errors of warnings, says it on stderr, for what is recorded must be written."""
    try:
        warnings.warn(text, stacklevel=3)
    except UserWarning:
        print(f"tracekit: {text}", file=sys.stderr, flush=True)
