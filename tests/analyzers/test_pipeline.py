"""The table of a pipeline: micro-batches by the schedule's marks, stages, and parts that add up to the step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from kineto import kernel, span, step, write

import tracekit
from tracekit.model.pipeline_marks import pipeline_marks
from tracekit.model.run import Run
from tracekit.report.sentences import sentences

GEMM, SEND_RECV = "sm90_xmma_gemm", "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"


def sent(kind: str, at: int, dur: int, ident: int, peer: int) -> list[dict[str, Any]]:
    """A send or recv whose kernel is launched inside its call."""
    side = "Dst Rank" if kind == "send" else "Src Rank"
    told = {"Collective name": kind, "In msg nelems": 8, "Out msg nelems": 8, "dtype": "Float", side: peer}
    inner = span("record_param_comms", at - 7, 2)
    inner["args"] |= told | {"Process Group Name": "0", "Group size": 2, "External id": ident}
    row = kernel(SEND_RECV, at, dur, stream=20, correlation=ident, launch=at - 6, args={"External id": ident})
    return [span(f"c10d::{kind}", at - 8, 4), inner, *row]


def mark(name: str, at: int, dur: int) -> dict[str, Any]:
    return span(name, at, dur) | {"cat": "user_annotation"}


def two_stages(folder: Path, forward: str = "Forward 0", backward: str = "Backward 0") -> Run:
    """Stage 0 computes 100 us and sends; stage 1 waits for it, computes 200 us, and sends back."""
    first = [
        mark(forward, 1010, 90),
        *kernel(GEMM, 1100, 100, stream=7, correlation=1, launch=1020),
        *sent("send", 1200, 30, 2, 1),
    ]
    first += [
        mark(backward, 1225, 60),
        *sent("recv", 1240, 220, 3, 1),
        *kernel(GEMM, 1460, 50, stream=7, correlation=4, launch=1250),
    ]
    second = [
        mark(forward, 1010, 60),
        *sent("recv", 1030, 200, 2, 0),
        *kernel(GEMM, 1230, 200, stream=7, correlation=1, launch=1050),
    ]
    second += [mark(backward, 1400, 60), *sent("send", 1430, 30, 3, 0)]
    for rank, events in enumerate((first, second)):
        write(folder / f"rank{rank}.json", [step(5, 1000, 1000), *events], rank=rank, world_size=2)
    return tracekit.open(folder, cache=False)


def test_time_of_each_micro_batch_and_phase(tmp_path: Path):
    table = two_stages(tmp_path).table("pipeline")
    columns = ["stage", "micro_batch", "phase", "busy_ns", "transfer_ns", "wait_ns", "bubble_ns"]
    us = [(*row[:3], *(part // 1000 for part in row[3:])) for row in table.select(columns).iter_rows()]
    assert [row for row in us if row[1] is not None] == [
        (0, 0, "forward", 100, 0, 0, 0),
        (0, 0, "backward", 50, 30, 190, 200),
        (1, 0, "forward", 200, 30, 170, 170),
        (1, 0, "backward", 0, 30, 0, 0),
    ]


@pytest.mark.parametrize("names", [("Forward 0", "Backward 0"), ("PP:0F0", "PP:0B0"), ("fwd", "bwd")])
def test_parts_add_up_to_the_step(tmp_path: Path, names: tuple[str, str]):
    run = two_stages(tmp_path, *names)
    parts = pl.col("busy_ns") + pl.col("transfer_ns") + pl.col("bubble_ns")
    sums = run.table("pipeline").group_by("rank", "device", "step").agg(parts.sum().alias("sum_ns"))
    both = run.table("breakdown").join(sums, on=["rank", "device", "step"])
    assert both.height == 2
    assert both["sum_ns"].to_list() == both["step_ns"].to_list()


def test_no_pipeline_without_sends(tmp_path: Path):
    write(tmp_path / "rank0.json", [step(5, 1000, 900), *kernel(GEMM, 1100, 100, stream=7, correlation=1, launch=1020)])
    assert tracekit.open(tmp_path, cache=False).table("pipeline").is_empty()


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("Forward 3", (None, 3, "forward")),
        ("Backward 12", (None, 12, "backward")),
        ("PP:2F1", (2, 1, "forward")),
        ("PP:2B1", (2, 1, "backward")),
        ("PP:0I4", (0, 4, "backward")),
        ("PP:0W4", (0, 4, "backward")),
        ("PP:1SEND_F0", None),
        ("Forward pass", None),
    ],
)
def test_marks_of_the_schedules(name: str, found: tuple[int | None, int, str] | None):
    event = {"rank": 0, "cycle": 0, "cat": "user_annotation", "ph": "X", "name": name, "ts_ns": 1, "dur_ns": 2}
    rows = pipeline_marks(pl.DataFrame([event])).select("stage", "micro_batch", "phase").rows()
    assert rows == ([] if found is None else [found])


def test_the_first_sentence_tells_the_bubble_and_the_busiest_stage(tmp_path: Path):
    assert sentences(two_stages(tmp_path))[0] == (
        "The pipeline's ranks stood idle or waited for one another (its bubble) for 44 % of their steps; stage 1 "
        "(rank 1) is the busiest, 200.0 µs a step, the next 150.0 µs."
    )


def test_marks_of_stages_are_layers_where_nothing_inside_tells_of_one(tmp_path):
    from kineto import mark, span, step, write

    import tracekit

    events = [
        step(5, 1000, 1000),
        mark("PP:1F0", 1100, 100), span("aten::mm", 1110, 50),
        mark("PP::1B0", 1300, 200), span("aten::mm", 1310, 50),
        mark("FSDP::pre_forward (layers.3)", 1360, 10), span("aten::mm", 1362, 5),
        span("aten::mm", 1700, 20),
    ]  # fmt: skip
    run = tracekit.open(write(tmp_path / "rank0.json", events), cache=False)
    found = run.work.sort("start_ns").select("layer", "layer_from", "phase").rows()
    assert found[0] == ("stage 1", "pipeline", "forward")
    assert found[1] == ("stage 1", "pipeline", "backward")
    assert found[2][:2] == ("layers.3", "FSDP2")
    assert found[3][0] is None
