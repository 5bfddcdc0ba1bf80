"""Reports on files: exact times, ranks in names, ids of 64 bits, bounds."""

from __future__ import annotations

import io
import json
import sys
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from kineto import COMMON, memory, span, step, write

import tracekit
from tracekit.cli.console import expanding, reading
from tracekit.errors import InputError, UsageError
from tracekit.read.decode import decode
from tracekit.read.decoding import content
from tracekit.read.decoding.arguments import integers
from tracekit.read.decoding.clock import lengths, starts

pytestmark = pytest.mark.slow

# -- Times keep their written nanoseconds ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "written",
    [
        "4458676422880.181", "4398046511104.001", "4398046511103.999", "4499999999999.998", "8796093022207.999",
        "-4458676422880.181", "2199023255552.003", "0.001", "1694128.007",
    ],
)  # fmt: skip
def test_times_keep_their_nanoseconds(written: str) -> None:
    ns = int(Decimal(written) * 1000)
    assert starts([float(written)]).to_list() == [ns]
    # Beside text, each is converted for itself.
    assert starts([float(written), "1.5"]).to_list() == [ns, 1500]
    assert lengths([float(written)]).to_list() == [ns]


def test_every_nanosecond_in_a_stretch_is_kept() -> None:
    first = 4_458_676_422_880_000
    written = [float(f"{(first + n) // 1000}.{(first + n) % 1000:03}") for n in range(2000)]
    assert starts(written).to_list() == list(range(first, first + 2000))


# -- Ranks in names ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "ranks", "rank_from"),
    [
        ([f"profile_{n}" for n in range(12)], list(range(12)), "file name"),
        # One rank's file is missing: the others keep their numbers.
        ([f"profile_{n}" for n in (0, 1, 2, 4)], [0, 1, 2, 4], "file name"),
        # More gaps than files are no series; 2 comes before 10 all the same.
        (["profile_0", "profile_2", "profile_10"], [0, 1, 2], "order"),
        # The second node of a job.
        ([f"prof{n}" for n in range(8, 16)], list(range(8, 16)), "file name"),
        # Counted from 1, as ranks are not.
        (["profile_1", "profile_2", "profile_10"], [0, 1, 2], "order"),
        (["trace_2024", "trace_2025"], [0, 1], "order"),
        # Hosts, with their process and time.
        (["gpu-r5_77.1694128201429.pt.trace", "gpu-r6_78.1694128201430.pt.trace"], [0, 1], "order"),
        (["gpu-r5", "gpu-r6"], [0, 1], "order"),
        (["gpu-r5_rank3", "gpu-r6_rank1"], [3, 1], "file name"),
        (["gpu_r5", "gpu_r6"], [5, 6], "file name"),
        # Axes, the last one running fastest.
        (["TP-0-DP-0", "TP-0-DP-1", "TP-1-DP-0", "TP-1-DP-1"], [0, 1, 2, 3], "axes in name"),
        (["17-TP-1", "17-TP-0", "17-TP-10"], [1, 0, 10], "axes in name"),
        (["pp1_dp0_tp1", "pp0_dp0_tp0", "pp0_dp1_tp0"], [5, 0, 2], "axes in name"),
        (["TP-0-EP-1", "TP-1"], [0, 1], "order"),
        (["http-0-x", "http-1-x"], [0, 1], "file name"),
    ],
)  # fmt: skip
def test_the_rank_that_names_tell(tmp_path: Path, names: list[str], ranks: list[int], rank_from: str) -> None:
    for name in names:
        write(tmp_path / f"{name}.json", COMMON, rank=None)
    found = tracekit.open(tmp_path, cache=False).ranks
    assert {Path(file).stem: rank for file, rank in found.select("file", "rank").rows()} == dict(
        zip(names, ranks, strict=True)
    )
    assert set(found["rank_from"]) == {rank_from}


def test_a_file_that_tells_its_rank_counts_more_than_axes_in_names(tmp_path: Path) -> None:
    write(tmp_path / "TP-0.json", COMMON, rank=3)
    write(tmp_path / "TP-1.json", COMMON, rank=None)
    write(tmp_path / "TP-3.json", COMMON, rank=None)
    found = tracekit.open(tmp_path, cache=False).ranks
    # TP-3 would be rank 3, which is taken: axes do not number these files.
    assert found.select("rank", "rank_from").rows() == [(0, "order"), (1, "order"), (3, "distributedInfo")]


def test_host_process_and_size_stand_in_the_index_of_files(tmp_path: Path) -> None:
    handler = write(tmp_path / "gpu-r5_4242.1694128201429.pt.trace.json.gz", COMMON, rank=None)
    chosen = write(tmp_path / "worker_1.1694128201430.pt.trace.json", COMMON, rank=None)
    found = tracekit.open(tmp_path, cache=False).ranks
    assert found.select("rank", "host", "pid", "size_bytes").rows() == [
        (0, "gpu-r5", 4242, handler.stat().st_size),
        (1, None, None, chosen.stat().st_size),
    ]


# -- Ids of 64 bits ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (2**64 - 1, None),
        (2**63, None),
        (2**63 - 1, 2**63 - 1),
        (-1, -1),
        (str(2**64 - 1), None),
        (float(2**64), None),
        (f"stream {2**63}", None),
    ],
)
def test_unsigned_ids_stay_or_are_null(written: Any, read: int | None) -> None:
    assert integers([7, written]).to_list() == [7, read]


