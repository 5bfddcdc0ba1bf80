"""Decoding of one trace file: bytes to typed events to frames."""

from __future__ import annotations
