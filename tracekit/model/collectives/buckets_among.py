"""The gradient buckets among calls of which the training loop made some itself: metrics, losses, counts of tokens."""

from __future__ import annotations

from itertools import accumulate
from typing import NamedTuple

# Calls inside backward are gradients unless they are so small a part of them: 1 in so many elements.
_SMALL_PART = 100
# Possible places in the order of gradients that are followed at once; those that leave out least are kept.
_MOST_PLACES = 64


class _Choice(NamedTuple):
    """Elements left out in backward and elsewhere, and the calls kept, the last one first."""

    lost_inside: int = 0
    lost: int = 0
    kept: tuple[int, object] | None = None


def buckets_among(numels: list[int], inside: list[bool], gradients: list[int]) -> list[int] | None:
    """Indices of the calls that are whole passes over the gradients, all others left out; None where none are.

    Of several choices the one that leaves out fewest elements is taken, and a call in backward (`inside`) is left out
    last. `numels`: elements of the calls in the order of issue; `gradients`: those of the gradients, in theirs.
    """
    ends = {0, *accumulate(gradients)}
    total = sum(gradients)
    if not total:
        return None
    # By place in the order of gradients, in elements.
    places = {0: _Choice()}
    for index, numel in enumerate(numels):
        reached: dict[int, _Choice] = {}
        for place, choice in places.items():
            if not inside[index]:
                _keep_better(reached, place, choice._replace(lost=choice.lost + numel))
            elif numel * _SMALL_PART <= total:
                _keep_better(reached, place, choice._replace(lost_inside=choice.lost_inside + numel))
            after = (place + numel) % total
            if after in ends:
                _keep_better(reached, after, choice._replace(kept=(index, choice.kept)))
        places = dict(sorted(reached.items(), key=lambda entry: entry[1][:2])[:_MOST_PLACES])
    return _indices(places[0].kept) if 0 in places else None


def _keep_better(reached: dict[int, _Choice], place: int, choice: _Choice) -> None:
    if place not in reached or choice[:2] < reached[place][:2]:
        reached[place] = choice


def _indices(kept: object) -> list[int] | None:
    found: list[int] = []
    while isinstance(kept, tuple):
        index, kept = kept
        found.append(index)
    return found[::-1] or None
