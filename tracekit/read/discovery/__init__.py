"""Which files a run consists of, which rank and which cycle each of them holds."""

from __future__ import annotations
