"""The layer and the phase that a moment of a rank's CPU time belongs to."""

from __future__ import annotations
