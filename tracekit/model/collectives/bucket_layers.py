"""The layers of collectives that the trace does not name, from the order and sizes of the manifest.

DeepSpeed and DDP send gradients in buckets, without layers. The manifest has the order in which gradients were ready; a
bucket of n elements holds the next parameters that sum up to n. FSDP1 does not name its units; they are gathered in
wrap order, the root first, and reduced in reverse order, the root last. Where the sums differ, layers stay unknown.
"""

from __future__ import annotations

import polars as pl

from tracekit.layer_names import gradient_order, span, units_with_backward
from tracekit.manifest import Manifest
from tracekit.model.collectives.buckets_among import buckets_among

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
    # DDP's map of used parameters; and FSDP2 names its units itself.
    candidates = candidates.filter(pl.col("dtype").ne_missing("int32"), pl.col("layer_from").ne_missing("FSDP2"))
    found: dict[int, str] = {}
    for group in candidates.sort("issued_ns").partition_by("rank", "cycle", "step", maintain_order=True):
        found |= _of_step(group, gradients)
    return _with_found(collectives, found)


def _of_step(group: pl.DataFrame, gradients: list[tuple[int, str]]) -> dict[int, str]:
    """Return the spans of a step's buckets by row: of all its calls, or without those that the loop made itself."""
    rows, numels, kinds = group["row"].to_list(), group["in_numel"].to_list(), set(group["kind"])
    spans = _spans(group, gradients)
    if spans is None and len(kinds) > 1:
        # Gradients are of the kind that sends most; a metric beside them may be of another.
        most = group.group_by("kind").agg(pl.col("in_numel").sum()).sort("in_numel", "kind")["kind"][-1]
        return _of_step(group.filter(pl.col("kind") == most), gradients)
    if spans is None and kinds != {"reduce"}:
        inside = (group["phase"] == "backward").fill_null(False).to_list()
        sizes = _padded(gradients, group) if kinds == {"reduce_scatter"} else gradients
        kept = buckets_among(numels, inside, [numel for numel, _ in sizes])
        if kept:
            return _of_rows(group, rows, kept, gradients)
    if spans is None:
        # Gradients sent in parts fill no sums of their own: what the loop adds is told by its place alone.
        kept = [index for index, phase in enumerate(group["phase"]) if phase == "backward"]
        if kept and len(kept) < len(rows):
            return _of_rows(group, rows, kept, gradients)
    return dict(zip(rows, spans, strict=True)) if spans else {}


def _of_rows(group: pl.DataFrame, rows: list[int], kept: list[int], gradients: list[tuple[int, str]]) -> dict[int, str]:
    spans = _spans(group[kept], gradients)
    return dict(zip((rows[index] for index in kept), spans, strict=True)) if spans else {}


def _spans(group: pl.DataFrame, gradients: list[tuple[int, str]]) -> list[str] | None:
    """Return the layer span of each call of a group, in the ways that frameworks send gradients."""
    numels, kinds = group["in_numel"].to_list(), set(group["kind"])
    spans = None if kinds == {"reduce"} else _bucket_spans(numels, gradients)
    if spans is None and kinds == {"reduce_scatter"}:
        spans = _bucket_spans(numels, _padded(gradients, group))
    # Reductions to owners send a bucket in parts; so does an all-reduce of a gradient that no bucket can hold.
    if spans is None and kinds in ({"reduce"}, {"all_reduce"}):
        spans = _bucket_spans(numels, gradients, parts=True)
    return spans


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
