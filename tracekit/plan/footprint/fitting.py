"""What fits in a device's memory: the step as asked, its largest batch, and what to change where it does not fit."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import polars as pl
from msgspec.structs import replace

from tracekit.errors import UsageError
from tracekit.manifest import Axis
from tracekit.plan.footprint import can_run, planned
from tracekit.plan.inputs import checkpointing
from tracekit.strategies import CHECKPOINTING, STRATEGIES, find

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tracekit.manifest import Manifest

FITTING_SCHEMA = pl.Schema(
    {
        "edit": pl.String,
        "batch_size": pl.Int64,
        "num_ranks": pl.Int64,
        "live_bytes": pl.Int64,
        "reserved_bytes": pl.Int64,
        "low_bytes": pl.Int64,
        "high_bytes": pl.Int64,
        "fits": pl.String,
    }
)
_UNITS = {"gb": 10**9, "gib": 2**30, "mb": 10**6, "mib": 2**20, "tb": 10**12, "tib": 2**40}
_MORE_RANKS = (2, 4, 8)
# Runs that look for the largest batch around the line through two of them.
_TRIES = 4
AS_ASKED, LARGEST = "as asked", "largest batch"


class _Need(NamedTuple):
    """Bytes of a step at its peak: reserved, with its interval."""

    live: int
    reserved: int
    low: int
    high: int


def parse_size(text: str) -> int:
    """Bytes of `80GB` (10⁹) or `79GiB` (2³⁰). Raises UsageError for another text, or nothing."""
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]+)\s*", text)
    nbytes = round(float(found[1]) * _UNITS.get(found[2].lower(), 0)) if found else 0
    if not nbytes:
        raise UsageError(f"--fit {text!r} is no size of memory: give one as 80GB or 79GiB")
    return nbytes


def fitting(manifest: Manifest, model: str, capacity: int, progress: Callable[[str], None]) -> pl.DataFrame:
    """Each edit with what its step reserves, and whether that fits into `capacity` bytes: FITTING_SCHEMA.

    The first row is the step as asked, the second the largest batch that fits otherwise unchanged, if one does; then
    one change at a time. `fits` is yes where the whole interval does, no where none of it does, else maybe. `progress`
    is called with each edit before its step is run.

    Raises:
        UsageError: no step of the model can be run here, or the training program refuses an option.
    """
    if not can_run(manifest, model):
        raise UsageError(
            f"--fit: a step of {manifest.strategy} with {model} cannot be run in one process to be measured"
        )

    def need(edit: str, made: Manifest) -> _Need:
        progress(edit)
        return _Need(*planned(made, model).row(-1)[1:])

    asked = need(AS_ASKED, manifest)
    rows = [_row(AS_ASKED, manifest, asked, capacity)]
    rows += [_row(LARGEST, made, found, capacity) for made, found in _largest(manifest, asked, capacity, need)]
    rows += [_row(edit, made, need(edit, made), capacity) for edit, made in _edits(manifest, model)]
    return pl.DataFrame(rows, schema=FITTING_SCHEMA, orient="row")


def first_change(table: pl.DataFrame) -> str | None:
    """The first edit that fits, of those after the step as asked; None where none does."""
    fits = table.slice(1).filter(fits="yes")["edit"]
    return fits[0] if len(fits) else None


def _row(edit: str, made: Manifest, need: _Need, capacity: int) -> tuple[object, ...]:
    fits = "yes" if need.high <= capacity else "no" if need.low > capacity else "maybe"
    ranks = 1
    for axis in made.mesh:
        ranks *= axis.size
    return edit, _batch(made), ranks, *need, fits


def _largest(
    manifest: Manifest, asked: _Need, capacity: int, need: Callable[[str, Manifest], _Need]
) -> Iterator[tuple[Manifest, _Need]]:
    """The largest batch whose whole interval fits: found around the line through two batches, and run."""
    known = {_batch(manifest): asked}

    def at(batch: int) -> _Need:
        if batch not in known:
            known[batch] = need(f"batch size {batch}", _with(manifest, batch_size=batch))
        return known[batch]

    first = _batch(manifest)
    other = 2 * first if asked.high <= capacity else max(first // 2, 1)
    slope = (at(other).high - asked.high) / (other - first) if other != first else asked.high
    guess = max(1, int(first + (capacity - asked.high) / max(slope, 1)))
    for _ in range(_TRIES):
        if at(guess).high > capacity and guess > 1:
            guess -= 1
        elif at(guess).high <= capacity and at(guess + 1).high <= capacity:
            guess += 1
        else:
            break
    fits = [batch for batch, found in known.items() if found.high <= capacity]
    if fits:
        yield _with(manifest, batch_size=max(fits)), known[max(fits)]


def _edits(manifest: Manifest, model: str) -> Iterator[tuple[str, Manifest]]:
    """One change at a time, those that need no more hardware first."""
    now = CHECKPOINTING.index(checkpointing(manifest))
    # Selective recomputes less than full.
    for mode in ("selective-op", "full"):
        if mode != CHECKPOINTING[now] and now != CHECKPOINTING.index("full"):
            yield f"activation_checkpointing={mode}", _with(manifest, activation_checkpointing=mode)
    if find(manifest.strategy).stage < find("fsdp2").stage:
        sharded = _as_fsdp2(manifest)
        if can_run(sharded, model):
            yield "strategy fsdp2", sharded
    axis = manifest.mesh[0] if len(manifest.mesh) == 1 else next(a for a in manifest.mesh if a.axis == "dp_shard")
    for times in _MORE_RANKS:
        mesh = [Axis(a.axis, a.size * (times if a == axis else 1)) for a in manifest.mesh]
        yield f"{axis.axis}={axis.size * times}", replace(manifest, mesh=mesh, world_size=manifest.world_size * times)


def _as_fsdp2(manifest: Manifest) -> Manifest:
    kept = STRATEGIES["fsdp2"].options | {"model", "layers", "tied", "batch_size", "seq_len"}
    options = {name: value for name, value in manifest.options.items() if name in kept}
    mesh = [Axis("dp_shard", manifest.world_size)]
    return replace(manifest, strategy="fsdp2", options=options, mesh=mesh)


def _batch(manifest: Manifest) -> int:
    return int(manifest.options.get("batch_size", 1))


def _with(manifest: Manifest, **options: object) -> Manifest:
    return replace(manifest, options={**manifest.options, **options})
