"""The report: sentences, charts and the page."""

from __future__ import annotations
