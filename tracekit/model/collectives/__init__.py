"""The collectives of a run: calls, kinds, sizes, axes, and the same call on other ranks."""

from __future__ import annotations
