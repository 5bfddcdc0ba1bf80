"""Sends and recvs: batches that one kernel carries out, whom they meet, what is waiting and what transfer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cases import rows
from kineto import kernel, span, step, write

import tracekit
from tracekit.model.run import Run
from tracekit.report.sentences import sentences

SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"


def call(
    kind: str, at: int, ident: int, peer: int | None = None, numel: int = 1024, **more: Any
) -> list[dict[str, Any]]:
    """A call of 4 us with its arguments, which launches nothing by itself."""
    told: dict[str, Any] = {"Collective name": kind, "In msg nelems": numel, "Out msg nelems": numel, "dtype": "Float"}
    told |= {"Process Group Name": "0", "Group size": 2, "External id": ident} | more
    if peer is not None:
        told["Dst Rank" if kind == "send" else "Src Rank"] = peer
    inner = span("record_param_comms", at + 1, 2)
    inner["args"] |= told
    return [span(f"c10d::{kind}", at, 4), inner]


def runs(at: int, dur: int, correlation: int, launch: int, name: str = SEND_RECV, **args: Any) -> list[dict[str, Any]]:
    return kernel(name, at, dur, stream=20, correlation=correlation, launch=launch, args=args)


def alone(kind: str, at: int, dur: int, ident: int, peer: int | None = None, **more: Any) -> list[dict[str, Any]]:
    """A send or recv whose kernel is launched inside its call."""
    issued = at - 8
    return [*call(kind, issued, ident, peer, **more), *runs(at, dur, ident, issued + 2, External_id=ident)]


def opened(folder: Path, *ranks: list[dict[str, Any]]) -> Run:
    for rank, events in enumerate(ranks):
        write(folder / f"rank{rank}.json", [step(5, 1000, 9000), *events], rank=rank, world_size=len(ranks))
    return tracekit.open(folder, cache=False)


# -- batches: the kernel of a group ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("events", "found"),
    rows(
        [
            (
                "a send and a recv",
                [*call("send", 1010, 1, 1), *call("recv", 1020, 2, 1), *runs(1060, 40, 9, 1030)],
                [("recv", 4096, 60, 40, 0, True), ("send", 4096, 60, 40, 40, True)],
            ),
            (
                "of other sizes",
                [*call("send", 1010, 1, 1, 10), *call("recv", 1020, 2, 1, 30), *runs(1060, 40, 9, 1030)],
                [("recv", 120, 60, 40, 0, True), ("send", 40, 60, 40, 40, True)],
            ),
            (
                "coalesced all-reduces",
                [
                    *call("allreduce", 1010, 1),
                    *call("allreduce", 1020, 2),
                    *call("allreduce", 1030, 3),
                    *runs(1060, 40, 9, 1040, "ncclDevKernel_AllReduce_Sum_f32"),
                ],
                [("all_reduce", 4096, 60, 40, left, True) for left in (0, 0, 40)],
            ),
            (
                "a group of one",
                [*call("send", 1010, 1, 1), *runs(1060, 40, 9, 1030)],
                [("send", 4096, 60, 40, 40, False)],
            ),
            (
                "a call with a kernel is of no group",
                [*alone("send", 1030, 5, 1, 1), *call("recv", 1040, 2, 1), *runs(1060, 40, 9, 1050)],
                [("recv", 4096, 60, 40, 40, False), ("send", 4096, 30, 5, 5, False)],
            ),
            (
                "of another kind",
                [
                    *call("allreduce", 1010, 1),
                    *call("send", 1020, 2, 1),
                    *call("recv", 1030, 3, 1),
                    *runs(1060, 40, 9, 1040),
                ],
                [
                    ("all_reduce", 4096, None, None, None, False),
                    ("recv", 4096, 60, 40, 0, True),
                    ("send", 4096, 60, 40, 40, True),
                ],
            ),
            (
                "issued after the launch",
                [*runs(1060, 40, 9, 1005), *call("send", 1010, 1, 1)],
                [("other", None, 60, 40, 40, False), ("send", 4096, None, None, None, False)],
            ),
        ]
    ),
)
def test_a_groups_kernel_belongs_to_the_calls_before_it(
    tmp_path: Path, events: list[dict[str, Any]], found: list[tuple[Any, ...]]
) -> None:
    run = opened(tmp_path, events)
    table = [
        (kind, held, start and start // 1000 - 1000, dur and dur // 1000, left and left // 1000, batch is not None)
        for kind, held, start, dur, left, batch in run.collectives.select(
            "kind", "payload_bytes", "start_ns", "dur_ns", "exposed_ns", "batch"
        ).iter_rows()
    ]
    assert sorted(table, key=str) == sorted(found, key=str)


def test_two_batches_on_one_thread_stay_two_and_their_time_counts_once(tmp_path: Path) -> None:
    def batch(at: int, ident: int) -> list[dict[str, Any]]:
        calls = [*call("send", at, ident, 1), *call("recv", at + 10, ident + 1, 1)]
        return [*calls, *runs(at + 50, 40, ident + 2, at + 20)]

    run = opened(tmp_path, [*batch(1010, 1), *batch(1110, 11)])
    assert run.collectives["batch"].n_unique() == 2
    by_step = run.table("overlap", by=["rank", "step"])
    assert by_step.select("num_collectives", "comm_ns", "exposed_ns").row(0) == (4, 80_000, 80_000)
    by_kind = run.table("overlap", by=["kind"])
    assert by_kind.select("kind", "num_collectives", "comm_ns").rows() == [("recv", 2, 80_000), ("send", 2, 80_000)]
    assert run.table("exposure")["exposed_ns"].sum() == 80_000
    assert run.collectives["exposed_ns"].sum() == 80_000
    assert run.table("volume")["coverage"].to_list() == [1.0, 1.0]


# -- a send meets its recv -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second", "waits"),
    rows(
        [
            # A recv from 1020 on whose sender comes at 1870: both end at 1900.
            ("recv waits", alone("send", 1870, 30, 1, 1), alone("recv", 1020, 880, 1, 0), [(0, 30), (850, 30)]),
            ("send waits", alone("send", 1020, 880, 1, 1), alone("recv", 1870, 30, 1, 0), [(850, 30), (0, 30)]),
            (
                "in a group of two without Src and Dst",
                alone("send", 1870, 30, 1, **{"Process Group Ranks": "[0, 1]"}),
                alone("recv", 1020, 880, 1, **{"Process Group Ranks": "[0, 1]"}),
                [(0, 30), (850, 30)],
            ),
            (
                "whose Seq differ: each side counts its own",
                alone("send", 1870, 30, 1, 1, Seq=3),
                alone("recv", 1020, 880, 1, 0, Seq=8),
                [(0, 30), (850, 30)],
            ),
            (
                "of other sizes",
                alone("send", 1870, 30, 1, 1),
                alone("recv", 1020, 880, 1, 0, numel=7),
                [(None, None)] * 2,
            ),
            ("to another", alone("send", 1870, 30, 1, 7), alone("recv", 1020, 880, 1, 0), [(None, None)] * 2),
            ("peers unknown", alone("send", 1870, 30, 1), alone("recv", 1020, 880, 1), [(None, None)] * 2),
            (
                "one more on one side",
                alone("send", 1870, 30, 1, 1),
                [*alone("recv", 1020, 880, 1, 0), *alone("recv", 2020, 9, 2, 0)],
                [(None, None)] * 3,
            ),
        ]
    ),
)
def test_waiting_for_the_peer_is_waiting(
    tmp_path: Path,
    first: list[dict[str, Any]],
    second: list[dict[str, Any]],
    waits: list[tuple[int | None, int | None]],
) -> None:
    run = opened(tmp_path, first, second)
    found = run.collectives.sort("rank", "start_ns").select("wait_ns", "transfer_ns").rows()
    assert found == [tuple(one and one * 1000 for one in pair) for pair in waits]


def test_order_tells_which_send_a_recv_meets(tmp_path: Path) -> None:
    """Stage 1 receives from both sides; what it receives from stage 0 is matched apart from stage 2's."""
    first = [*alone("send", 1100, 10, 1, 1), *alone("send", 1300, 10, 2, 1)]
    middle = [*alone("recv", 1050, 60, 1, 0), *alone("recv", 1150, 90, 2, 2), *alone("recv", 1250, 60, 3, 0)]
    last = alone("send", 1230, 10, 1, 1)
    run = opened(tmp_path, first, middle, last)
    assert run.collectives.sort("rank", "start_ns")["wait_ns"].to_list() == [0, 0, 50_000, 80_000, 50_000, 0]
    assert set(run.collectives["matched_by"]) == {"peer"}


