"""A run that the runners left, and what a test asks of it."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from math import prod
from pathlib import Path

# Two axes need two ranks on each.
FOUR_RANKS = ("hsdp", "fsdp2-tp")


@dataclass(frozen=True)
class Recorded:
    """A run that the runners left, and the losses that rank 0 printed."""

    path: Path
    losses: list[float]

    @property
    def manifest(self):
        return read(self.path / "manifest.json")

    def trace(self, rank=0):
        return read(self.path / f"rank{rank}.json.gz")["traceEvents"]

    def calls(self, rank=0):
        """(operator, elements of its first tensors) of the collectives of each recorded step, in the order of issue.

        Names are those of c10d without their decoration: "allreduce", "allgather_base"...; operators take tensors or
        lists of tensors.
        """
        events = sorted((e for e in self.trace(rank) if e.get("ph") == "X"), key=lambda e: e["ts"])
        steps = [e for e in events if e["name"].startswith("ProfilerStep#")]
        calls = [e for e in events if e["name"].startswith("c10d::")]
        return [
            [
                (e["name"].removeprefix("c10d::").strip("_"), *(numel(d) for d in e["args"]["Input Dims"][:2]))
                for e in calls
                if step["ts"] <= e["ts"] < step["ts"] + step["dur"]
            ]
            for step in steps
        ]

    def sent(self, name, side=0, rank=0):
        """Elements of each call of an operator in the last recorded step; `side` is its tensor argument's place."""
        return [call[1 + side] for call in self.calls(rank)[-1] if call[0] == name]

    def annotations(self, rank=0):
        return [e["name"] for e in self.trace(rank) if e.get("cat") == "user_annotation"]


def read(path):
    data = path.read_bytes()
    return json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)


def numel(dims):
    """Elements of a tensor, or of the tensors of a list; a scalar has no dimension and one element."""
    if dims and isinstance(dims[0], list):
        return sum(prod(tensor) for tensor in dims)
    return prod(dims)
