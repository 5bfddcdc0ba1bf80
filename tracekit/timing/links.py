"""A link's rate and latency, and how people write them: 400gbit,5us."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tracekit.errors import UsageError

_BITS = {"bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9, "tbit": 10**12}
# With a slash too, and bytes a second as data sheets of NVLink have them.
_RATES = {
    **_BITS,
    **{f"{name}/s": factor for name, factor in _BITS.items()},
    **{f"{name[0]}b/s": 8 * factor for name, factor in _BITS.items() if name != "bit"},
}
_TIMES = {"ns": 1, "us": 10**3, "µs": 10**3, "ms": 10**6, "s": 10**9}
_NUMBER = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-zµ/]+)")
_FORM = "give a rate and, if it matters, the latency of a step: 400gbit, 500mbit,5us or 50GB/s"


@dataclass(frozen=True)
class Link:
    """What one rank may send: bits a second, and the ns that each step of a collective waits for; None: not known."""

    rate_bits_s: int
    latency_ns: int | None = None

    @property
    def ns_per_byte(self) -> float:
        """Time of one byte, in ns."""
        return 8e9 / self.rate_bits_s

    def __str__(self) -> str:
        unit, factor = next(
            (name, factor) for name, factor in reversed(list(_BITS.items())) if self.rate_bits_s >= factor
        )
        text = f"{self.rate_bits_s / factor:g}{unit}"
        return text if self.latency_ns is None else f"{text},{self.latency_ns / 1000:g}us"


def parse_link(text: str) -> Link:
    """The link that `400gbit,5us` describes: a rate, and the latency of a step if there is a second part.

    Units are tc's, without regard to case: kbit, mbit, gbit, or MB/s, GB/s of bytes; ns, us, ms.

    Raises:
        UsageError: it is neither, or a rate of nothing.
    """
    rate, comma, latency = text.strip().lower().partition(",")
    bits = _value(rate, _RATES)
    later = _value(latency, _TIMES) if comma else None
    if not bits or (comma and later is None):
        raise UsageError(f"--link {text!r} is no link: {_FORM}")
    return Link(bits, later)


def _value(text: str, units: dict[str, int]) -> int | None:
    found = _NUMBER.fullmatch(text.strip())
    if found is None or found[2] not in units:
        return None
    return round(float(found[1]) * units[found[2]])
