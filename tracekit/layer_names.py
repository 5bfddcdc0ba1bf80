"""Names of layers: the root unit, the span of layers that a bucket covers, and those that gradients reach.

The name of the root unit is empty. Within a span, and wherever people read it, it is written `(root)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import polars as pl

from tracekit.strategies import STRATEGIES

if TYPE_CHECKING:
    from tracekit.manifest import Manifest, Parameter

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


def units_with_backward(parameters: Sequence[Parameter], *, flat: bool = False) -> list[str]:
    """Names of the units whose output needs a gradient: they, or what runs before them, are trained. The root is first.

    Modules are taken to run in the order in which their parameters are registered; the root's output is the model's.
    With `flat` (FSDP1) the parameters of a unit are views of one tensor, trained where any of them is.
    """
    trained = {parameter.layer for parameter in parameters if parameter.requires_grad} if flat else set()
    wanted = [parameter.requires_grad or parameter.layer in trained for parameter in parameters]
    first = wanted.index(True) if any(wanted) else len(wanted)
    return list(dict.fromkeys(["", *(parameter.layer for parameter in parameters[first:])]))


def gradient_order(manifest: Manifest) -> list[str] | None:
    """Return the parameters whose gradients are sent in buckets, in the order of the buckets; None where unknown.

    That is the order in which they were ready, of those that were. With `find_unused_parameters` DDP sends all, in
    the reverse of registration; with `static_graph` those that are not ready come last (reducer.cpp,
    `should_rebuild_buckets`).
    """
    strategy = STRATEGIES.get(manifest.strategy)
    if strategy is None or strategy.framework != "torch DDP":
        return manifest.grad_order
    trained = [entry.name for entry in manifest.parameters if entry.requires_grad and entry.tied_to is None]
    if manifest.options.get("static_graph"):
        ready = manifest.grad_order or trained[::-1]
        return [*ready, *(name for name in trained if name not in ready)]
    return trained[::-1] if manifest.options.get("find_unused_parameters") else manifest.grad_order
