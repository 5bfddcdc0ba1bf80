"""The ZeRO paper's claims about volume, answered from recorded and planned numbers."""

from __future__ import annotations
