"""The work of devices: what occupied each of them, and when."""

from __future__ import annotations
