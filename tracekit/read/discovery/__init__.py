"""Discovery of the files of a run: where they lie, and the rank and cycle of each."""

from __future__ import annotations
