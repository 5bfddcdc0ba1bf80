"""What can go wrong in a recording and can be put right by the caller, one sentence each."""

from __future__ import annotations


class RecordError(RuntimeError):
    """The recording cannot start as asked; the text is one sentence that says what to do."""


class RunExistsError(RecordError):
    """The output folder holds a run already and `overwrite` is off."""
