"""The layers that a bucketed gradient collective covers, from the order in which gradients became ready.

DeepSpeed and DDP send gradients in buckets that know nothing of layers. The manifest tells in which order the gradients
were ready; a bucket of n elements holds the next parameters that sum up to n. Where the sums do not meet, nothing is
claimed.
"""

from __future__ import annotations

import polars as pl

from tracekit.read.manifest import Manifest

ROOT = "(root)"  # the root unit's name is empty; inside a span it needs one

_GRADIENT_KINDS = ("all_reduce", "reduce_scatter", "reduce")


def with_bucket_layers(collectives: pl.DataFrame, manifest: Manifest | None) -> pl.DataFrame:
    """Return the collectives with layer span ("layers.2..layers.3") and phase of gradient buckets filled in."""
    if manifest is None or not manifest.grad_order:
        return collectives
    sizes = {p.name: (p.numel, p.layer) for p in manifest.parameters}
    gradients = [sizes[name] for name in manifest.grad_order if name in sizes]
    candidates = collectives.filter(pl.col("kind").is_in(_GRADIENT_KINDS), pl.col("in_numel") > 1)
    found: dict[int, str] = {}
    for group in candidates.sort("issued_ns").partition_by("rank", "cycle", "step", maintain_order=True):
        spans = _bucket_spans(group["in_numel"].to_list(), gradients)
        found |= dict(zip(group["row"].to_list(), spans, strict=True)) if spans else {}
    if not found:
        return collectives
    spans = pl.DataFrame(
        {"row": list(found), "span": list(found.values())}, schema={"row": pl.UInt32, "span": pl.String}
    )
    # The last bucket is flushed after the last backward operator and still carries gradients of the backward.
    phase = pl.when(pl.col("span").is_not_null()).then(pl.lit("backward")).otherwise("phase")
    return (
        collectives.join(spans, on="row", how="left")
        .with_columns(pl.coalesce("span", "layer").alias("layer"), phase.alias("phase"))
        .drop("span")
    )


def _bucket_spans(buckets: list[int], gradients: list[tuple[int, str]]) -> list[str] | None:
    """Return the layer span of each bucket, or null unless they are whole passes over the gradients."""
    spans: list[str] = []
    position = 0
    for bucket in buckets:
        layers: list[str] = []
        filled = 0
        while gradients and filled < bucket:
            numel, layer = gradients[position % len(gradients)]
            filled += numel
            position += 1
            if layer not in layers:
                layers.append(layer)
        if filled != bucket:
            return None
        spans.append(_span(layers))
    return spans if gradients and position % len(gradients) == 0 else None


def _span(layers: list[str]) -> str:
    if len(layers) == 1:
        return layers[0]
    return f"{layers[0] or ROOT}..{layers[-1] or ROOT}"