def test_rows_without_a_usable_correlation_are_not_tied_to_one_another(tmp_path: Path) -> None:
    odd = 2**64 - 1
    launch = span("cudaLaunchKernel", 1001, 2, cat="cuda_runtime", correlation=odd)
    row = span("gemm", 1010, 10, cat="kernel", pid=0, tid=7, device=0, stream=7, correlation=-1)
    events = decode(write(tmp_path / "a.json", [step(5, 1000, 100), launch, row])).columns.events
    assert events["correlation"].to_list() == [None, None, -1]


def test_addresses_with_the_top_bit_match_their_frees(tmp_path: Path) -> None:
    at = 2**64 - 4096
    rows = [step(5, 1000, 100), memory(1010, 64, at, 64), memory(1020, -64, at, 0), memory(1030, 8, 2**64 - 1, 8)]
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"traceEvents": rows}))
    assert decode(path).columns.memory["address"].to_list() == [-4096, -4096, None]


# -- Other programs' traces --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cat", "name", "seen"),
    [
        ("toplevel", "ThreadPool_RunTask", "the categories 'toplevel' and names such as 'ThreadPool_RunTask'"),
        ("", "main", "the categories '' and names such as 'main'"),
        ("FEE", "run (app.py:3)", "the categories 'FEE'"),
        ("Op", "MatMul", "the categories 'Op' and names such as 'MatMul'"),
    ],
)
def test_complete_events_of_another_program_are_refused(tmp_path: Path, cat: str, name: str, seen: str) -> None:
    path = write(tmp_path / "other.json", [span(name, 10, 5, cat=cat), span(name, 20, 5, cat=cat)])
    with pytest.raises(InputError, match=f"other.json: not a Kineto trace .its 2 events have {seen}"):
        tracekit.open(path)
    write(tmp_path / "rank0.json", COMMON)
    run = tracekit.open(tmp_path, cache=False)
    assert run.ranks["rank"].to_list() == [0]
    assert run.repairs["done"].to_list() == ["file left out"]


@pytest.mark.parametrize(
    ("cat", "name"),
    [("", "aten::mm"), ("", "ProfilerStep#3"), ("Operator", "mm"), ("xpu_runtime", "piEnqueue"), ("odd", "gloo:send")],
)
def test_one_known_category_or_name_is_enough(tmp_path: Path, cat: str, name: str) -> None:
    path = write(tmp_path / "a.json", [span("main", 5, 90, cat="toplevel"), span(name, 10, 5, cat=cat)])
    assert tracekit.open(path, cache=False).events.height == 2


@pytest.mark.parametrize(("most", "reads"), [("500", False), ("100000", True), ("", True)])
@pytest.mark.parametrize("name", ["rank0.json.gz", "rank0.json"])
def test_the_bound_on_what_a_compressed_file_expands_to_can_be_set(
    tmp_path: Path, most: str, reads: bool, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / name, COMMON)
    monkeypatch.setenv(content.MOST_VARIABLE, most)
    if reads or name == "rank0.json":
        assert tracekit.open(path, cache=False).ranks.height == 1
    else:
        with pytest.raises(InputError, match=r"expand to more than 500.*set TRACEKIT_MAX_TEXT_BYTES"):
            tracekit.open(path, cache=False)


def test_a_bound_that_is_no_number_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(content.MOST_VARIABLE, "much")
    with pytest.raises(UsageError, match="TRACEKIT_MAX_TEXT_BYTES=much is not a number of bytes"):
        tracekit.open(write(tmp_path / "rank0.json.gz", COMMON), cache=False)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("is_terminal", [True, False])
def test_expanding_a_compressed_file_is_told_on_a_terminal(
    tmp_path: Path, is_terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "rank0.json.gz", [*COMMON, *(span(f"op {n}", n, 1) for n in range(9000))])
    screen = Terminal() if is_terminal else io.StringIO()
    monkeypatch.setattr(sys, "stderr", screen)
    with reading(), closing(content.blocks(path, [])) as text:
        sizes = [(len(block), content.EXPANDED[path]) for block in text]
    assert [told for _, told in sizes] == [sum(size for size, _ in sizes[: n + 1]) for n in range(len(sizes))]
    assert len(sizes) > 1
    assert expanding() == ""
    content.EXPANDED[tmp_path / "big.gz"] = 3 * 2**30
    try:
        with reading() as tell:
            assert (tell is not None) == is_terminal
    finally:
        content.EXPANDED.clear()
    assert ("big.gz: 3.00 GiB of text" in screen.getvalue()) == is_terminal


def test_a_file_that_is_not_compressed_expands_to_nothing(tmp_path: Path) -> None:
    path = write(tmp_path / "rank0.json", COMMON)
    with closing(content.blocks(path, [])) as text:
        assert [path in content.EXPANDED for _ in text] == [False]


def test_a_refused_file_is_not_expanding_any_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(content.MOST_VARIABLE, "500")
    with pytest.raises(InputError):
        tracekit.open(write(tmp_path / "rank0.json.gz", COMMON), cache=False)
    assert content.EXPANDED == {}
