"""Which rank and cycle a file is, what is missing, and which cycle is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kineto import COMMON, kernel, span, step, write

import tracekit
from tracekit.errors import InputError, UsageError
from tracekit.read.cycles import split_cycles
from tracekit.read.facts import Facts
from tracekit.read.ranks import assign_ranks, missing_ranks, rank_findings, world_size
from tracekit.read.sources import Source, find_sources

N = len(COMMON)


@pytest.mark.parametrize(
    ("name", "rank", "named_by"),
    [
        ("rank3_trace.json", 3, "file name"),
        ("rank-3.json", 3, "file name"),
        ("host_r3.json.gz", 3, "file name"),
        ("worker3.json", 3, "file name"),
        ("RANK_07.json", 7, "file name"),
        ("worker0_rank3.json", 3, "file name"),
        ("global_rank12.json", 12, "file name"),
        ("rank3/trace.json", 3, "folder name"),
        ("rank3/rank5.json", 5, "file name"),
        ("node1/rank_2/out/t.json", 2, "folder name"),
        ("frank3.json", None, None),
        ("our3d.json", None, None),
        ("trace_r2d2.json", None, None),
        ("worker1694128201545.json", None, None),
        ("300rank.json", None, None),
        ("my_rank0_traces/t.json", None, None),
    ],
)
def test_ranks_in_names(tmp_path: Path, name: str, rank: int | None, named_by: str | None) -> None:
    write(tmp_path / name, COMMON)
    assert [(s.rank_in_name, s.named_by) for s in find_sources([tmp_path])] == [(rank, named_by)]


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


def test_two_files_of_one_rank_are_refused_in_one_sentence(tmp_path: Path) -> None:
    write(tmp_path / "a.json", COMMON, rank=0)
    write(tmp_path / "b.json", COMMON, rank=0)
    with pytest.raises(InputError, match=r"rank 0 is also in .*a\.json \(by distributedInfo\)") as caught:
        tracekit.open(tmp_path)
    assert str(tmp_path / "b.json") in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("ranks", "said", "size", "missing", "what"),
    [
        ([0], [None], None, [], []),
        ([0, 1], [2, 2], 2, [], []),
        ([0, 2], [4, 4], 4, [1, 3], ["no file of ranks 1, 3: needs 4 of 4 ranks, has 2"]),
        ([0, 1, 2, 7], [4] * 4, 4, [3],
         ["rank 7 of a world of 4 ranks", "no file of rank 3: needs 4 of 4 ranks, has 3"]),
        ([34], [300], 300, [*range(34), *range(35, 300)],
         ["no file of ranks 0-33, 35-299: needs 300 of 300 ranks, has 1"]),
        ([0, 1], [1, 2], 2, [], ["world size 1, where the run has 2"]),
        ([0], [2**62], None, [], [f"world size {2**62}, where the run has an unknown one"]),
        ([0], [0], None, [], ["world size 0, where the run has an unknown one"]),
    ],
)  # fmt: skip
def test_missing_and_extra_ranks(
    ranks: list[int], said: list[int | None], size: int | None, missing: list[int], what: list[str]
) -> None:
    facts = [Facts(world_size=s) for s in said]
    assert world_size(facts, None) == size
    assert missing_ranks(ranks, size) == missing
    assert [finding.what for _, finding in rank_findings(ranks, facts, size)] == what


def test_the_manifest_knows_the_world_size_best() -> None:
    assert world_size([Facts(world_size=8)], 2) == 2


def test_a_run_with_missing_and_extra_ranks_opens(tmp_path: Path) -> None:
    for rank in (0, 2, 7):
        write(tmp_path / f"r{rank}.json", COMMON, rank=rank, world_size=4)
    run = tracekit.open(tmp_path)
    assert (run.world_size, run.missing_ranks) == (4, [1, 3])
    assert run.ranks["num_events"].to_list() == [N] * 3
    assert run.repairs.select("rank", "what", "count").rows() == [
        (7, "rank 7 of a world of 4 ranks", 1),
        (None, "no file of ranks 1, 3: needs 4 of 4 ranks, has 2", 2),
    ]


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


@pytest.mark.parametrize(
    ("files", "cycle", "read"),
    [
        (TORCHTITAN, None, [(10, 0), (10, 1)]),
        (TORCHTITAN, 20, [(20, 0)]),
        ([*TORCHTITAN, "iteration_20/rank1_trace.json"], None, [(20, 0), (20, 1)]),
        (["cycle0/rank0.json", "cycle1/rank0.json"], None, [(1, 0)]),
        (["cycle0/rank0.json", "cycle1/rank0.json"], 0, [(0, 0)]),
        (["iteration_2/rank0.json", "iteration_10/rank0.json"], None, [(10, 0)]),
        (["iteration_5/host0/rank0.json", "iteration_5/host1/rank1.json"], None, [(5, 0), (5, 1)]),
    ],
)
def test_the_newest_complete_cycle_is_read_unless_told(
    tmp_path: Path, files: list[str], cycle: int | None, read: list[tuple[int, int]]
) -> None:
    for name in files:
        write(tmp_path / name, COMMON, rank=None)
    run = tracekit.open(tmp_path, cycle=cycle)
    assert run.ranks.drop_nulls("num_events").select("cycle", "rank").rows() == read
    assert run.ranks.height == len(files)
    assert run.events.select("cycle", "rank").unique().sort("rank").rows() == read


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


def test_an_unknown_cycle_gets_the_list(tmp_path: Path) -> None:
    for name in TORCHTITAN:
        write(tmp_path / name, COMMON, rank=None)
    with pytest.raises(UsageError, match="cycle 30 is not in this run, which has the cycles 10, 20"):
        tracekit.open(tmp_path, cycle=30)


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


def device_steps(*busy: int) -> list[dict[str, Any]]:
    """Eight steps of 100 us, kernels in these."""
    kernels = [
        k for n in busy for k in kernel("gemm", 1000 + 100 * n, 50, stream=7, correlation=n + 1, launch=1001 + 100 * n)
    ]
    return [*(step(n, 1000 + 100 * n, 100) for n in range(8)), *kernels]  # fmt: skip


@pytest.mark.parametrize(("busy", "complete"), [([1], [1]), ([0, 1, 2, 4, 5, 6, 7], [0, 1, 2, 4, 5, 6, 7])])
def test_a_step_without_device_activity_is_no_complete_one(
    tmp_path: Path, busy: list[int], complete: list[int]
) -> None:
    run = tracekit.open(write(tmp_path / "r.json", device_steps(*busy)))
    assert run.steps.filter("complete")["step"].to_list() == complete
    assert set(run.steps.filter(~run.steps["complete"])["reason"]) == {
        "no activity of the device was recorded in this step, but in others"
    }


def test_launches_without_any_kernel_leave_no_complete_step(tmp_path: Path) -> None:
    launches = [span("cudaLaunchKernel", 1010 + n, 1, cat="cuda_runtime", correlation=n + 1) for n in range(3)]
    run = tracekit.open(write(tmp_path / "r.json", [step(5, 1000, 200), *launches]))
    assert run.steps.select("complete", "reason").rows() == [
        (False, "no activity of the device was recorded for 3 launches")
    ]


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
