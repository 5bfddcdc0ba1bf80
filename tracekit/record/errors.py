"""Errors of a recording that the caller can fix, one sentence each."""

from __future__ import annotations


class RecordError(RuntimeError):
    """The recording cannot start as asked; the text is one sentence that says what to do."""


class RunExistsError(RecordError):
    """The output folder holds a run already and `overwrite` is off."""
