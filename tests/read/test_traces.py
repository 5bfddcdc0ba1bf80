from __future__ import annotations

from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest
from kineto import COMMON, span, write
from polars.testing import assert_frame_equal

import tracekit
from tracekit.errors import InputError


def test_missing_path_and_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file or folder"):
        tracekit.open(tmp_path / "nowhere")
    with pytest.raises(InputError, match="no trace in this folder"):
        tracekit.open(tmp_path)


def test_patterns_files_and_folders_together(tmp_path: Path) -> None:
    for rank in range(3):
        write(tmp_path / f"node{rank}" / f"rank{rank}.json", COMMON, rank=rank)
    everything = [0, 1, 2]
    for paths in (
        tmp_path,
        tmp_path / "node*",
        str(tmp_path / "*" / "rank[0-2].json"),
        [tmp_path / "node2", tmp_path / "node0" / "rank0.json", tmp_path / "node1"],
        [tmp_path / "node*", tmp_path / "node0", tmp_path / "node0" / ".." / "node0" / "rank0.json"],
    ):
        run = tracekit.open(paths)
        assert run.ranks["rank"].to_list() == everything
        assert run.name == tmp_path.name
    with pytest.raises(InputError, match="no file or folder matches"):
        tracekit.open(tmp_path / "rank[7-9].json")
    with pytest.raises(InputError, match="no path given"):
        tracekit.open([])


def test_a_name_with_brackets_is_no_pattern(tmp_path: Path) -> None:
    path = write(tmp_path / "run[1]" / "rank0.json", COMMON)
    assert tracekit.open(path.parent).ranks["file"].to_list() == [str(path)]


def test_hidden_files_are_no_part_of_a_run(tmp_path: Path) -> None:
    write(tmp_path / "rank0.json", COMMON)
    for name in ("._rank0.json", ".ipynb_checkpoints/rank0.json"):
        write(tmp_path / name, COMMON)
    assert tracekit.open(tmp_path).ranks.height == 1


@pytest.mark.parametrize("kind", [None, ThreadPoolExecutor, ProcessPoolExecutor])
def test_results_do_not_depend_on_the_executor(tmp_path: Path, kind: type[Executor] | None) -> None:
    for rank in range(4):
        write(tmp_path / f"rank{rank}.json", [*COMMON, span("op", 1300 + rank, -1)], rank=rank, world_size=5)
    (tmp_path / "rank4.json").write_text("")
    seen: list[tuple[int, int, str]] = []

    def open_it(executor: Executor | None) -> tracekit.Run:
        return tracekit.open(tmp_path, executor=executor, progress=lambda *told: seen.append(told))

    one_by_one = tracekit.open(tmp_path, executor=Inline())
    if kind is None:
        run = open_it(None)
    else:
        options = {"mp_context": get_context("spawn")} if kind is ProcessPoolExecutor else {}
        with kind(2, **options) as executor:
            run = open_it(executor)
    for table in ("events", "work", "repairs", "ranks"):
        assert_frame_equal(getattr(run, table), getattr(one_by_one, table))
    assert [(done, total) for done, total, _ in seen] == [(n, 5) for n in range(1, 6)]
    assert {name for _, _, name in seen} == {f"rank{n}.json" for n in range(5)}


class Inline(Executor):
    """One file after the other."""

    def submit(self, fn, /, *args, **kwargs):
        future = Future()
        future.set_result(fn(*args, **kwargs))
        return future


def test_text_thread_ids_and_repeated_argument_spellings_are_read(tmp_path: Path) -> None:
    row = {"ph": "X", "cat": "Kernel", "name": "k", "pid": 0, "tid": "stream 7", "ts": 1, "dur": 2}
    row["args"] = {"device": 0, "stream": 7, "correlation": 3, "external id": 9}
    run = tracekit.open(write(tmp_path / "r.json", [row]))
    assert run.events.select("tid", "external_id").rows() == [(7, 9)]
    assert run.work.select("class", "lane", "device").rows() == [("compute", "stream 7", "cuda:0")]
