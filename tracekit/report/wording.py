"""Facts and summaries as words: what the page says beside its charts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

UNKNOWN = "–"

_BYTES = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def lead(facts: Mapping[str, Any]) -> str:
    """Return a run in a line: strategy, ranks, parameters, where."""
    parts = [
        facts.get("strategy") or "a run without a manifest",
        f"{facts['num_ranks']} {'rank' if facts['num_ranks'] == 1 else 'ranks'}",
        f"{count(facts['psi'])} parameters" if facts.get("psi") else "",
        f"over {facts['backend']}" if facts.get("backend") else "",
    ]
    return ", ".join(part for part in parts if part)


def fact_lines(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return name and value of each known fact, in reading order."""
    coverage, overhead = facts["coverage"], facts.get("overhead_ratio")
    lines = [
        ("strategy", facts.get("strategy") or "unknown (no manifest)"),
        ("options", _pairs(facts.get("options"))),
        ("ranks read", _of(facts["num_ranks"], facts.get("world_size"))),
        ("mesh", _pairs(facts.get("mesh"))),
        ("backend", facts.get("backend")),
        ("Ψ", f"{facts['psi']:,} parameters" if facts.get("psi") else None),
        ("Ψ with gradients", f"{facts['psi_train']:,}" if facts.get("psi_train") else None),
        ("precision", _pairs(facts.get("precision"))),
        ("micro-batches", facts.get("micro_batches")),
        ("steps recorded", facts["num_steps"]),
        ("events read", f"{facts['num_events']:,}"),
        ("devices", ", ".join(dict.fromkeys(facts.get("devices") or []))),
        ("hosts", ", ".join(dict.fromkeys(facts.get("hosts") or []))),
        ("versions", _pairs(facts.get("versions"))),
        ("recording", _overhead(overhead)),
        ("coverage", f"bytes known for {coverage['bytes_known']:,} of {coverage['collectives']:,} collectives"),
        ("repairs", facts["repairs"] or "none"),
        *((f"{name.replace('_', ' ')}", _pairs(how)) for name, how in facts["guesses"].items()),
    ]
    return [(name, str(value)) for name, value in lines if value not in (None, "")]


def _overhead(ratio: float | None) -> str | None:
    """What recording did to the time of a step; a ratio around 1 is within the noise of a machine."""
    if not ratio:
        return None
    return f"made steps {ratio:.2f}× as long" if ratio >= 1.05 else "no measurable effect on the time of a step"


def comparison(runs: Sequence[tuple[str, Mapping[str, float | None]]]) -> list[tuple[str, ...]]:
    """Return the header and a row a measure: name, value of each run and, of two runs, the difference."""
    two = len(runs) == 2
    rows: list[tuple[str, ...]] = [("", *(name for name, _ in runs), *(("difference",) if two else ()))]
    for measure, title, write in _MEASURES:
        values = [summary.get(measure) for _, summary in runs]
        row = (title, *(UNKNOWN if value is None else write(value) for value in values))
        rows.append((*row, _difference(values[0], values[1], write)) if two else row)
    return rows


def count(number: float) -> str:
    """Return a count in millions or billions where it is large: 4.46 million."""
    for size, name in ((1e9, " billion"), (1e6, " million")):
        if number >= size:
            return f"{number / size:.3g}{name}"
    return f"{number:,.0f}"


def size(number: float) -> str:
    """Return bytes in the largest unit that they fill."""
    for unit, name in _BYTES:
        if abs(number) >= unit:
            return f"{number / unit:,.2f} {name}"
    return f"{number:,.0f} B"


def _ms(ns: float) -> str:
    return f"{ns / 1e6:,.2f} ms"


def _percent(ratio: float) -> str:
    return f"{100 * ratio:.1f} %"


def _psi(multiple: float) -> str:
    return f"{multiple:.3f}Ψ"


def _whole(number: float) -> str:
    return f"{number:,.6g}"


_MEASURES: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("step_ns", "step", _ms),
    ("compute_ns", "compute", _ms),
    ("exposed_comm_ns", "exposed communication", _ms),
    ("idle_ns", "idle", _ms),
    ("hidden_ratio", "communication hidden", _percent),
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
        return UNKNOWN
    change = after - before
    if change == 0:
        return "same"
    text = f"{100 * abs(change):.1f} points" if write is _percent else write(abs(change))
    sign = "+" if change > 0 else "−"
    relative = f" ({sign}{abs(100 * change / before):.0f} %)" if before and write is not _percent else ""
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
