"""The charts of the page, each with what it draws and what stands in its place where there is nothing to draw."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from tracekit.errors import UsageError
from tracekit.report.drawing import chart_rows, chart_specs, device_rows, memory_rows, memory_specs, timeline, waterfall
from tracekit.report.drawing.chart_rows import Drawn
from tracekit.report.drawing.vega_lite import Spec

if TYPE_CHECKING:
    import altair as alt

    from tracekit.model.run import Run

# Of charts in no page, in pixels.
_WIDTH = 640


@dataclass(frozen=True)
class Chart:
    """One chart: its rows of a run, its specification from rows, the sentence for no rows (none: left out).

    `highest` is the largest value of the rows, where charts of several runs share a scale.
    """

    label: str
    rows: Callable[[Run], Drawn]
    spec: Callable[..., Spec]
    empty: str = ""
    highest: Callable[[pl.DataFrame], Any] | None = None
    caption: str = ""
    renderer: str = "svg"

    def draw(self, drawn: Drawn, top: float | None = None) -> Spec:
        """The specification of these rows, on a scale that ends at `top` where that is given."""
        scale = {"top": top} if top is not None else {}
        return self.spec(drawn.rows, **scale, **(drawn.more or {}))

    def top(self, every: list[Drawn]) -> float | None:
        """The largest value in the rows of several runs; `None` where they share no scale or there is none."""
        if self.highest is None:
            return None
        values = [value for drawn in every if isinstance(value := self.highest(drawn.rows), int | float)]
        return float(max(values)) if values else None


def chart(run: Run, name: str) -> alt.TopLevelMixin:
    """The chart of the page with this name, as altair's.

    Raises:
        UsageError: there is no such chart, or the run holds nothing that it could draw.
    """
    import altair as alt

    if name not in CHARTS:
        raise UsageError(f"there is no chart {name!r}: there are {', '.join(CHARTS)}")
    drawn = CHARTS[name].rows(run)
    if drawn.rows.is_empty():
        raise UsageError(f"{run.name} has no chart {name!r}: {CHARTS[name].empty or 'there is nothing to draw'}")
    spec = CHARTS[name].draw(drawn)
    # A picture that is saved has no place whose width it could take.
    if spec.get("width") == "container":
        spec["width"] = _WIDTH
    if "vconcat" in spec:
        spec["vconcat"] = [{"width": _WIDTH, **part} for part in spec["vconcat"]]
    return alt.Chart.from_dict(spec)


def _longest_bar(row: str) -> Callable[[pl.DataFrame], Any]:
    """The largest sum of ms in a bar."""
    return lambda rows: rows.group_by(row).agg(pl.col("ms").sum())["ms"].max()


CHARTS = {
    "volume": Chart(
        "Volume by source and kind",
        chart_rows.volume_rows,
        chart_specs.volume,
        "Ψ is unknown without a manifest, so volume cannot be told in multiples of it; the table has bytes.",
        lambda rows: rows["total_psi"].max(),
    ),
    "ledger": Chart(
        "From theory to the trace",
        waterfall.rows,
        waterfall.chart,
        "Without Ψ and a strategy that has a closed form there is no theory from which to walk to the trace.",
        lambda rows: rows.select(pl.max_horizontal("from_psi", "to_psi").max()).item(),
        caption="From theory to the trace",
    ),
    "overlap": Chart(
        "Hidden and exposed time by layer and phase",
        chart_rows.overlap_rows,
        chart_specs.overlap,
        "No communication ran in this trace, so none was hidden or exposed.",
        lambda rows: rows.group_by("rank", "row").agg(pl.col("ms").sum())["ms"].max(),
    ),
    "exposure": Chart(
        "Exposed time by cause",
        chart_rows.exposure_rows,
        chart_specs.exposure,
        "No communication was exposed, so there is no cause to name.",
        _longest_bar("cause"),
    ),
    "waiting": Chart(
        "Transfer and waiting of each rank",
        chart_rows.waiting_rows,
        chart_specs.waiting,
        "Who waited for whom needs the traces of all ranks of a group; they are not all here.",
        _longest_bar("row"),
    ),
    "timeline": Chart(
        "One step as lanes",
        timeline.rows,
        timeline.chart,
        "No work was recorded on any device.",
        renderer="canvas",
    ),
    "breakdown": Chart(
        "Parts of every step",
        chart_rows.breakdown_rows,
        chart_specs.breakdown,
        "There are no steps with work to take apart.",
        _longest_bar("row"),
    ),
    "pipeline": Chart(
        "Stages of the pipeline",
        device_rows.pipeline_rows,
        chart_specs.pipeline,
        highest=_longest_bar("row"),
        caption="Stages of the pipeline: what the mean step of each was spent on",
    ),
    "idle": Chart(
        "Idle time by cause",
        device_rows.idle_rows,
        chart_specs.idle,
        highest=_longest_bar("cause"),
        caption="What devices waited for while idle",
    ),
    "kernels": Chart(
        "The work that took longest",
        device_rows.kernel_rows,
        chart_specs.kernels,
        highest=_longest_bar("name"),
        caption="The work that took longest",
    ),
    "memory": Chart(
        "Memory over time",
        memory_rows.memory_rows,
        memory_specs.memory,
        "The trace has no memory events: record with profile_memory to have the curve.",
        lambda rows: rows["mib"].max(),
    ),
    "memory-categories": Chart(
        "Memory by category",
        memory_rows.category_rows,
        memory_specs.by_category,
        caption="The device that held most, by what its memory was for",
    ),
    "peak": Chart("Memory at its peak", memory_rows.peak_rows, memory_specs.peak, caption="At the peak"),
}
"""By name, in the order of the page."""
