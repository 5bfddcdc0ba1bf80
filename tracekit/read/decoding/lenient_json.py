"""Lenient JSON: one object of damaged text, read leniently, else after repairs of faults that real traces have.

Of equal keys in one object the last counts, as everywhere in reading.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec

from tracekit.read.decoding.events import WIDEST, Event

ODD_NUMBER = "number that JSON does not know (inf, nan)"
_LARGE_NUMBER = "number beyond 64 bits"
_ILLEGAL_ESCAPE = "illegal escape in text"
_SURROGATE = "half of a surrogate pair in text"
# Of the bare words, those with brackets and "#" are what C programs write on Windows.
_TOKEN = re.compile(
    r'"(?:[^"\\]|\\.)*"|[-+]?(?:\b(?:inf(?:inity)?|nan)\b(?:\(\w*\))?|\b1\.#[a-z]+\d*)', re.IGNORECASE | re.DOTALL
)
# Legal escapes are matched too, so that the second half of one never begins another.
_ESCAPE = re.compile(r'(\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))|\\(.)', re.DOTALL)
_HALF_PAIR = re.compile("[\ud800-\udfff]")
# A value with quotes of its own ends where the next key of an event, or the end of the object, follows; it is not
# looked for farther than any name is long.
_QUOTED_VALUE = re.compile(
    r'("(?:name|cat|Call stack|Python module)"\s*:\s*")((?:(?!"(?:name|cat)"\s*:).){0,4096}?)'
    r'(?="\s*(?:,\s*"[A-Za-z_ ]+"\s*:|\}))',
    re.DOTALL,
)
# Repairs look at so much text: no event is longer, and a lost quote must not make each attempt search all the rest.
_MAX_REPAIRED_CHARS = 2**16
_FEW_DIGITS = 18
_MOST_DIGITS = 20
_FIRST_CHARS = 2**12
# Length of a token that a cut can leave incomplete: true, null, an escape.
_LONGEST_TOKEN = 16
_TIMES = ("ts", "dur")


def _refuse(token: str) -> Any:
    raise ValueError(token)


def _integer(digits: str) -> int | Decimal:
    return int(digits) if len(digits) <= _FEW_DIGITS else Decimal(digits)


_STRICT = json.JSONDecoder(parse_float=Decimal, parse_int=_integer, parse_constant=_refuse)
_LENIENT = json.JSONDecoder(parse_float=Decimal, parse_int=_integer, strict=False)
_WRITER = msgspec.json.Encoder(decimal_format="number")


class Attempt(NamedTuple):
    """The object found (None: not readable), where to continue, what was repaired, and the characters looked at."""

    value: dict[str, Any] | None
    end: int
    repaired: list[str]
    cost: int


def object_at(text: str, start: int, limit: int) -> Attempt:
    """Return the object that begins at `start`; one that has to be repaired ends before `limit`."""
    value, end = _parse(_STRICT, text, start)
    if value is not None:
        return Attempt(value, end, [], 0)
    cost = 2 * (end - start) + 100
    value, end = _parse(_LENIENT, text, start)
    cost += end - start
    if value is not None:
        return Attempt(value, end, [] if _has_odd_number(value) else ["raw control characters in text"], cost)
    candidate = text[start : min(limit, start + _MAX_REPAIRED_CHARS)]
    for repairs in ((_TOKENS,), (_QUOTES, _TOKENS)):
        changed, what, steps = candidate, set[str](), list[_Shifts]()
        for repair in repairs:
            changed, step = _replaced(repair, changed, what)
            steps.append(step)
        cost += 10 * len(candidate)
        value, end = _parse(_LENIENT, changed, 0) if what else (None, 0)
        if value is not None:
            return Attempt(value, start + _position_before(steps, end), sorted(what), cost)
    return Attempt(None, start + 1, [], cost)


def whole_object(text: bytes) -> tuple[dict[str, Any], list[str]] | None:
    """Return all of this text as one object, and what was repaired for it; None where it cannot be read."""
    readable = text.decode("utf-8", "replace").strip()
    found = object_at(readable, 0, len(readable)) if readable.startswith("{") else None
    if found is None or found.value is None or readable[found.end :]:
        return None
    what = set(found.repaired)
    value = _clean(found.value, what)
    return value, sorted(what)


def _parse(decoder: json.JSONDecoder, text: str, start: int) -> tuple[dict[str, Any] | None, int]:
    """Return the object and its end, or None and how far the decoder read.

    Python's json counts the lines before a fault, so it is only given as much text as the object turns out to need.
    """
    size = _FIRST_CHARS
    while True:
        part = text[start : start + size]
        try:
            value, end = decoder.raw_decode(part)
        except json.JSONDecodeError as error:
            is_cut = error.msg.startswith("Unterminated") or error.pos > len(part) - _LONGEST_TOKEN
            if is_cut and start + size < len(text):
                size *= 8
                continue
            return None, start + (len(part) if is_cut else error.pos)
        except (ValueError, ArithmeticError, RecursionError):
            return None, start + min(5000, len(part))
        return (value, start + end) if isinstance(value, dict) else (None, start + end)


# Ends of replacements in the new text, each with the characters that the text has grown by up to there.
_Shifts = list[tuple[int, int]]


class _Repair(NamedTuple):
    pattern: re.Pattern[str]
    replace: Callable[[re.Match[str]], tuple[str, str]]


def _replaced(repair: _Repair, text: str, what: set[str]) -> tuple[str, _Shifts]:
    """Return the text after one kind of repair, and its shifts; faults found are added to `what`."""
    step: _Shifts = []
    longer = 0

    def replace(found: re.Match[str]) -> str:
        nonlocal longer
        new, fault = repair.replace(found)
        if new != found[0]:
            what.add(fault)
            longer += len(new) - len(found[0])
            step.append((found.end() + longer, longer))
        return new

    return repair.pattern.sub(replace, text), step


def _position_before(steps: list[_Shifts], position: int) -> int:
    """Return the position in the original text of a position after these repairs."""
    for step in reversed(steps):
        position -= next((longer for end, longer in reversed(step) if end <= position), 0)
    return position


def _token(found: re.Match[str]) -> tuple[str, str]:
    """Return null for a bare inf or nan, and text with its illegal escapes escaped; and the fault."""
    if found[0][0] != '"':
        return "null", ODD_NUMBER
    return _ESCAPE.sub(lambda e: e[1] or "\\\\" + e[2], found[0]), _ILLEGAL_ESCAPE


def _quoted(found: re.Match[str]) -> tuple[str, str]:
    """Return a value with the quotes inside it escaped, and a backslash at its end; and the fault."""
    escaped = re.sub(r'(?<!\\)"', r"\"", found[2])
    if (len(escaped) - len(escaped.rstrip("\\"))) % 2:
        return f"{found[1]}{escaped}\\", _ILLEGAL_ESCAPE
    return found[1] + escaped, "unescaped quote in text"


_TOKENS = _Repair(_TOKEN, _token)
_QUOTES = _Repair(_QUOTED_VALUE, _quoted)


def event_of(value: dict[str, Any]) -> tuple[Event, list[str]] | None:
    """Return an object as an event and what was repaired for it; None where it is another object (arguments, say)."""
    if "ph" not in value:
        return None
    what: set[str] = set()
    # A time of another type counts as missing, and is counted with the missing times.
    value = {key: None if key in _TIMES and isinstance(v, bool | list | dict) else v for key, v in value.items()}
    try:
        clean = _clean(value, what)
    except RecursionError:
        clean = _clean({k: v for k, v in value.items() if k != "args"}, what)
        what.add("arguments that cannot be read")
    if not isinstance(clean.get("args"), dict | None):
        what.add("arguments that cannot be read")
        del clean["args"]
    text = _WRITER.encode(clean)
    try:
        return msgspec.json.decode(text, type=WIDEST.event), sorted(what)
    except msgspec.MsgspecError:
        return None


def _clean(value: Any, what: set[str], key: str = "") -> Any:
    """Return the value without what JSON cannot hold: such numbers become None, such characters U+FFFD."""
    if isinstance(value, dict):
        return {_clean(k, what): _clean(v, what, k) for k, v in value.items()}
    if isinstance(value, list):
        return [_clean(v, what) for v in value]
    if isinstance(value, str) and _HALF_PAIR.search(value):
        what.add(_SURROGATE)
        return _HALF_PAIR.sub("\ufffd", value)
    if isinstance(value, float):
        # Only NaN and Infinity are parsed as floats.
        what.add(ODD_NUMBER)
        return None
    if isinstance(value, Decimal):
        return _number(value, what, key)
    return value


def _number(value: Decimal, what: set[str], key: str) -> Any:
    _, digits, exponent = value.as_tuple()
    # Addresses use all 64 bits, without a sign.
    if exponent == 0 and len(digits) <= _MOST_DIGITS and abs(value) < 2**64:
        return int(value)
    if len(digits) > 64 or value.adjusted() > 18:
        what.add(_LARGE_NUMBER)
        return None
    return value if key in _TIMES else float(value)


def _has_odd_number(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_odd_number, value.values()))
    return any(map(_has_odd_number, value)) if isinstance(value, list) else isinstance(value, float)
