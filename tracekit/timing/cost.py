"""Time of one collective by its size: α + c·√s + β·s, fitted to measured calls, for other links and groups too.

Source of the form: α (latency) and β (bytes over bandwidth) are Hockney's model of a message; the ring's steps are
those of Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in MPICH"; √s is what a
transfer costs that is cut into chunks of the best size: k chunks take (k + steps)·(α + s·β/k), least at k ∝ √s.
What a link is, and how people write one, is in timing/links.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit.collective_kinds import PASSES
from tracekit.errors import UsageError
from tracekit.units import counted, size

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from tracekit.timing.links import Link

    Values = npt.NDArray[np.float64]

#: A call may be so many times larger than the largest that was measured, and is refused beyond.
REACH = 64
# The interval that is given holds this share of the calls that a fit was made without, on either side of the rest.
_OUTSIDE = 0.1
# Relative error from which a call counts for less: interrupts and slow starts are no property of the link.
_ROBUST = 0.03
_ROUNDS = 50
# How many times larger the largest size must be than the smallest before noise is not mistaken for another term.
_TWO_TERMS, _THREE_TERMS = 2, 8


class Curve(NamedTuple):
    """α + c·√s + β·s: ns, ns/√byte and ns/byte."""

    alpha_ns: float
    c: float
    beta: float

    def ns(self, nbytes: float) -> float:
        """Time of a call of that many bytes, in ns."""
        return self.alpha_ns + self.c * math.sqrt(nbytes) + self.beta * nbytes


@dataclass(frozen=True)
class Fit:
    """Time of a collective by its payload.

    `curve` is the fit, `least` and `most` bound it where it was carried over to another link or group. `relative_low`
    and `relative_high` are what calls differ by from a fit that was made without their size: 10 % of them are below, 10
    % above. `corrections`: at each measured size, median measured over fitted time; between two of them it changes in
    proportion to log s. `source` tells where the numbers come from.
    """

    curve: Curve
    num_calls: int
    min_bytes: int
    max_bytes: int
    relative_low: float
    relative_high: float
    source: str
    kind: str = "all_reduce"
    ranks: int = 2
    least: Curve | None = None
    most: Curve | None = None
    corrections: tuple[tuple[int, float], ...] = ()

    @property
    def alpha_ns(self) -> float:
        """What a call takes whatever its size, in ns."""
        return self.curve.alpha_ns

    @property
    def c(self) -> float:
        """What grows with the root of the size, in ns a √byte."""
        return self.curve.c

    @property
    def beta(self) -> float:
        """What grows with the size, in ns a byte."""
        return self.curve.beta

    @property
    def coverage(self) -> str:
        """What it rests on: "fitted on 84 calls, 1.00 MiB to 64.00 MiB"."""
        sizes = size(self.min_bytes)
        if self.max_bytes != self.min_bytes:
            sizes += f" to {size(self.max_bytes)}"
        return f"fitted on {counted(self.num_calls, 'call')}, {sizes}" if self.num_calls else self.source

    def time_ns(self, nbytes: int) -> tuple[int, int, int]:
        """Time of a call of `nbytes` of payload: expected, least and most, in ns.

        Inside the range that was measured, the interval is that of calls whose size the fit had not seen. Below it, the
        time lies between what the smallest call would take in proportion and what it takes; above it, between the
        largest call's time and that in proportion: time grows with size, and no faster.

        Raises:
            UsageError: the call is more than 64 times larger than the largest that was measured.
        """
        if nbytes > REACH * self.max_bytes:
            raise UsageError(
                f"{size(nbytes)} is outside of what the time of {self.kind} can be told for: {self.coverage}, "
                f"and up to {size(REACH * self.max_bytes)} can be asked"
            )
        inside = min(max(nbytes, self.min_bytes), self.max_bytes)
        correction = self._correction(inside)
        expected = self.curve.ns(nbytes) * correction
        low = (self.least or self.curve).ns(inside) * correction * (1 + self.relative_low)
        high = (self.most or self.curve).ns(inside) * correction * (1 + self.relative_high)
        if nbytes > inside:
            high *= nbytes / inside
        if nbytes < inside:
            low *= nbytes / inside
        return round(expected), round(min(low, expected)), round(max(high, expected))

    def on_link(self, link: Link, today: Link | None = None) -> Fit:
        """The same collective over a link of another rate or latency.

        The part of β that a ring needs of the link is replaced; what the hosts themselves add to each byte stays where
        `today` tells the link's rate now, and is taken to be none where it does not. c goes with the root of the rate.
        A latency is added to each of the ring's steps. Where the new link is faster, the upper bound keeps as much of
        today's β as the hosts may hide behind it.
        """
        crossed = crossings(self.kind, self.ranks)
        needed = crossed * link.ns_per_byte
        had = crossed * today.ns_per_byte if today else self.curve.beta
        steps = ring_steps(self.kind, self.ranks)
        later = 0 if link.latency_ns is None else link.latency_ns - ((today and today.latency_ns) or 0)
        ratio = needed / had if had else 1.0

        def moved(curve: Curve, host: float) -> Curve:
            alpha = max(0.0, curve.alpha_ns + steps * later)
            return Curve(alpha, curve.c * math.sqrt(ratio), max(0.0, needed + host))

        host = max(0.0, self.curve.beta - had)
        return replace(
            self,
            curve=moved(self.curve, host if ratio < 1 else 0.0),
            least=moved(self.least or self.curve, 0.0),
            most=moved(self.most or self.curve, host or self._hidden(ratio)),
            source=f"{self.source}, on {link}",
        )

    def _hidden(self, ratio: float) -> float:
        """The most that hosts may add to a byte on a faster link, in ns, unseen as long as the link was the slower."""
        return 0.1 * self.curve.beta if ratio < 1 else 0.0

    def among(self, ranks: int, kind: str | None = None) -> Fit:
        """The same collective, or another one that uses the same link, in a group of `ranks`.

        β goes with what a rank of a ring sends, α with the ring's steps, c with the root of both. How much of α is paid
        once a call, not once a step, cannot be told from one group: the least α is that of today's group.
        """
        to = kind or self.kind
        if (to, ranks) == (self.kind, self.ranks):
            return self
        steps = _over(ring_steps(to, ranks), ring_steps(self.kind, self.ranks))
        sent = _over(crossings(to, ranks), crossings(self.kind, self.ranks))

        def moved(curve: Curve, share: float) -> Curve:
            return Curve(curve.alpha_ns * share, curve.c * math.sqrt(steps * sent), curve.beta * sent)

        return replace(
            self,
            curve=moved(self.curve, steps),
            least=moved(self.least or self.curve, min(1.0, steps)),
            most=moved(self.most or self.curve, max(1.0, steps)),
            kind=to,
            ranks=ranks,
            source=f"{self.source}, for {to} among {ranks} by the ring's steps",
        )

    def _correction(self, nbytes: float) -> float:
        if not self.corrections:
            return 1.0
        sizes, factors = (np.log(np.array(values, float)) for values in zip(*self.corrections, strict=True))
        return float(np.exp(np.interp(math.log(max(nbytes, 1)), sizes, factors)))


def fit(
    nbytes: Sequence[int],
    transfer_ns: Sequence[int],
    *,
    kind: str = "all_reduce",
    ranks: int = 2,
    source: str = "this run",
) -> Fit:
    """The cost of calls of these payloads that took these transfer times, without waits. Calls of no byte are left out.

    α, c and β are the non-negative ones of least relative error to the median time of each size, which counts the less
    the farther off it is. Of sizes less than twofold apart only β is fitted; less than eightfold, or of two sizes, α
    and β: more cannot be told apart.

    Raises:
        UsageError: there is no call to fit.
    """
    pairs = [(s, t) for s, t in zip(nbytes, transfer_ns, strict=True) if s > 0 and t > 0]
    if not pairs:
        raise UsageError(f"no transfer time of {kind} is known: {source}")
    sizes, times = (np.array(values, float) for values in zip(*pairs, strict=True))
    points = _medians(sizes, times)
    curve = _curve(*points)
    low, high = np.quantile(_unseen(sizes, times, *points), [_OUTSIDE, 1 - _OUTSIDE])
    return Fit(
        curve,
        num_calls=len(pairs),
        min_bytes=int(sizes.min()),
        max_bytes=int(sizes.max()),
        relative_low=min(0.0, float(low)),
        relative_high=max(0.0, float(high)),
        source=source,
        kind=kind,
        ranks=ranks,
        corrections=tuple((int(s), float(t) / curve.ns(float(s))) for s, t in zip(*points, strict=True)),
    )


def _medians(sizes: Values, times: Values) -> tuple[Values, Values]:
    """The distinct sizes, rising, and the median time of each."""
    distinct = np.unique(sizes)
    return distinct, np.array([np.median(times[sizes == s]) for s in distinct])


def _curve(sizes: Values, times: Values) -> Curve:
    """Non-negative least squares on relative errors, a time a size, reweighted until no weight changes (soft l1)."""
    from scipy.optimize import nnls

    terms = np.stack([np.ones_like(sizes), np.sqrt(sizes), sizes], axis=1) / times[:, None]
    used = _told_apart(sizes)
    terms = terms[:, used]
    scale = terms.max(axis=0)
    weights = np.ones(len(sizes))
    found = np.zeros(len(used))
    for _ in range(_ROUNDS):
        found, _ = nnls(terms / scale * weights[:, None], weights)
        errors = terms / scale @ found - 1
        again = (1 + (errors / _ROBUST) ** 2) ** -0.25
        if np.allclose(weights, again, atol=1e-9):
            break
        weights = again
    values = [0.0, 0.0, 0.0]
    for place, value in zip(used, found / scale, strict=True):
        values[place] = float(value)
    return Curve(*values)


def _told_apart(sizes: Values) -> list[int]:
    """The terms of the curve that these sizes can tell apart: β; from sizes twofold apart on α too, of three all."""
    spread = sizes[-1] / sizes[0]
    if spread < _TWO_TERMS:
        return [2]
    return [0, 2] if len(sizes) == 2 or spread < _THREE_TERMS else [0, 1, 2]


def _unseen(sizes: Values, times: Values, distinct: Values, medians: Values) -> Values:
    """Relative differences of calls from what is predicted for them by the others.

    A size between others is left out and predicted from them; calls of the smallest and the largest size, and of all
    where there are fewer than three, are held against the median of their own.
    """
    apart: list[Values] = []
    for place, s in enumerate(distinct):
        expected = float(medians[place])
        if 0 < place < len(distinct) - 1:
            others = distinct != s
            expected = _between(distinct[others], medians[others], float(s))
        apart.append(times[sizes == s] / expected - 1)
    return np.concatenate(apart)


def _between(sizes: Values, times: Values, nbytes: float) -> float:
    """Time of a call of a size between those measured, in ns: the curve, corrected by its neighbours' errors."""
    curve = _curve(sizes, times)
    factors = [math.log(t / curve.ns(float(s))) for s, t in zip(sizes, times, strict=True)]
    return curve.ns(nbytes) * math.exp(np.interp(math.log(nbytes), np.log(sizes), factors))


def ring_steps(kind: str, ranks: int) -> int:
    """Steps of a ring: 2(n-1) for an all-reduce, which crosses it twice, n-1 for the others; 1 for a transfer.

    Raises:
        UsageError: the kind has no defined number of passes.
    """
    return 1 if kind in ("send", "recv") else _passes(kind) * max(0, ranks - 1)


def crossings(kind: str, ranks: int) -> float:
    """Bytes that one rank sends for each byte of payload: passes × (n-1)/n; 1 for a transfer."""
    return 1.0 if kind in ("send", "recv") else _passes(kind) * (ranks - 1) / ranks


def _passes(kind: str) -> int:
    if kind not in PASSES:
        raise UsageError(f"how often {kind!r} lets its payload cross is not defined, so its time cannot be told")
    return PASSES[kind]


def _over(value: float, other: float) -> float:
    return value / other if other else 1.0
