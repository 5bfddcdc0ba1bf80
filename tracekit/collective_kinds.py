"""The kinds of collectives, and how often each of them sends its payload around a ring."""

from __future__ import annotations

# A kind that is not here ("other") has no defined number of passes.
PASSES = {
    "all_gather": 1,
    "reduce_scatter": 1,
    "broadcast": 1,
    "reduce": 1,
    "all_reduce": 2,
    "all_to_all": 1,
    "send": 1,
    "recv": 1,
}
