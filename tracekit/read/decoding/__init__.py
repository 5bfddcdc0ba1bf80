"""Bytes of one trace file -> typed events -> frames."""

from __future__ import annotations
