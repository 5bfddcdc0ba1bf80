"""Parts of `claims.py`: recorded runs and proofs, answers with verdicts, the page."""

from __future__ import annotations
