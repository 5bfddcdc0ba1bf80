"""Kind C of the reported cases: which rank, which cycle, which file, and profiles that only seem to hold something.

A row is a folder: its files, with what each of them is taken for. Numbers in the ids are those of the cases.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cases import refused, rows
from gpu import Rank
from kineto import COMMON, kernel, mark, span, step, write

import tracekit
from tracekit import cli
from tracekit.analyzers.complete_steps import complete_steps
from tracekit.analyzers.overlap import overlap
from tracekit.analyzers.skew import skew
from tracekit.model.run import Run
from tracekit.report.sentences import sentences

N = len(COMMON)
TOLD, FILE, FOLDER, ORDER = "distributedInfo", "file name", "folder name", "order"


def put(folder: Path, *files: str, **facts: Any) -> None:
    """Files that tell no rank."""
    for name in files:
        write(folder / name, COMMON, **{"rank": None, **facts})


def read(run: Run) -> list[tuple[Any, ...]]:
    """Cycle, rank and where it is from, of each file that was read."""
    return run.ranks.drop_nulls("num_events").select("cycle", "rank", "rank_from").rows()


# facebookresearch/HolisticTraceAnalysis#104, #107, #17, #16, #179
NAMES: list[tuple[Any, ...]] = [
    *(
        (f"C21 {name}", name, rank, FILE)
        for name, rank in [
            ("rank3_trace.json", 3), ("rank-3.json", 3), ("host_r3.json.gz", 3), ("worker3.json", 3), ("r=3.json", 3),
            ("RANK_00007.json", 7), ("worker0_rank3.json", 3), ("global_rank12.json", 12), ("rank3of8.json", 3),
            ("trace_rank_3_of_8.json", 3), ("step12_rank3.json", 3), ("rank3-step12.pt.trace.json", 3),
            ("dp0_tp1_rank3.json", 3), ("rank3/rank5.json", 5), ("local_rank0_rank8.json", 8),
            ("rank8_local_rank0.json", 8), ("node_rank1-rank9.json", 9), ("local_rank2.json", 2),
            ("rank999999.json", 999999), ("rank4;rm -rf.json", 4), ("rank4\n.json", 4), ("rank4 ..json", 4),
        ]
    ),
    ("C21 rank3/trace.json", "rank3/trace.json", 3, FOLDER),
    ("C21 node1/rank_2/out/t.json", "node1/rank_2/out/t.json", 2, FOLDER),
    *(
        (f"C21 {name}", name, 0, ORDER)
        for name in [
            "frank3.json", "our3d.json", "trace_r2d2.json", "300rank.json", "ranks3.json", "worker1694128201545.json",
            "my_rank3_traces/t.json",
        ]
    ),
]  # fmt: skip


@pytest.mark.parametrize(("name", "rank", "rank_from"), rows(NAMES))
def test_a_rank_in_a_name(tmp_path: Path, name: str, rank: int, rank_from: str) -> None:
    put(tmp_path, name)
    assert read(tracekit.open(tmp_path)) == [(0, rank, rank_from)]
    write(tmp_path / name, COMMON, rank=6)
    assert read(tracekit.open(tmp_path)) == [(0, 6, TOLD)]


RUNS: list[tuple[Any, ...]] = [
    ("C21 two files", {"rank0_trace.json": {}, "rank1_trace.json": {}}, [(0, 0, FILE), (0, 1, FILE)]),
    ("C21 names beat the order", {"a.json": {}, "b_r0.json": {}, "c.json": {}},
     [(0, 0, FILE), (0, 1, ORDER), (0, 2, ORDER)]),
    ("C21 traces beat names", {"rank5.json": {"rank": 1}, "rank6.json": {"rank": 0}}, [(0, 0, TOLD), (0, 1, TOLD)]),
    ("C21 one tells", {"a.json": {"rank": 1}, "b.json": {}}, [(0, 0, ORDER), (0, 1, TOLD)]),
    ("C21 TensorBoard", {"h_7.170.pt.trace.json": {"rank": 0}, "h_8.171.pt.trace.json": {"rank": 1}},
     [(0, 0, TOLD), (0, 1, TOLD)]),
    ("C21 TensorBoard, one name", {"h_1.170.pt.trace.json": {"rank": 0}, "h_1.171.pt.trace.json": {"rank": 1}},
     [(0, 0, TOLD), (0, 1, TOLD)]),
    ("C21 HTA", {"rank-0.json.gz": {}, "rank-1.json.gz": {}}, [(0, 0, FILE), (0, 1, FILE)]),
    ("C21 a folder a rank", {"rank0/t.json": {}, "rank1/t.json": {}}, [(0, 0, FOLDER), (0, 1, FOLDER)]),
    ("C21 nodes", {"node0/rank0.json": {}, "node1/rank1.json": {}}, [(0, 0, FILE), (0, 1, FILE)]),
    ("C23 torchtitan", {"p/iteration_10/rank0_trace.json": {}, "p/iteration_20/rank0_trace.json": {}}, [(20, 0, FILE)]),
    ("C23 numbers, not text", {"iteration_2/rank0.json": {}, "iteration_10/rank0.json": {}}, [(10, 0, FILE)]),
    ("C23 ours", {"cycle0/rank0.json.gz": {}, "cycle1/rank0.json.gz": {}}, [(1, 0, FILE)]),
    ("C23 TensorBoard by time", {"h_1.99.pt.trace.json": {"rank": 0}, "h_1.100.pt.trace.json": {"rank": 0}},
     [(1, 0, TOLD)]),
    ("C23 steps in names", {"rank0_step10.json": {}, "rank0_step20.json": {}}, [(20, 0, FILE)]),
    ("C23 steps in names, one missing", {"rank0_step10.json": {}, "rank1_step10.json": {}, "rank1_step20.json": {}},
     [(10, 0, FILE), (10, 1, FILE)]),
    ("C23 a folder a rank", {f"rank{r}/iteration_{c}/t.json": {} for r in (0, 1) for c in (1, 2)},
     [(2, 0, FOLDER), (2, 1, FOLDER)]),
    ("C23 nodes", {"iteration_5/host0/rank0.json": {}, "iteration_5/host1/rank1.json": {}},
     [(5, 0, FILE), (5, 1, FILE)]),
]  # fmt: skip


@pytest.mark.parametrize(("files", "found"), rows(RUNS))
def test_layouts(tmp_path: Path, files: dict[str, dict[str, Any]], found: list[tuple[Any, ...]]) -> None:
    for name, facts in files.items():
        put(tmp_path, name, world_size=1, **facts)
    for name in ("report.json", "rank0.meta.json", "notes.txt", ".hidden/rank0.json", "._rank0.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}")
    run = tracekit.open(tmp_path)
    assert read(run) == found
    assert run.ranks.height == len(files)


# pytorch/kineto#179
TITAN = [f"iteration_{c}/rank{r}_trace.json" for c, r in ((10, 0), (10, 1), (20, 0))]
THREE = [f"iteration_{c}/rank{r}.json" for c, r in ((1, 0), (1, 1), (2, 1), (3, 0), (3, 1), (4, 2))]
CYCLES: list[tuple[Any, ...]] = [
    ("C23 the newest is incomplete", TITAN, None, 10, [0, 1]),
    ("C23 the wanted one is incomplete", TITAN, 20, 20, [0]),
    ("C23 the newest is complete", [*TITAN, "iteration_20/rank1_trace.json"], None, 20, [0, 1]),
    ("C23 gaps in several", THREE, None, 3, [0, 1]),
    ("C23 another rank", THREE, 4, 4, [2]),
    ("C23 none has all", ["iteration_1/rank0.json", "iteration_2/rank1.json"], None, 2, [1]),
]


@pytest.mark.parametrize(("files", "wanted", "cycle", "ranks"), rows(CYCLES))
def test_the_newest_complete_cycle_is_read_unless_told(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    files: list[str],
    wanted: int | None,
    cycle: int,
    ranks: list[int],
) -> None:
    put(tmp_path, *files)
    run = tracekit.open(tmp_path, cycle=wanted)
    assert read(run) == [(cycle, rank, FILE) for rank in ranks]
    assert [run.ranks.height, *run.cycles] == [len(files), *sorted({int(f[10 : f.index("/")]) for f in files})]
    option = [] if wanted is None else ["--cycle", str(wanted)]
    assert cli.run(["show", "steps", str(tmp_path), "-f", "json", *option]) == 0
    shown = json.loads(capsys.readouterr().out)["rows"]
    assert [(row["cycle"], row["rank"]) for row in shown] == [(cycle, rank) for rank in ranks]


def test_an_unknown_cycle_gets_the_list(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(tmp_path, *TITAN)
    assert cli.run(["show", "steps", str(tmp_path), "--cycle", "30"]) == 2
    assert "cycle 30 is not in this run, which has the cycles 10, 20; choose one" in capsys.readouterr().err


@pytest.mark.parametrize("lost", [["iteration_2/rank0.json"], ["iteration_2/rank1.json", "iteration_3/rank0.json"]])
def test_a_cycle_with_an_empty_file_is_not_the_newest_complete_one(tmp_path: Path, lost: list[str]) -> None:
    put(tmp_path, *(f"iteration_{c}/rank{r}.json" for c in (1, 2, 3)[: 1 + len(lost)] for r in (0, 1)))
    for name in lost:
        (tmp_path / name).write_bytes(b"")
    assert read(tracekit.open(tmp_path)) == [(1, 0, FILE), (1, 1, FILE)]
    assert read(tracekit.open(tmp_path, cycle=2)) == [(2, 1 - int(lost[0][-6]), FILE)]


TWICE: list[tuple[Any, ...]] = [
    ("C25 by traces", {"a.json": {"rank": 1}, "b.json": {"rank": 1}}, "(by distributedInfo)"),
    ("C25 by names", {"rank1.json": {}, "x_rank1.json": {}}, "(by file name)"),
    ("C25 by both", {"a_rank0.json": {"rank": 1}, "b_rank1.json": {}}, "(by distributedInfo and file name)"),
    ("C25 packed too", {"rank1.json": {}, "rank1.json.gz": {}}, "(by file name)"),
    ("C25 by folders", {"a/rank1/t.json": {}, "b/rank1/t.json": {}}, "(by folder name)"),
    ("C23 folders that are no cycles", {"1/rank1.json": {}, "2/rank1.json": {}}, "(by file name)"),
]


@pytest.mark.parametrize(("files", "why"), rows(TWICE))
def test_two_files_of_one_rank_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], files: dict[str, dict[str, Any]], why: str
) -> None:
    for name, facts in files.items():
        put(tmp_path, name, **facts)
    said = refused(tmp_path, capsys)
    assert all(str(tmp_path / name) in said for name in files)
    assert f"rank 1 is also in {tmp_path}" in said
    assert f"{why}, in the same cycle" in said


# pytorch/pytorch#165994, foundation-model-stack/fms-fsdp#58
BOTH = "no file of ranks 1, 3: needs 4 of 4 ranks, has 2"
WORLDS: list[tuple[Any, ...]] = [
    ("C25 two of four", [0, 2], [4, 4], 4, [1, 3], [(None, BOTH)]),
    ("C25 rank 7 of four", [0, 2, 7], [4, 4, 4], 4, [1, 3], [(7, "rank 7 of a world of 4 ranks"), (None, BOTH)]),
    ("C25 only rank 0", [0], [300], 300, [*range(1, 300)],
     [(None, "no file of ranks 1-299: needs 300 of 300 ranks, has 1")]),
    ("C25 only rank 34", [34], [300], 300, [*range(34), *range(35, 300)],
     [(None, "no file of ranks 0-33, 35-299: needs 300 of 300 ranks, has 1")]),
    ("C25 all", [0, 1], [2, 2], 2, [], []),
    ("C25 unknown", [0, 2], [None, None], None, [], []),
    ("C25 text", [0, 2], ["4", " 4 "], 4, [1, 3], [(None, BOTH)]),
    ("C25 float", [0, 2], [4.0, 4], 4, [1, 3], [(None, BOTH)]),
    ("C25 no number", [0], ["four"], None, [], []),
    ("C25 they differ", [0, 1], [1, 2], 2, [], [(0, "world size 1, where the run has 2")]),
    ("C25 0", [0], [0], None, [], [(0, "world size 0, where the run has an unknown one")]),
    ("C25 negative", [0], [-8], None, [], [(0, "world size -8, where the run has an unknown one")]),
    ("C25 astronomical", [0], [2**62], None, [], [(0, f"world size {2**62}, where the run has an unknown one")]),
]  # fmt: skip


@pytest.mark.parametrize(("ranks", "sizes", "size", "missing", "what"), rows(WORLDS))
def test_missing_and_extra_ranks(
    tmp_path: Path, ranks: list[int], sizes: list[Any], size: int | None, missing: list[int], what: list[Any]
) -> None:
    for rank, told in zip(ranks, sizes, strict=True):
        write(tmp_path / f"t{rank}.json", COMMON, rank=rank, world_size=told)
    run = tracekit.open(tmp_path)
    assert (run.world_size, run.missing_ranks) == (size, missing)
    assert run.repairs.select("rank", "what").rows() == what
    assert overlap(run, by=["rank"]).select("rank", "exposed_ns").rows() == [(rank, 50_000) for rank in ranks]


@pytest.mark.parametrize("rank", ["3", " 3 ", 3.0])
def test_a_rank_as_text_or_float_is_told(tmp_path: Path, rank: Any) -> None:
    assert read(tracekit.open(write(tmp_path / "rank5.json", COMMON, rank=rank, world_size=8))) == [(0, 3, TOLD)]


@pytest.mark.parametrize("rank", [-3, 2**31, 2**70, "three", True, 2.5, [3]])
def test_a_rank_that_cannot_be_is_not(tmp_path: Path, rank: Any) -> None:
    assert read(tracekit.open(write(tmp_path / "rank5.json", COMMON, rank=rank, world_size=8))) == [(0, 5, FILE)]


def test_what_needs_all_ranks_says_so(tmp_path: Path) -> None:
    for number in (0, 2):
        rank = Rank(number, 4)
        rank.step(1, 0, 3000)
        rank.collective("all_reduce", 1000 + number, 500, issued=50, stream=24, shard=8)
        rank.write(tmp_path)
    run = tracekit.open(tmp_path)
    assert (
        run.collectives.select("num_matched", "num_needed", "transfer_ns", "wait_ns").rows() == [(2, 4, None, None)] * 2
    )
    assert skew(run)["wait_ns"].to_list() == [None, None]
    assert run.collectives["payload_bytes"].to_list() == [128, 128]
    told = "Waits and skew of all 2 collectives are unknown: needs 4 of 4 ranks, has 2 (no file of ranks 1, 3)."
    assert told in sentences(run)


def test_paths_in_a_manifest_are_not_followed(tmp_path: Path) -> None:
    write(tmp_path / "other" / "rank1.json", COMMON, rank=1)
    run_folder = tmp_path / "run"
    write(run_folder / "rank0.json", COMMON, world_size=2)
    traces = [{"cycle": 0, "file": "../other/rank1.json"}, {"cycle": 0, "file": str(tmp_path / "other" / "rank1.json")}]
    manifest = {"format": 1, "strategy": "ddp", "world_size": 2, "psi": 1, "psi_train": 1}
    (run_folder / "manifest.json").write_text(json.dumps({**manifest, "ranks": [{"rank": 1, "traces": traces}]}))
    run = tracekit.open(run_folder)
    assert (run.ranks["rank"].to_list(), run.missing_ranks) == ([0], [1])


# AMD-AGI/Hyperloom#735, AMD-AGI/TraceLens#972, pytorch/kineto#859
EIGHT = [step(n, 1000 + 100 * n, 100) for n in range(8)]
ELSEWHERE = "no activity of the device was recorded in this step, but in others"
AT_ALL = "no activity of the device was recorded for {} launches"


def busy(*numbers: int, cat: str = "kernel", **more: Any) -> list[dict[str, Any]]:
    """Device rows launched in these steps."""
    made = [kernel("k", 1050 + 100 * n, 20, stream=7, correlation=n + 1, cat=cat) for n in numbers]
    return [{**row, **more} if row["cat"] == cat else row for pair in made for row in pair]


def calls(name: str, category: str = "cuda_runtime") -> list[dict[str, Any]]:
    return [span(name, 1010 + 100 * n, 1, cat=category, correlation=n + 1) for n in range(8)]


EMPTY: list[tuple[Any, ...]] = [
    ("C27 one step of eight", busy(1), [1], ELSEWHERE),
    ("C27 two of eight", busy(1, 2), [1, 2], ELSEWHERE),
    ("C27 first and last", busy(0, 7), [0, 7], ELSEWHERE),
    ("C27 one lacks", busy(0, 1, 2, 4, 5, 6, 7), [0, 1, 2, 4, 5, 6, 7], ELSEWHERE),
    ("C27 copies only", busy(1, cat="gpu_memcpy"), [1], ELSEWHERE),
    ("C27 memsets only", busy(3, cat="gpu_memset"), [3], ELSEWHERE),
    ("C27 of no length", busy(1, dur=0), [1], ELSEWHERE),
    ("C27 run a step late", kernel("k", 1250, 5, stream=7, correlation=1, launch=1190), [1], ELSEWHERE),
    ("C27 no step at all", calls("cudaLaunchKernel"), [], AT_ALL.format(8)),
    ("C27 no step, HIP", calls("hipLaunchKernel"), [], AT_ALL.format(8)),
    ("C27 no step, driver", calls("cuLaunchKernelEx", "cuda_driver"), [], AT_ALL.format(8)),
    ("C27 no step, graphs", calls("cudaGraphLaunch"), [], AT_ALL.format(8)),
    ("C27 a CPU run", [span("aten::mm", 1010, 5)], [*range(8)], None),
]  # fmt: skip
UNSEEN: list[tuple[Any, ...]] = [
    ("C27 no step, copies issued", calls("cudaMemcpyAsync"), [], AT_ALL.format(8)),
    (
        "C27 no step, NCCL called",
        [mark("nccl:all_reduce", 1010, 5)],
        [],
        "no activity of the device was recorded for 1 calls of NCCL",
    ),
    ("C27 negative lengths only", [*busy(1, dur=-5), *busy(2)], [2], None),
]


@pytest.mark.parametrize(
    ("events", "complete", "reason"),
    [*rows(EMPTY), *rows(UNSEEN)],
)
def test_a_step_without_device_activity_is_no_complete_one(
    tmp_path: Path, events: list[Any], complete: list[int], reason: str | None
) -> None:
    run = tracekit.open(write(tmp_path / "rank0.json", [*EIGHT, *events]))
    assert run.steps.height == 8
    assert complete_steps(run)["step"].to_list() == complete
    if reason:
        assert run.steps.filter(~run.steps["complete"])["reason"].unique().to_list() == [reason]
        assert any(reason in sentence for sentence in sentences(run))