def test_ranks_in_the_group_stand_for_ranks_of_the_run(tmp_path: Path) -> None:
    """Of the group of ranks 1 and 2, place 1 is rank 2: some write places as Src and Dst."""
    told = {"Process Group Ranks": "[1, 2]"}
    run = opened(tmp_path, [], alone("send", 1870, 30, 1, 1, **told), alone("recv", 1020, 880, 1, 0, **told))
    assert run.collectives["wait_ns"].to_list() == [0, 850_000]


def test_causes_of_point_to_point_are_its_own(tmp_path: Path) -> None:
    run = opened(tmp_path, alone("send", 1870, 30, 1, 1), alone("recv", 1020, 880, 1, 0))
    causes = run.table("exposure").select("rank", "cause", "exposed_ns").rows()
    assert causes == [
        (0, "point-to-point", 30_000),
        (1, "waits for its sender", 850_000),
        (1, "point-to-point", 30_000),
    ]
    assert run.table("stragglers").select("rank", "num_last").rows() == [(0, 1), (1, 0)]
    late = opened(tmp_path / "late", alone("send", 1020, 880, 1, 1), alone("recv", 1870, 30, 1, 0))
    assert late.table("exposure")["cause"][0] == "waits for its receiver"


@pytest.mark.parametrize(
    ("ranks", "start"),
    rows(
        [
            ("alike", [alone("send", 1100, 10, 1, 1), alone("send", 1100, 10, 1, 0)], "Each rank moved"),
            (
                "other kinds",
                [alone("send", 1100, 10, 1, 1), alone("recv", 1100, 10, 1, 0)],
                "The 2 ranks together moved",
            ),
            (
                "other counts",
                [alone("send", 1100, 10, 1, 1), [*alone("send", 1100, 10, 1, 0), *alone("send", 1200, 10, 2, 0)]],
                "The 2 ranks together moved, in one step: send 12.00 KiB in 3 calls",
            ),
            (
                "other sizes",
                [alone("send", 1100, 10, 1, 1), alone("send", 1100, 10, 1, 0, numel=2048)],
                "The 2 ranks together moved, in one step: send 12.00 KiB in 2 calls",
            ),
        ]
    ),
)
def test_each_rank_is_said_only_of_ranks_that_are_alike(
    tmp_path: Path, ranks: list[list[dict[str, Any]]], start: str
) -> None:
    assert sentences(opened(tmp_path, *ranks))[0].startswith(start)


