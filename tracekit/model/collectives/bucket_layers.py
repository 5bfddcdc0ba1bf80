"""The layers of collectives that the trace does not name, from the order and sizes of the manifest.

DeepSpeed and DDP send gradients in buckets, without layers. The manifest has the order in which gradients were ready; a
bucket of n elements holds the next parameters that sum up to n. FSDP1 does not name its units; they are gathered in
wrap order, the root first, and reduced in reverse order, the root last. Where the sums differ, layers stay unknown.
"""

from __future__ import annotations

import polars as pl

from tracekit.layer_names import gradient_order, span, units_with_backward
from tracekit.manifest import Manifest

# Metrics, norms and losses that a loop sends by itself have at most so many elements.
_LOOPS_NUMEL = 1024
_GRADIENT_KINDS = ("all_reduce", "reduce_scatter", "reduce")


def with_layers(collectives: pl.DataFrame, manifest: Manifest | None) -> pl.DataFrame:
    """Return the collectives, which have a `row` number, with the layers of buckets and of FSDP1's units filled in."""
    return _with_unit_layers(with_bucket_layers(collectives, manifest), manifest)


def with_bucket_layers(collectives: pl.DataFrame, manifest: Manifest | None) -> pl.DataFrame:
    """Return the collectives with layer span ("layers.2..layers.3") and phase of gradient buckets filled in."""
    order = gradient_order(manifest) if manifest else None
    if manifest is None or not order:
        return collectives
    sizes = {p.name: (p.numel, p.layer) for p in manifest.parameters}
    gradients = [sizes[name] for name in order if name in sizes]
    candidates = collectives.filter(pl.col("kind").is_in(_GRADIENT_KINDS), pl.col("in_numel") > 1)
    # DDP's map of used parameters.
    candidates = candidates.filter(pl.col("dtype").ne_missing("int32"))
    found: dict[int, str] = {}
    spans: list[str] | list[str | None] | None
    for group in candidates.sort("issued_ns").partition_by("rank", "cycle", "step", maintain_order=True):
        numels = group["in_numel"].to_list()
        kinds = set(group["kind"])
        spans = None if kinds == {"reduce"} else _bucket_spans(numels, gradients)
        if spans is None and kinds != {"reduce"}:
            spans = _without_loops_own(group, gradients)
        if spans is None and kinds == {"reduce_scatter"}:
            spans = _bucket_spans(numels, _padded(gradients, group))
        # Reductions to owners send a bucket in parts; so does an all-reduce of a gradient that no bucket can hold.
        if spans is None and kinds in ({"reduce"}, {"all_reduce"}):
            spans = _bucket_spans(numels, gradients, parts=True)
        named = zip(group["row"].to_list(), spans or [], strict=bool(spans))
        found |= {row: name for row, name in named if name is not None}
    return _with_found(collectives, found)


def _without_loops_own(group: pl.DataFrame, gradients: list[tuple[int, str]]) -> list[str | None] | None:
    """Return the layer span of each bucket among calls that a loop issued by itself, which get none.

    A loop sends metrics, norms and losses beside the buckets: short, outside backward, and no run of gradients.
    """
    numels, phases = group["in_numel"].to_list(), group["phase"].to_list()
    is_bucket, position = list[bool](), 0
    for numel, phase in zip(numels, phases, strict=True):
        fits = _ends_with_a_gradient(numel, gradients, position)
        skips = not fits and phase != "backward" and numel <= _LOOPS_NUMEL
        is_bucket.append(not skips)
        position += 0 if skips else _num_gradients(numel, gradients, position)
    spans = _bucket_spans([n for n, keep in zip(numels, is_bucket, strict=True) if keep], gradients)
    if spans is None or all(is_bucket):
        return None
    waiting = iter(spans)
    return [next(waiting) if keep else None for keep in is_bucket]


def _num_gradients(numel: int, gradients: list[tuple[int, str]], position: int) -> int:
    """Return how many gradients, from a position on, so many elements take."""
    number = 0
    while gradients and numel > 0:
        numel -= gradients[(position + number) % len(gradients)][0]
        number += 1
    return number


