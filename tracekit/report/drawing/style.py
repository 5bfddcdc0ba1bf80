"""One look for every chart: a colour a meaning, readable sizes, and the page's own fonts.

The colours keep apart for the three common kinds of colour blindness, and differ in lightness where they
meet.
"""

from __future__ import annotations

from typing import Any

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', 'DejaVu Sans', sans-serif"
INK = "#1f2933"
QUIET = "#5f6c7b"
GRID = "#e4e8ec"

COMPUTE = "compute"
COMM = "communication"
HIDDEN = "hidden communication"
EXPOSED = "exposed communication"
COPYING = "copy"
COPY = "exposed copy"
IDLE = "idle"

#: What a device does, and its colour, in the order in which parts are stacked.
ACTIVITY = {
    COMPUTE: "#2f5d8a",
    COMM: "#4fa197",
    HIDDEN: "#7cc4ba",
    EXPOSED: "#d9512c",
    COPYING: "#c3a1cd",
    COPY: "#a678b4",
    IDLE: "#d3d9df",
}

#: Kinds of collectives.
KINDS = {
    "all_gather": "#3b7ea1",
    "reduce_scatter": "#e69f00",
    "all_reduce": "#b05a8f",
    "broadcast": "#57a773",
    "reduce": "#8ec6e6",
    "all_to_all": "#c9b458",
    "send": "#8a8f98",
    "recv": "#b9bec5",
    "other": "#6b7280",
}

#: What a collective's time was, seen on all of its ranks.
WAITING = {"transfer": "#4fa197", "waiting": "#d9a441"}

#: What a stage of a pipeline does; waiting and idle are its bubble.
PIPELINE = {"busy": "#2f5d8a", "transfer": "#4fa197", "waiting for a peer": "#d9a441", "idle": "#d3d9df"}

#: Steps of the way from theory to the trace.
LEDGER = {
    "total": "#2f5d8a",
    "more than the theory": "#e69f00",
    "less than the theory": "#57a773",
    "unexplained": "#d9512c",
}

PHASES = {"forward": "#b9cfe4", "backward": "#8fa9c4", "optimizer": "#c9c3dd", "other": "#dfe3e8"}

#: What memory is for, from what is held through a step to what comes and goes in it.
MEMORY = {
    "before the window": "#8a8f98",
    "parameters": "#2f5d8a",
    "optimizer state": "#6f9bc4",
    "buffers": "#b9cfe4",
    "gradients": "#57a773",
    "gradient buffers": "#9bcfae",
    "gathered parameters": "#b05a8f",
    "collective buffers": "#d7a3c4",
    "activations": "#e69f00",
    "temporaries": "#f0cf8c",
    "unknown": "#d9512c",
}

#: Colours without a meaning of their own: ranks, runs, categories of memory.
SERIES = ["#2f5d8a", "#e69f00", "#57a773", "#b05a8f", "#8ec6e6", "#c9b458", "#d9512c", "#6b7280"]


def config() -> dict[str, Any]:
    """The Vega-Lite configuration of every chart."""
    axis = {
        "labelColor": QUIET,
        "titleColor": QUIET,
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "gridColor": GRID,
        "domainColor": GRID,
        "tickColor": GRID,
        "labelLimit": 180,
        "titlePadding": 8,
    }
    return {
        "font": FONT,
        "background": "transparent",
        "view": {"stroke": None},
        "axis": axis,
        "axisX": {"tickCount": 6, "labelOverlap": "greedy", "labelSeparation": 8},
        "axisY": {"ticks": False, "domain": False, "labelPadding": 6, "labelColor": INK},
        "legend": {
            "orient": "top",
            "title": None,
            "labelFontSize": 12,
            "labelColor": INK,
            "labelLimit": 220,
            "symbolType": "square",
            "columnPadding": 14,
            "offset": 8,
        },
        "text": {"color": INK, "fontSize": 12},
    }