# -- peers of gloo: a place in the group stands among the operator's inputs ------------------------------------------


def gloo(kind: str, at: int, dur: int, place: object) -> list[dict[str, Any]]:
    """A send or recv over gloo: its operator, and the backend's span from the call to the end."""
    name = {"send": "c10d::send", "recv": "c10d::recv_"}[kind]
    op = span(name, at, 10)
    op["args"] |= {"Input Dims": [[[64]], [], [], []], "Concrete Inputs": ["", "", place, "0"]}
    ran = span(f"gloo:{kind}", at + 1, dur, cat="user_annotation")
    ran["args"] |= {"Input Dims": [[64]]}
    return [op, ran]


def world(folder: Path, ranks: list[list[dict[str, Any]]]) -> Run:
    for rank, events in enumerate(ranks):
        marked = [step(5, 1000, 1000), span("aten::mm", 1001, 5), *events]
        write(folder / f"rank{rank}.json", marked, rank=rank, world_size=len(ranks))
    return tracekit.open(folder, cache=False)


PLACES: list[tuple[Any, ...]] = [
    ("a line of three", [gloo("send", 1100, 50, "1"), [*gloo("recv", 1050, 100, "0"), *gloo("send", 1200, 10, "2")],
     gloo("recv", 1150, 60, "1")], {"peer"}),
    ("numbers, not texts", [gloo("send", 1100, 50, 1), gloo("recv", 1050, 100, 0)], {"peer"}),
    # Two lines of ranks 0, 2 and 1, 3 in groups of their own: places 0 and 1 are not ranks 0 and 1.
    ("places in other groups", [gloo("send", 1100, 50, "1"), gloo("send", 1100, 50, "1"), gloo("recv", 1050, 100, "0"),
     gloo("recv", 1050, 100, "0")], {None}),
    ("to itself", [gloo("send", 1100, 50, "0"), gloo("recv", 1050, 100, "1")], {None}),
    ("no number", [gloo("send", 1100, 50, "x"), gloo("recv", 1050, 100, "")], {None}),
    ("beyond any rank", [gloo("send", 1100, 50, "99999999999999"), gloo("recv", 1050, 100, "-1")], {None}),
]  # fmt: skip


@pytest.mark.parametrize(("ranks", "matched"), rows(PLACES))
def test_peers_of_gloo_are_told_by_the_operators_inputs(
    tmp_path: Path, ranks: list[list[dict[str, Any]]], matched: set[str | None]
) -> None:
    run = world(tmp_path, ranks)
    found = set(run.collectives["matched_by"].to_list())
    assert found == matched if matched == {"peer"} else "peer" not in found
    waits = run.collectives.filter(run.collectives["kind"] == "recv").sort("rank")["wait_ns"].to_list()
    assert all(wait is not None for wait in waits) is (matched == {"peer"})
