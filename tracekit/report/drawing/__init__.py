"""Charts: the rows that they draw, their Vega-Lite specifications, and the script that shows them."""

from __future__ import annotations
