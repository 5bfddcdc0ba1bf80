"""Builds Kineto traces of GPU ranks from a few lines, in the spelling of several ages of torch. Times in microseconds.

The answers of a test are computed by the test, from the same few numbers, never by the code under test.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kineto import MAIN, mark, span, write
from kineto import step as step_mark

COMPUTE_STREAM, GATHER_STREAM, REDUCE_STREAM = 7, 20, 24
WIDTH = {"Float": 4, "BFloat16": 2}
# kind -> the name in the arguments, in the annotation, in the operator, in the kernel
SPELLINGS = {
    "all_gather": ("_allgather_base", "nccl:_all_gather_base", "c10d::_allgather_base_", "AllGather"),
    "reduce_scatter": (
        "_reduce_scatter_base",
        "nccl:_reduce_scatter_base",
        "c10d::_reduce_scatter_base_",
        "ReduceScatter",
    ),
    "all_reduce": ("allreduce", "nccl:all_reduce", "c10d::allreduce_", "AllReduce"),
}
ERAS = ("1.13", "2.0", "2.2", "2.4", "2.12")


class Rank:
    """One rank's events; every device row gets the runtime event that launched it."""

    def __init__(self, rank: int, world_size: int, era: str = "2.4") -> None:
        self.rank, self.world_size, self.era = rank, world_size, era
        self.events: list[dict[str, Any]] = []
        self._ids = 0

    def step(self, number: int, ts: float, dur: float) -> None:
        """A ProfilerStep mark."""
        self.events.append(step_mark(number, ts, dur))

    def annotate(self, name: str, ts: float, dur: float) -> None:
        """A range on the CPU, such as FSDP2's."""
        self.events.append(mark(name, ts, dur))

    def kernel(self, name: str, ts: float, dur: float, *, launched: float, stream: int = COMPUTE_STREAM) -> None:
        """A kernel launched at `launched`."""
        self.events += [self._launch(launched), self._row(name, ts, dur, stream)]

    def collective(
        self,
        kind: str,
        ts: float,
        dur: float,
        *,
        issued: float,
        stream: int,
        shard: int,
        seq: int = 0,
        dtype: str = "Float",
    ) -> None:
        """A collective over all ranks: its operator at `issued`, its launch 2 later, its kernel at `ts`.

        `shard` is the number of elements of one rank; an all-reduce carries world size x shard.
        """
        args_name, annotation, op, kernel = SPELLINGS[kind]
        full = shard * self.world_size
        sizes = {"all_gather": (shard, full), "reduce_scatter": (full, shard), "all_reduce": (full, full)}[kind]
        operator = span(op, issued, 8)
        comms = span("record_param_comms", issued + 1, 6)
        note = mark(annotation, issued + 1.5, 5)
        self._ids += 1
        operator["args"] = {"External id": 10_000 + 3 * self._ids}
        comms["args"] = {"External id": 10_001 + 3 * self._ids}
        note["args"] = {"External id": 10_002 + 3 * self._ids}
        prefix = "ncclDevKernel" if self.era in ("2.4", "2.12") else "ncclKernel"
        launch, row = self._launch(issued + 2), self._row(f"{prefix}_{kernel}_RING_LL(args)", ts, dur, stream)
        self._describe(args_name, sizes, dtype, seq, operator, comms, note, row)
        self.events += [operator, comms, note, launch, row]

    def write(self, folder: Path) -> Path:
        """Write rank<r>.json."""
        return write(folder / f"rank{self.rank}.json", self.events, rank=self.rank, world_size=self.world_size)

    def _describe(
        self, name: str, sizes: tuple[int, int], dtype: str, seq: int,
        operator: dict[str, Any], comms: dict[str, Any], note: dict[str, Any], row: dict[str, Any],
    ) -> None:  # fmt: skip
        """Put size and kind where this age of torch puts them."""
        spelled = {"Float": "float", "BFloat16": "c10::BFloat16"}[dtype]
        shapes = {"Input Dims": [[sizes[1]], [sizes[0]], [], []], "Input type": [spelled, spelled, "", ""]}
        if name == "allreduce":
            shapes = {"Input Dims": [[], [], []], "Input type": ["TensorList", "", ""]}
        if self.era in ("1.13", "2.0"):
            operator["args"] |= shapes
            note["args"] |= {"Input Dims": [[sizes[0]]], "Input type": [spelled]}
            row["args"]["External id"] = row["args"]["correlation"]
            return
        size_names = ("In msg nelems", "Out msg nelems")
        args: dict[str, Any] = {
            **dict(zip(size_names, sizes, strict=True)),
            "dtype": dtype,
            "Group size": self.world_size,
        }
        args["Collective name"] = name
        if self.era in ("2.4", "2.12"):
            args |= {"Process Group Name": "0", "Process Group Description": "default_pg"}
            row["args"] |= {**args, "External id": comms["args"]["External id"]}
        if self.era == "2.12":
            args["Seq"] = seq
            row["args"]["Seq"] = seq
        comms["args"] |= args

    def _launch(self, at: float) -> dict[str, Any]:
        self._ids += 1
        return span("cudaLaunchKernel", at, 1, cat="cuda_runtime", tid=MAIN, correlation=self._ids)

    def _row(self, name: str, ts: float, dur: float, stream: int) -> dict[str, Any]:
        args = {"device": self.rank, "stream": stream, "correlation": self._ids}
        return span(name, ts, dur, cat="kernel", pid=self.rank, tid=stream, **args)
