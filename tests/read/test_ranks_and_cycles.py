"""The rank and cycle of each file, what is missing, and the cycle that is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kineto import COMMON, kernel, span, step, write

import tracekit
from tracekit.errors import InputError
from tracekit.read.decoding.metadata import Metadata
from tracekit.read.discovery.cycles import split_cycles
from tracekit.read.discovery.ranks import assign_ranks, world_size
from tracekit.read.discovery.sources import Source, find_sources

N = len(COMMON)


@pytest.mark.parametrize(
    ("in_names", "told", "ranks"),
    [
        ([], [], []),
        ([None], [None], [(0, "order")]),
        ([5, 6], [1, 0], [(1, "distributedInfo"), (0, "distributedInfo")]),
        ([5, 6], [None, None], [(5, "file name"), (6, "file name")]),
        ([None, None], [None, None], [(0, "order"), (1, "order")]),
        # A file that tells keeps its rank; the others fill up from the lowest free one.
        ([None, None, 1], [0, None, None], [(0, "distributedInfo"), (2, "order"), (1, "file name")]),
        # No rank is negative or larger than a table can hold.
        ([3, None], [-1, 2**40], [(3, "file name"), (0, "order")]),
    ],
)
def test_rank_is_told_then_named_then_counted(in_names: list[Any], told: list[Any], ranks: list[Any]) -> None:
    sources = [Source(Path(f"{i}"), 0, r, None if r is None else "file name") for i, r in enumerate(in_names)]
    assert [tuple(r) for r in assign_ranks(sources, told)] == ranks


def test_the_manifest_knows_the_world_size_best() -> None:
    assert world_size([Metadata(world_size=8)], 2) == 2


def test_a_rank_that_gave_nothing_is_left_out_and_missed(tmp_path: Path) -> None:
    write(tmp_path / "rank0.json", COMMON, rank=0, world_size=2)
    (tmp_path / "rank1.json").write_bytes(b"")
    (tmp_path / "config.json").write_text('{"lr": 1}')
    run = tracekit.open(tmp_path)
    assert run.missing_ranks == [1]
    left_out = run.repairs.filter(done="file left out").select("file", "rank").rows()
    assert left_out == [(str(tmp_path / "config.json"), None), (str(tmp_path / "rank1.json"), 1)]
    # Who names a file wants it read.
    with pytest.raises(InputError, match=r"rank1\.json: the file is empty"):
        tracekit.open([tmp_path / "rank0.json", tmp_path / "rank1.json"])


TORCHTITAN = ["iteration_10/rank0_trace.json", "iteration_10/rank1_trace.json", "iteration_20/rank0_trace.json"]


def test_files_of_other_cycles_are_listed(tmp_path: Path) -> None:
    for name in TORCHTITAN:
        write(tmp_path / name, COMMON, rank=int(name[-12]))
    run = tracekit.open(tmp_path)
    assert run.cycles == [10, 20]
    assert run.ranks.select("cycle", "rank", "rank_from", "num_events", "first_step", "complete").rows() == [
        (10, 0, "distributedInfo", N, 5, True),
        (10, 1, "distributedInfo", N, 5, True),
        (20, 0, "file name", None, None, None),
    ]


def test_a_cycle_that_its_manifest_calls_cut_is_not_the_complete_one(tmp_path: Path) -> None:
    for name in ("cycle0/rank0.json", "cycle1/rank0.json"):
        write(tmp_path / name, COMMON, rank=0)
    traces = [{"cycle": 0, "complete": True}, {"cycle": 1, "complete": False, "reason": "killed"}]
    manifest = {"format": 1, "strategy": "ddp", "world_size": 1, "psi": 1, "psi_train": 1}
    (tmp_path / "manifest.json").write_text(json.dumps({**manifest, "ranks": [{"rank": 0, "traces": traces}]}))
    assert tracekit.open(tmp_path).ranks.drop_nulls("num_events")["cycle"].to_list() == [0]
    assert tracekit.open(tmp_path, cycle=1).steps["reason"].to_list() == ["killed"]
    # The manifest is found from the file, too.
    assert tracekit.open(tmp_path / "cycle0" / "rank0.json").psi == 1


@pytest.mark.parametrize(
    ("files", "told", "cycles"),
    [
        # tensorboard_trace_handler: one file a worker and cycle, told apart by time.
        (["h_11.170.pt.trace.json", "h_11.180.pt.trace.json", "h_12.175.pt.trace.json", "h_12.185.pt.trace.json"],
         None, [0, 1, 0, 1]),
        # Times of different length are numbers, not text.
        (["h_11.99.pt.trace.json", "h_11.100.pt.trace.json"], None, [0, 1]),
        # A step number in every name is the cycle.
        (["worker0_step_12.1.pt.trace.json", "worker0_step_24.2.pt.trace.json"], None, [12, 24]),
        (["rank0_step10.json", "rank0_step20.json", "rank1_step10.json", "rank1_step20.json"], None, [10, 20, 10, 20]),
        # One window of workers whose step numbers differ is one cycle.
        (["worker0_step_12.1.pt.trace.json", "worker1_step_13.2.pt.trace.json"], None, [0, 0]),
        # Ranks that call themselves alike are told apart by what their traces say.
        (["h_1.170.pt.trace.json", "h_1.171.pt.trace.json"], [0, 1], [0, 0]),
    ],
)  # fmt: skip
def test_cycles_in_a_flat_folder(tmp_path: Path, files: list[str], told: list[int] | None, cycles: list[int]) -> None:
    for n, name in enumerate(files):
        write(tmp_path / name, COMMON, rank=told[n] if told else None)
    found = {s.path.name: s.cycle for s in split_cycles(find_sources([tmp_path]))}
    assert found == dict(zip(files, cycles, strict=True))


def test_a_kernel_that_runs_late_counts_for_the_step_that_launched_it(tmp_path: Path) -> None:
    late = kernel("gemm", 1250, 10, stream=7, correlation=1, launch=1190)
    run = tracekit.open(write(tmp_path / "r.json", [step(5, 1000, 200), step(6, 1200, 200), *late]))
    assert run.steps.select("step", "complete").rows() == [(5, True), (6, False)]


def test_cpu_steps_need_no_device(tmp_path: Path) -> None:
    run = tracekit.open(write(tmp_path / "r.json", [step(5, 1000, 200), span("aten::mm", 1010, 5), step(6, 1200, 9)]))
    assert run.steps["complete"].to_list() == [True, True]


@pytest.mark.parametrize(
    ("numbers", "turns", "note"),
    [
        ({0: [2, 3], 1: [2, 3]}, [2, 3, 2, 3], None),
        # A rank that was cut early still agrees.
        ({0: [2, 3], 1: [2]}, [2, 3, 2], None),
        ({0: [2, 3], 1: [3, 4]}, [0, 1, 0, 1], "step numbers differ between ranks: 2 to 3 on rank 0; 3 to 4 on rank 1"),
    ],
)
def test_step_numbers_match_across_ranks_only_where_all_agree(
    tmp_path: Path, numbers: dict[int, list[int]], turns: list[int], note: str | None
) -> None:
    from tracekit.model.steps import turns as with_turns

    for rank, steps in numbers.items():
        write(tmp_path / f"rank{rank}.json", [step(n, 1000 * n, 100) for n in steps], rank=rank, world_size=2)
    run = tracekit.open(tmp_path)
    assert with_turns(run.steps)["turn"].to_list() == turns
    assert run.repairs["what"].to_list() == ([note] if note else [])
