"""Descriptions and summaries in words: what the page says beside its charts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracekit import units
from tracekit.units import ABSENT, milliseconds, percent, size

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


def lead(description: Mapping[str, Any]) -> str:
    """A run in a line: strategy, ranks, parameters, where."""
    parts = [
        description.get("strategy") or "a run without a manifest",
        units.counted(description["num_ranks"], "rank"),
        f"{units.count(description['psi'])} parameters" if description.get("psi") else "",
        f"over {description['backend']}" if description.get("backend") else "",
    ]
    return ", ".join(part for part in parts if part)


def description_lines(description: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Name and value of each thing that is known of a run, in reading order."""
    coverage, overhead = description["coverage"], description.get("overhead_ratio")
    lines = [
        ("strategy", description.get("strategy") or "unknown (no manifest)"),
        ("options", _pairs(description.get("options"))),
        ("ranks read", _of(description["num_ranks"], description.get("world_size"))),
        ("mesh", _pairs(description.get("mesh"))),
        ("backend", description.get("backend")),
        ("Ψ", f"{description['psi']:,} parameters" if description.get("psi") else None),
        ("Ψ with gradients", f"{description['psi_train']:,}" if description.get("psi_train") else None),
        ("precision", _pairs(description.get("precision"))),
        ("micro-batches", description.get("micro_batches")),
        ("steps recorded", description["num_steps"]),
        ("events read", f"{description['num_events']:,}"),
        ("devices", ", ".join(dict.fromkeys(description.get("devices") or []))),
        ("hosts", ", ".join(dict.fromkeys(description.get("hosts") or []))),
        ("versions", _pairs(description.get("versions"))),
        ("recording", _overhead(overhead)),
        ("coverage", f"bytes known for {coverage['bytes_known']:,} of {coverage['collectives']:,} collectives"),
        ("repairs", description["repairs"] or "none"),
        *((f"{name.replace('_', ' ')}", _pairs(how)) for name, how in description["guesses"].items()),
    ]
    return [(name, str(value)) for name, value in lines if value not in (None, "")]


def _overhead(ratio: float | None) -> str | None:
    """Effect of recording on the time of a step; a ratio around 1 is within the noise of a machine."""
    if not ratio:
        return None
    return f"made steps {ratio:.2f}× as long" if ratio >= 1.05 else "no measurable effect on the time of a step"


def comparison(runs: Sequence[tuple[str, Mapping[str, float | None]]]) -> list[tuple[str, ...]]:
    """The header and a row a measure: name, value of each run and, of two runs, the difference."""
    two = len(runs) == 2
    rows: list[tuple[str, ...]] = [("", *(name for name, _ in runs), *(("difference",) if two else ()))]
    for measure, title, write in _MEASURES:
        values = [summary.get(measure) for _, summary in runs]
        row = (title, *(ABSENT if value is None else write(value) for value in values))
        rows.append((*row, _difference(values[0], values[1], write)) if two else row)
    return rows


def _psi(multiple: float) -> str:
    return f"{multiple:.3f}Ψ"


def _whole(number: float) -> str:
    return f"{number:,.6g}"


_MEASURES: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("step_ns", "step", milliseconds),
    ("compute_ns", "compute", milliseconds),
    ("exposed_comm_ns", "exposed communication", milliseconds),
    ("idle_ns", "idle", milliseconds),
    ("hidden_ratio", "communication hidden", percent),
    ("num_collectives", "collectives a step", _whole),
    ("theory_psi", "volume by theory", _psi),
    ("plan_psi", "volume by plan", _psi),
    ("measured_psi", "volume measured", _psi),
    ("payload_bytes", "payload a step", size),
    ("wire_bytes", "on the wire, a rank and step", size),
    ("peak_bytes", "highest memory", size),
)


def _difference(before: float | None, after: float | None, write: Callable[[float], str]) -> str:
    """The second less the first, with its sign; a share's in percentage points."""
    if before is None or after is None:
        return ABSENT
    change = after - before
    if change == 0:
        return "same"
    text = f"{100 * abs(change):.1f} points" if write is percent else write(abs(change))
    sign = "+" if change > 0 else "−"
    relative = f" ({sign}{abs(100 * change / before):.0f} %)" if before and write is not percent else ""
    return f"{sign}{text}{relative}"


def _pairs(values: Mapping[str, Any] | None) -> str | None:
    """`name value` for every known value."""
    known = {name: value for name, value in (values or {}).items() if value is not None}
    return ", ".join(f"{name.replace('_', ' ')} {_value(value)}" for name, value in known.items())


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _of(some: int, every: int | None) -> str:
    return f"{some} of {every}" if every and every != some else str(some)