def _padded(gradients: list[tuple[int, str]], group: pl.DataFrame) -> list[tuple[int, str]]:
    """Return the gradients as DeepSpeed's stage 3 sends them, each padded to a multiple of the ranks."""
    ranks = max(group["in_numel"][0] // (group["out_numel"][0] or 1), 1)
    return [(-(-numel // ranks) * ranks, layer) for numel, layer in gradients]


def _with_unit_layers(collectives: pl.DataFrame, manifest: Manifest | None) -> pl.DataFrame:
    """Return the collectives with layer and phase of those of FSDP1's flat parameters, a whole step at a time."""
    flat = {unit.name: unit.flat for unit in (manifest.units if manifest else []) if unit.flat is not None}
    if manifest is None or not flat:
        return collectives
    trained = {parameter.layer for parameter in manifest.parameters if parameter.requires_grad}
    blocks = [name for name in flat if name]
    root = [name for name in flat if not name]
    entered = units_with_backward([entry for entry in manifest.parameters if entry.tied_to is None], flat=True)
    reduced = [(flat[name].numel, name) for name in [*reversed(blocks), *root] if name in trained]
    orders = {
        ("all_gather", "forward"): [(flat[name].shard_numel, name) for name in root + blocks],
        ("all_gather", "backward"): [(flat[name].shard_numel, name) for name in reversed(blocks) if name in entered],
        ("reduce_scatter", "backward"): reduced,
        # One rank alone shards nothing, and all-reduces; replicas all-reduce their shards.
        ("all_reduce", "backward"): [(flat[name].shard_numel, name) for _, name in reduced],
    }
    found: dict[int, str] = {}
    for (kind, phase), order in orders.items():
        rows = collectives.filter(pl.col("kind") == kind, pl.col("phase") == phase)
        for group in rows.sort("issued_ns").partition_by("rank", "cycle", "step", maintain_order=True):
            cycle = [order[index % len(order)] for index in range(group.height)] if order else []
            whole = order and group.height % len(order) == 0
            if whole and group["in_numel"].to_list() == [numel for numel, _ in cycle]:
                found |= dict(zip(group["row"].to_list(), (name for _, name in cycle), strict=True))
    return _with_found(collectives, found, phase=None)


def _with_found(collectives: pl.DataFrame, found: dict[int, str], phase: str | None = "backward") -> pl.DataFrame:
    if not found:
        return collectives
    spans = pl.DataFrame(
        {"row": list(found), "span": list(found.values())}, schema={"row": pl.UInt32, "span": pl.String}
    )
    # The last bucket is flushed after the last backward operator and still carries gradients of the backward.
    known_phase = pl.coalesce(pl.lit(phase, pl.String), "phase")
    return (
        collectives.join(spans, on="row", how="left")
        .with_columns(
            pl.coalesce("span", "layer").alias("layer"),
            pl.when(pl.col("span").is_not_null()).then(pl.lit("manifest")).otherwise("layer_from").alias("layer_from"),
            pl.when(pl.col("span").is_not_null()).then(known_phase).otherwise("phase").alias("phase"),
        )
        .drop("span")
    )


def _bucket_spans(buckets: list[int], gradients: list[tuple[int, str]], *, parts: bool = False) -> list[str] | None:
    """Return the layer span of each bucket; None unless they are whole passes over the gradients.

    With `parts` a bucket may be sent in several calls, one for each owner of a part; all of them get its span.
    """
    spans: list[str] = []
    position = waiting = 0
    for call, sent in enumerate(buckets):
        bucket = waiting + sent
        if parts and not _ends_with_a_gradient(bucket, gradients, position) and call + 1 < len(buckets):
            waiting = bucket
            continue
        waiting = 0
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
        spans += [span(layers)] * (call + 1 - len(spans))
    return spans if gradients and position % len(gradients) == 0 else None


def _ends_with_a_gradient(numel: int, gradients: list[tuple[int, str]], position: int) -> bool:
    """Return whether so many elements are whole gradients, from a position on."""
    filled = 0
    while gradients and filled < numel:
        filled += gradients[position % len(gradients)][0]
        position += 1
    return filled == numel
