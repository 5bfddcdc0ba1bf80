"""From the closed form's model states to the measured peak, in named terms that add up."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from tracekit import common_columns as c
from tracekit.analyzers.memory.curve import HELD_CATEGORIES
from tracekit.analyzers.memory.model_states import held_on
from tracekit.analyzers.memory.peak import RESERVED
from tracekit.dtypes import ITEM_SIZES
from tracekit.model.memory.categories import BEFORE_WINDOW, UNKNOWN
from tracekit.table_schema import Column, Schema

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.model.run import Run

MEMORY_LEDGER_SCHEMA = Schema(
    c.RANK,
    c.DEVICE,
    Column("component", pl.String, "What the memory is for, as in `peak`."),
    Column(
        "source",
        pl.String,
        "Who says so: theory (the ZeRO paper), plan (what this strategy holds instead), step (what a moment inside a "
        "step adds), measured (the whole peak) or unexplained.",
    ),
    Column("term", pl.String, "Name of the term."),
    Column("bytes", pl.Int64, "Bytes of the term; all terms but the measured peak add up to that."),
)
LONGER, NO_COPY = "stored in more bytes than bfloat16 has", "no copy in float32: the parameters are that themselves"
UNEVEN = {
    "parameters": "padding, uneven shards and what is not sharded",
    "optimizer_state": "padding, uneven shards, step counters, or another optimizer than Adam",
}
_INSIDE = {
    "gathered parameters": "units that are gathered then",
    "collective buffers": "what gathers work on",
    "gradient buffers": "what reductions work on",
    "activations": "saved for backward",
    "temporaries": "of running operators",
}


class _Line(NamedTuple):
    component: str
    source: str
    term: str
    nbytes: int


def memory_ledger(run: Run) -> pl.DataFrame:
    """Terms from theory to the peak of each rank's device: MEMORY_LEDGER_SCHEMA.

    What is held through the window is planned from the manifest and compared with what the recorder measured: where
    they differ, the difference is unexplained. So is what has no category, and what was there before without a name.
    Empty without a manifest, a closed form or recorded memory.
    """
    states, peak = run.table("model-states"), run.table("peak")
    rows: list[tuple[object, ...]] = []
    for (rank, device), top in peak.group_by("rank", "device", maintain_order=True):
        parts = dict(top.select("category", "bytes").iter_rows())
        rows += [(rank, device, *line) for line in _lines(run, (int(str(rank)), str(device)), parts, states)]
    return pl.DataFrame(rows, schema=MEMORY_LEDGER_SCHEMA, orient="row")


def _lines(run: Run, place: tuple[int, str], peak: dict[str, int], states: pl.DataFrame) -> Iterator[_Line]:
    """The terms of one device; none where the recorder measured another one, or no closed form applies."""
    rank, device = place
    theory = dict(states.filter(rank=rank).select("component", "theory_bytes").iter_rows())
    planned = _planned(run, rank)
    measured = held_on(run.manifest, rank, device)
    if run.manifest is None or not theory or not planned or not measured or not peak.get("parameters"):
        return
    item = ITEM_SIZES.get(run.manifest.precision.storage_dtype or "float32", 4)
    # bfloat16 parameters and gradients, and 12 bytes of state of which 4 are a copy of the parameters in float32.
    longer, copies = (theory["parameters"] * item // 2 - theory["parameters"]), theory["optimizer_state"] // 3
    yield from _state("parameters", theory, (LONGER, longer), planned, measured)
    yield from _gradients(theory["gradients"], peak.get("gradients", 0))
    yield from _state("optimizer_state", theory, (NO_COPY, -copies if item == 4 else 0), planned, measured)
    yield from _kept("buffers", "of the model", planned["buffers"], measured["buffers"])
    # Recorders before this term did not measure them.
    always = min(planned["collective_buffers"], measured["collective_buffers"])
    yield from _kept("collective buffers", "buckets that are kept", always, always)
    inside = {**peak, "collective buffers": peak.get("collective buffers", 0) - always}
    yield from (_Line(name, "step", term, inside[name]) for name, term in _INSIDE.items() if inside.get(name))
    for name in ("parameters", "optimizer_state", "buffers"):
        since = peak.get(HELD_CATEGORIES[name], 0) - measured[name]
        if since:
            term = "made since the recording began" if since > 0 else "freed since the recording began"
            yield _Line(HELD_CATEGORIES[name], "step", term, since)
    for name, term in ((UNKNOWN, "no rule tells what it was for"), (BEFORE_WINDOW, "was there before, without a name")):
        if peak.get(name):
            yield _Line(name, "unexplained", term, peak[name])
    yield _Line("total", "measured", "the peak", sum(size for name, size in peak.items() if name != RESERVED))


def _planned(run: Run, rank: int) -> dict[str, int]:
    """Bytes that the plan says are held between two steps, by component; empty without a plan."""
    from tracekit.plan import memory

    if run.manifest is None:
        return {}
    return dict(memory(run.manifest, rank).select("component", "held_bytes").iter_rows())


def _state(
    name: str, theory: dict[str, int], instead: tuple[str, int], planned: dict[str, int], measured: dict[str, int]
) -> Iterator[_Line]:
    """A model state that is kept: the closed form, what the plan has instead, and what is not planned."""
    component, (term, nbytes) = HELD_CATEGORIES[name], instead
    yield _Line(component, "theory", f"{component} in the closed form", theory[name])
    rest = planned[name] - theory[name] - nbytes
    yield from (_Line(component, "plan", *line) for line in ((term, nbytes), (UNEVEN[name], rest)) if line[1])
    if measured[name] != planned[name]:
        yield _Line(component, "unexplained", "held and not planned", measured[name] - planned[name])


def _gradients(theory: int, measured: int) -> Iterator[_Line]:
    """They come and go inside the step: how many are there at the peak is no matter of what is held."""
    yield _Line("gradients", "theory", "gradients in the closed form", theory)
    if measured != theory:
        term = "not all there at the peak" if measured < theory else "more at the peak than in the closed form"
        yield _Line("gradients", "step", term, measured - theory)


def _kept(component: str, term: str, planned: int, measured: int) -> Iterator[_Line]:
    if planned:
        yield _Line(component, "plan", term, planned)
    if measured != planned:
        yield _Line(component, "unexplained", "held and not planned", measured - planned)
