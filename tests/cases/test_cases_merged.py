"""Several ranks in one file: told apart where that is safe, else refused; ranks that shared a path are refused."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from kineto import COMMON, document, kernel, span, step, write

import tracekit
from tracekit import cli
from tracekit.errors import InputError

pytestmark = pytest.mark.slow

Events = list[dict[str, Any]]
GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def rank(pid: Any, device: Any, *, gather: float = 1060, launch: float | None = None, first: int = 1) -> Events:
    """A rank that computes from 1010 to 1110 and gathers for 100, in a process and on a device of these numbers."""
    rows = [
        step(5, 1000, 300),
        span("aten::mm", 1001, 4),
        *kernel("gemm", 1010, 100, stream=7, correlation=first),
        *kernel(GATHER, gather, 100, stream=20, correlation=first + 1, launch=launch),
    ]
    return [row | {"pid": device if row["cat"] == "kernel" else pid} for row in rows]


def exposed(run: tracekit.Run) -> list[int]:
    """Exposed communication of each rank, in us."""
    table = run.table("overlap", by=["rank"]).sort("rank")
    return [ns // 1000 for ns in table["exposed_ns"]]


def shifted(events: Events, by: float) -> Events:
    return [event | {"ts": event["ts"] + by} for event in events]


TWO = [*rank(100, 0), *rank(1_000_100, 1_000_000, gather=1150)]
OTHER_TWO = [*rank(100, 0), *rank(101, 1, gather=1150)]


@pytest.mark.parametrize(
    ("events", "right"),
    [
        (TWO, [50, 100]),
        (OTHER_TWO, [50, 100]),
        # Of the file's order nothing is believed that launches contradict.
        ([*rank(101, 1, gather=1150), *rank(100, 0)], [50, 100]),
        (sorted(TWO, key=lambda event: event["ts"]), [50, 100]),
        # The second process drives the first device.
        ([*rank(100, 1), *rank(101, 0, gather=1150)], [50, 100]),
        # Text, as mergers of traces write it: devices of one number are two.
        ([*rank("[TP00] 4242", "[TP00] 0"), *rank("[TP01] 4242", "[TP01] 0", gather=1150)], [50, 100]),
        ([*rank("p2 7", "p2 0"), *rank("p10 7", "p10 0", gather=1150)], [50, 100]),
        ([*rank("alpha", "alpha GPU"), *rank("beta", "beta GPU", gather=1150)], [50, 100]),
        # Three, of which the third gathers latest.
        ([*TWO, *rank(2_000_100, 2_000_000, gather=1230)], [50, 100, 100]),
        ([*OTHER_TWO, *rank(102, 2, gather=1230)], [50, 100, 100]),
        # Equal ranks: any assignment is possible, and all say the same.
        ([*rank(100, 0), *rank(101, 1)], [50, 50]),
        # One device number: ids that only one process launched, or that take turns with their launches.
        ([*rank(100, 0), *rank(101, 0, gather=1150, first=11)], [50, 100]),
        ([*rank(100, 0), *shifted(rank(101, 0, gather=1150), 10_000)], [50, 100]),
        # A process with two devices beside one with one.
        ([*rank(100, 0), *rank(101, 1, gather=1150, first=11), *kernel("gemm", 1020, 9, stream=7, correlation=11)[1:]],
         [50, 100]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("cache", [True, False])
def test_ranks_in_one_file_are_told_apart(tmp_path: Path, events: Events, right: list[int], cache: bool) -> None:
    more = [span("aten::add", 1002, 1) | {"pid": event["pid"]} for event in events if "Step" in event["name"]] * 500
    path = write(tmp_path / "merged.json", [*events, *(more if cache else [])], rank=0, world_size=len(right))
    for _ in range(2 if cache else 1):
        run = tracekit.open(path, cache=cache)
        assert exposed(run) == right
        told = ["distributedInfo", *["order of pids"] * (len(right) - 1)]
        assert run.ranks.select("rank", "rank_from").rows() == list(enumerate(told))
        assert set(run.ranks["file"]) == {str(path)}
        assert run.ranks["num_events"].sum() == run.events.height
        assert run.repairs["what"].str.contains("processes that mark steps in one file").any()
        assert run.steps.group_by("rank").len().sort("rank")["len"].to_list() == [1] * len(right)


def test_processes_without_steps_are_no_ranks(tmp_path: Path) -> None:
    worker = [span("aten::stack", 1000 + n, 1) | {"pid": 555} for n in range(3)]
    one = tracekit.open(write(tmp_path / "one.json", [*rank(100, 0), *worker]), cache=False)
    assert one.ranks["rank"].to_list() == [0]
    assert exposed(one) == [50]
    assert one.repairs.is_empty()
    two = tracekit.open(write(tmp_path / "two.json", [*TWO, *worker]), cache=False)
    assert exposed(two) == [50, 100]
    left = two.repairs.filter(done="left out")
    assert left.select("what", "count").rows() == [("events of no process that marks steps", 3)]


def test_text_of_one_process_is_its_number(tmp_path: Path) -> None:
    run = tracekit.open(write(tmp_path / "one.json", rank("python 4242", "GPU 3")), cache=False)
    assert run.events["pid"].unique().sort().to_list() == [3, 4242]
    assert exposed(run) == [50]


def test_cpu_ranks_in_one_file(tmp_path: Path) -> None:
    def of(pid: int, start: float) -> Events:
        spans = [step(1, 0, 300), span("aten::mm", 10, 100), span("gloo:all_reduce", start, 100, tid=200)]
        return [row | {"pid": pid} for row in spans]

    run = tracekit.open(write(tmp_path / "gloo.json", [*of(7, 60), *of(8, 150)]), cache=False)
    assert exposed(run) == [50, 100]


SAME_DEVICE = [*rank(100, 0), *rank(101, 0, gather=1150)]


@pytest.mark.parametrize(
    ("events", "number"),
    [
        (SAME_DEVICE, 2),
        ([*SAME_DEVICE, *rank(102, 0, gather=1230)], 3),
        ([*TWO, *rank(102, 0, gather=1230)], 3),
        # No assignment lets all kernels start after their launches.
        ([*rank(100, 0, launch=1400), *rank(101, 1, launch=1400)], 2),
        # Any would do, and the order of numbers is not that in the file.
        ([*rank(100, 1), *rank(101, 0)], 2),
        ([*rank("a 1", "GPU 0"), *rank("b 1", "GPU 0", gather=1150)], 2),
    ],
)
def test_kernels_that_cannot_be_told_apart_are_refused(
    tmp_path: Path, events: Events, number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "merged.json", events)
    assert cli.run(["show", "overlap", str(path)]) == 2
    assert (
        f"merged.json: holds {number} processes that each have ProfilerStep#5 and whose kernels cannot be told apart; "
        "give one file a rank"
    ) in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("by", [0, 3, 10_000])
@pytest.mark.parametrize("tid", [100, 200])
@pytest.mark.parametrize("device", [0, 1])
def test_ranks_of_one_process_id_are_refused(tmp_path: Path, by: float, tid: int, device: int) -> None:
    other = [row if row["cat"] == "kernel" else row | {"tid": tid} for row in rank(1, device, gather=1150)]
    path = write(tmp_path / "merged.json", [*rank(1, 0), *shifted(other, by)])
    with pytest.raises(
        InputError, match=r"holds 2 processes that each have ProfilerStep#5 and .* \(all have one process"
    ):
        tracekit.open(path, cache=False)


def test_a_step_that_is_marked_twice_is_one_process(tmp_path: Path) -> None:
    once, again = rank(1, 0), shifted(rank(1, 0, first=11), 3)
    assert tracekit.open(write(tmp_path / "a.json", [*once, *again]), cache=False).ranks.height == 1
    # Until torch 1.9 a step is an operator too.
    assert exposed(tracekit.open(write(tmp_path / "b.json", [*once, once[0] | {"cat": "cpu_op"}]), cache=False)) == [50]


@pytest.mark.parametrize(
    ("files", "right"),
    [
        # Header rank, and the ranks that follow it.
        ({"node0.json": (TWO, 0, 4), "node1.json": (OTHER_TWO, 2, 4)},
         [(0, "distributedInfo"), (1, "order of pids"), (2, "distributedInfo"), (3, "order of pids")]),
        # Names tell as headers do.
        ({"rank0.json": (TWO, None, 4), "rank2.json": (OTHER_TWO, None, 4)},
         [(0, "file name"), (1, "order of pids"), (2, "file name"), (3, "order of pids")]),
        # The rank that would follow is another file's, or no rank of this run.
        ({"a.json": (TWO, 0, 3), "b.json": (COMMON, 1, 3)},
         [(0, "distributedInfo"), (1, "distributedInfo"), (2, "order of pids")]),
        ({"a.json": (TWO, 1, 2)}, [(0, "order of pids"), (1, "distributedInfo")]),
        ({"a.json": (TWO, None, 2)}, [(0, "order of pids"), (1, "order of pids")]),
        # What processes are called counts most.
        ({"a.json": ([*rank("rank3 9", "rank3 0"), *rank("rank1 9", "rank1 0", gather=1150)], 0, 4)},
         [(1, "process name"), (3, "process name")]),
    ],
)  # fmt: skip
def test_ranks_of_processes(
    tmp_path: Path, files: dict[str, tuple[Events, int | None, int]], right: list[tuple[int, str]]
) -> None:
    for name, (events, number, size) in files.items():
        write(tmp_path / name, events, rank=number, world_size=size)
    run = tracekit.open(tmp_path, cache=False)
    assert run.ranks.sort("rank").select("rank", "rank_from").rows() == right


def test_memory_and_frames_go_with_their_process(tmp_path: Path) -> None:
    rows = [
        {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": pid, "tid": 1, "ts": 1010,
         "args": {"Bytes": pid, "Addr": 1, "Total Allocated": pid, "Device Type": 0, "Device Id": -1}}
        for pid in (100, 101)
    ]  # fmt: skip
    frames = [span("nn.Module: Net_0", 1000, 90, cat="python_function") | {"pid": pid} for pid in (100, 101, 101)]
    run = tracekit.open(write(tmp_path / "a.json", [*OTHER_TWO, *rows, *frames]), cache=False)
    assert run.allocations.select("rank", "delta_bytes").rows() == [(0, 100), (1, 101)]
    python = run.events.filter(cat="python_function").group_by("rank").len().sort("rank")
    assert python["len"].to_list() == [1, 2]


# -- Ranks that shared a path ------------------------------------------------------------------------------------------

FIRST = json.dumps(document(rank(100, 0), rank=0, world_size=2)).encode()
SECOND = json.dumps(document(rank(101, 1, gather=1150), rank=1, world_size=2), indent=1).encode()
LONGER = json.dumps(document([*rank(101, 1), *rank(101, 1)], rank=1, world_size=2)).encode()
LISTS = [json.dumps(rank(100, 0)).encode(), json.dumps(rank(101, 1)).encode()]
BARE = [json.dumps({"traceEvents": rank(n, n)}).encode() for n in (100, 101)]


@pytest.mark.parametrize(
    "text",
    [
        FIRST + SECOND,
        FIRST + b"\n" + SECOND,
        SECOND + FIRST,
        FIRST + b"," + SECOND,
        FIRST[:400] + SECOND,
        FIRST[: FIRST.index(b"gemm") + 2] + SECOND,
        FIRST + SECOND[:-40],
        FIRST + SECOND[: SECOND.index(b"gemm")],
        FIRST[:-30] + SECOND[:300],
        # A shorter trace was written over a longer one, of which the end is left.
        FIRST + LONGER[len(FIRST) :],
        BARE[0] + BARE[1],
        LISTS[0] + LISTS[1],
        LISTS[0] + b"\n" + LISTS[1],
        LISTS[0] + FIRST,
    ],
)
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_ranks_that_wrote_one_file_are_refused(
    tmp_path: Path, text: bytes, pack: Callable[[bytes], bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(pack(text))
    assert cli.run(["show", "overlap", str(path)]) == 2
    assert "several ranks wrote this file" in " ".join(capsys.readouterr().err.split())


def test_a_damaged_file_of_several_processes_is_refused(tmp_path: Path) -> None:
    text = json.dumps(document(TWO)).encode()
    (tmp_path / "a.json").write_bytes(text.replace(b'}, {"ph"', b'} ?? {"ph"', 1))
    with pytest.raises(InputError, match=r"a.json: damaged, and 2 processes mark steps in it: several ranks wrote"):
        tracekit.open(tmp_path / "a.json", cache=False)


@pytest.mark.parametrize("cut", [-2, -20, -300])
def test_a_file_of_several_ranks_that_ends_early(tmp_path: Path, cut: int) -> None:
    text = json.dumps(document([*TWO, *(span("aten::add", 1200 + n, 1) | {"pid": 100} for n in range(3))])).encode()
    (tmp_path / "a.json").write_bytes(text[:cut])
    run = tracekit.open(tmp_path / "a.json", cache=False)
    assert exposed(run) == [50, 100]
    assert run.steps["complete"].to_list() == [False, False]
    assert run.repairs.filter(pl.col("what").str.starts_with("ends early"))["rank"].to_list() == [0, 1]
