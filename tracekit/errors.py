"""Errors that a user can fix.

    TracekitError        exit 2
    ├── InputError       a file or folder is not what it should be
    └── UsageError       an option or argument does not fit

A message is one sentence: what is wrong, in which file and rank, why we think so, what to do. The command line prints
it after `tracekit: ` and never shows a traceback for it.
"""

from __future__ import annotations


class TracekitError(Exception):
    """An error that the user can fix; the message says how."""

    exit_code = 2


class InputError(TracekitError):
    """A file or folder cannot be read as what it should be."""


class UsageError(TracekitError):
    """An option or argument does not fit the question."""
