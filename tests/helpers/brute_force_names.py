"""What collectives, their kernels and their dtypes are called, for the oracle (brute_force.py)."""

from __future__ import annotations

import re
from functools import cache

# Longer words first: a "reduce_scatter" holds a "reduce".
KINDS = {
    "reducescatter": "reduce_scatter",
    "allreduce": "all_reduce",
    "crossdevicereduce": "all_reduce",
    "allgather": "all_gather",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
    "sendrecv": "other",
    "send": "send",
    "recv": "recv",
    "reduce": "reduce",
    "barrier": "other",
    "gather": "other",
    "scatter": "other",
}
WIDTHS = {
    1: "float8e4m3fn float8e4m3fnuz float8e5m2 float8e5m2fnuz float8e8m0fnu char signedchar byte unsignedchar bool",
    2: "bfloat16 half short shortint uint16",
    4: "float int uint32",
    8: "double long longint uint64 complexfloat",
    16: "complexdouble",
}
WIDTH = {spelling: width for width, spellings in WIDTHS.items() for spelling in spellings.split()}
COMM_KERNEL = re.compile(
    r"(?i)nccl|rccl|oneccl|hccl|userbuffers|all_?reduce|cross_device_reduce|nvshmem|deep_?ep::|::Ep(Dispatch|Combine)"
)
GENERATED = re.compile(r"triton_")  # a compiler's fused kernel is called after all that it fuses


@cache
def kind_of(spelling: str | None) -> str | None:
    letters = re.sub(r"[^a-z]", "", (spelling or "").lower().split("(", maxsplit=1)[0])
    return next((kind for word, kind in KINDS.items() if word in letters), None)


@cache
def width_of_dtype(dtype: str | None) -> int | None:
    return WIDTH.get(re.sub(r"c10::|[^a-z0-9]", "", (dtype or "").lower()))


@cache
def is_called_so(name: str) -> bool:
    """Whether a kernel is communication by its name."""
    return COMM_KERNEL.search(name) is not None and not GENERATED.match(name)
