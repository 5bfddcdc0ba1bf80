"""Names of layers: the root unit, and the span of layers that a bucket covers.

The name of the root unit is empty. Within a span, and wherever people read it, it is written `(root)`.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

ROOT = "(root)"
NO_LAYER = "(no layer)"
_BETWEEN = ".."


def span(layers: Sequence[str]) -> str:
    """Return the name of these neighbouring layers, at least one: "layers.2..layers.3", or the only one's own name."""
    if len(layers) == 1:
        return layers[0]
    return f"{layers[0] or ROOT}{_BETWEEN}{layers[-1] or ROOT}"


def ends(layer: str) -> list[str]:
    """Return the first and last layer of a span, or the only layer, as written there."""
    return layer.split(_BETWEEN)


def is_root(layer: str) -> bool:
    """Return whether the name is the root unit's, in either spelling."""
    return layer in ("", ROOT)


def layer_label(column: str = "layer") -> pl.Expr:
    """Return a column of layers as people read them, the root unit and unknown layers included."""
    return pl.when(pl.col(column) == "").then(pl.lit(ROOT)).otherwise(pl.col(column).fill_null(NO_LAYER))
