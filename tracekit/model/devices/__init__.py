"""What occupied a device, and when."""

from __future__ import annotations
