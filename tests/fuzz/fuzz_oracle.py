"""What a damaged trace must give, found out with Python's json, decimal and zlib only."""

from __future__ import annotations

import json
from collections import Counter
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple

Row = tuple[object, object, int | None, int | None]


class Outcome(NamedTuple):
    """What the reader gave: rows of (ph, name, ts_ns without base, dur_ns), and its findings; or its refusal."""

    rows: list[Row]
    findings: list[str]
    refusal: str | None
    base_ns: int = 0


def complaints(text: bytes, must_keep: list[bytes], outcome: Outcome) -> list[str]:
    """Say what is wrong with an outcome; `text` is the damaged text, `must_keep` that of every intact event."""
    kept = (row_of(json.loads(event, parse_float=Decimal), outcome.base_ns) for event in must_keep)
    expected = Counter(row for row in kept if row is not None)
    if outcome.refusal is not None:
        wrong = [] if _is_sentence(outcome.refusal) else [f"not one sentence: {outcome.refusal!r}"]
        return wrong + (["refused although spans are intact"] if any(row[0] == "X" for row in expected) else [])
    found = Counter(outcome.rows)
    wrong = [
        f"intact event lost: {row} ({found[row]} of {count})" for row, count in expected.items() if found[row] < count
    ]
    proper = _proper_rows(text, outcome.base_ns)
    if not _is_json(text) and not outcome.findings:
        wrong.append("damaged text without a repairs row")
    if proper is not None and sorted(proper, key=repr) != sorted(outcome.rows, key=repr):
        more, less = Counter(proper) - found, found - Counter(proper)
        wrong.append(f"proper JSON read differently: missing {list(more)[:3]}, made up {list(less)[:3]}")
    return wrong


def _is_sentence(message: str) -> bool:
    return "\n" not in message and "\r" not in message and 20 < len(message) < 1000


def row_of(event: Any, base_ns: int) -> Row | None:
    """Return the row of a decoded event; null for events that no table needs."""
    if not isinstance(event, dict):
        return None
    ph = event.get("ph")
    if ph in ("X", "i") or (ph == "s" and event.get("cat") == "fwdbwd"):
        # Beyond what clocks show, on its own or with the base: no time.
        start, length = ns(event.get("ts"), -(2**62), 2**62), ns(event.get("dur"), -(2**63), 2**43 * 1000)
        start = start if start is not None and abs(start + base_ns) < 2**62 else None
        # An allocation takes no time, whatever is written.
        return ph, event.get("name"), start, None if (ph, event.get("name")) == ("i", "[memory]") else length
    return None


def ns(value: object, above: int, below: int) -> int | None:
    """Return microseconds as integer nanoseconds, null where they are none or beyond what clocks show."""
    if isinstance(value, bool) or not isinstance(value, int | str | Decimal) or len(str(value)) > 64:
        return None
    try:
        number = Decimal(value)
    except InvalidOperation:
        return None
    rounded = round(number * 1000) if number.is_finite() and abs(number) < 2**63 else None
    return rounded if rounded is not None and above < rounded < below else None


def _proper_rows(text: bytes, base_ns: int) -> list[Row] | None:
    """Return the rows of text that every JSON parser takes as a trace; null where some would not."""
    try:
        document = json.loads(text.decode().removeprefix("\ufeff"), parse_float=Decimal, parse_constant=_refuse)
        json.dumps(document, default=str, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return None
    events = document if isinstance(document, list) else document.get("traceEvents")
    if not isinstance(events, list) or not all(_is_plain(e) for e in events):
        return None
    return [row for row in (row_of(event, base_ns) for event in events) if row is not None]


def _is_json(text: bytes) -> bool:
    try:
        json.loads(text.decode().removeprefix("\ufeff"), parse_float=Decimal, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return False
    return True


def _refuse(token: str) -> None:
    raise ValueError(token)


def _is_plain(event: Any) -> bool:
    """Types as in the format, numbers of a size that parsers agree on."""
    return (
        isinstance(event, dict)
        and isinstance(event.get("args", {}), dict)
        and isinstance(event.get("name", ""), str)
        and _is_moderate(event)
    )


def _is_moderate(value: Any) -> bool:
    if isinstance(value, dict):
        return all(_is_moderate(v) for v in value.values())
    if isinstance(value, list):
        return all(_is_moderate(v) for v in value)
    if isinstance(value, Decimal):
        _, digits, exponent = value.as_tuple()
        return isinstance(exponent, int) and -4 < exponent < 1 and len(digits) < 25
    return not isinstance(value, int) or -(2**63) <= value < 2**64
