"""The same collective on all ranks: sequence numbers that ranks do not share, steps, clocks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cases import rows
from kineto import kernel, step, write

import tracekit
from tracekit.model.collectives.matching import SEQ_DIFFERS
from tracekit.model.run import Run
from tracekit.report.caveats import caveats


def reduce(at: int, dur: int, correlation: int, seq: int | None = None, numel: int = 1000, **more: Any) -> list[Any]:
    told = {"Collective name": "allreduce", "In msg nelems": numel, "Out msg nelems": numel, "dtype": "Float"}
    told |= {"Group size": 2, "Process Group Name": "0"} | ({} if seq is None else {"Seq": seq}) | more
    return kernel("ncclDevKernel_AllReduce", at, dur, stream=20, correlation=correlation, args=told)


def opened(folder: Path, *ranks: list[Any]) -> Run:
    for rank, events in enumerate(ranks):
        write(folder / f"rank{rank}.json", events, rank=rank, world_size=len(ranks))
    return tracekit.open(folder, cache=False)


def numbered(seqs: list[int | None], *, late: int = 0) -> list[Any]:
    """Step 5 with an all-reduce of each number: 130 us, or `late` by so much and shorter, so that all end together."""
    events = [reduce(1010 + 300 * n + late, 130 - late, n + 1, seq) for n, seq in enumerate(seqs)]
    return [step(5, 1000, 2000), *(event for part in events for event in part)]


@pytest.mark.parametrize(
    ("first", "second", "how", "waits"),
    rows(
        [
            ("other numbers", [9, 11], [13, 17], SEQ_DIFFERS, [100_000] * 2),
            ("the same numbers", [9, 11], [9, 11], "seq", [100_000] * 2),
            ("numbers that meet by chance", [9, 11], [11, 13], SEQ_DIFFERS, [100_000] * 2),
            ("many others", [1, 2, 3], [51, 52, 53], SEQ_DIFFERS, [100_000] * 3),
            ("none", [None, None], [None, None], "order", [100_000] * 2),
            ("another count", [9, 11], [13, 17, 19], None, [None] * 2),
        ]
    ),
)
def test_numbers_that_ranks_do_not_share_give_way_to_order(
    tmp_path: Path, first: list[int | None], second: list[int | None], how: str | None, waits: list[int | None]
) -> None:
    run = opened(tmp_path, numbered(first), numbered(second, late=100))
    assert set(run.collectives["matched_by"]) == {how}
    assert run.collectives.filter(rank=0)["wait_ns"].to_list() == waits
    assert any("Seq disagrees" in sentence for sentence in caveats(run)) == (how == SEQ_DIFFERS)
    if waits[0] is not None:
        assert run.table("stragglers").select("rank", "num_last").rows() == [(0, 0), (1, len(waits))]
        assert run.table("skew").group_by("seq").len()["len"].to_list() == [2] * len(waits)


def test_groups_agree_or_disagree_each_for_itself(tmp_path: Path) -> None:
    def events(a: int, b: int, late: int) -> list[Any]:
        other = {"Process Group Name": "1"}
        both = [*reduce(1010 + late, 130 - late, 1, a), *reduce(1310 + late, 130 - late, 2, b, **other)]
        return [step(5, 1000, 2000), *both]

    run = opened(tmp_path, events(3, 8, 0), events(3, 9, 100))
    assert run.collectives.sort("rank", "start_ns")["matched_by"].to_list() == ["seq", SEQ_DIFFERS] * 2
    assert run.collectives.filter(rank=0)["wait_ns"].to_list() == [100_000] * 2
