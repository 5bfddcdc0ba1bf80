"""Process groups as a trace's arguments and header tell of them: size, members, axis, and which are one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cases import rows
from kineto import kernel, memory, span, step, write

import tracekit
from tracekit.model.run import Run
from tracekit.report.sentences import sentences


def header(*groups: dict[str, Any], rank: int = 0, world_size: int = 2) -> dict[str, Any]:
    return {"distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world_size, "pg_config": list(groups)}}


def group(name: str, *ranks: int, **more: Any) -> dict[str, Any]:
    return {"pg_name": name, "pg_desc": "default_pg", "pg_size": len(ranks), "ranks": list(ranks)} | more


def gloo(at: int, numel: int = 1000) -> dict[str, Any]:
    """An all-reduce of gloo, which names no group."""
    span_of = span("gloo:all_reduce", at, 10, cat="user_annotation", tid=200)
    span_of["args"] |= {"Input Dims": [[numel]], "Input type": ["float"]}
    return span_of


def nccl(at: int, correlation: int, **args: Any) -> list[dict[str, Any]]:
    told = {"Collective name": "allreduce", "In msg nelems": 1000, "Out msg nelems": 1000, "dtype": "Float"}
    return kernel("ncclDevKernel_AllReduce_Sum_f32", at, 10, stream=20, correlation=correlation, args=told | args)


def opened(folder: Path, *ranks: list[dict[str, Any]], **facts: Any) -> Run:
    for rank, events in enumerate(ranks):
        told = {"rank": rank, "world_size": len(ranks)} | facts
        write(folder / f"rank{rank}.json", [step(5, 1000, 1000), *events], **told)
    return tracekit.open(folder, cache=False)


@pytest.mark.parametrize(
    ("config", "size", "wire"),
    rows(
        [
            # 4,000 B × 2 passes × (n-1)/n.
            ("one group", [group("0", 0, 1)], 2, 4000),
            ("several, all of four ranks", [group("0", 0, 1, 2, 3), group("1", 3, 2, 1, 0)], 4, 6000),
            ("two sizes", [group("0", 0, 1), group("1", 0)], None, None),
            ("size without ranks", [{"pg_name": "0", "pg_size": 5}], 5, 6400),
            ("ranks without size", [{"pg_name": "0", "ranks": [0, 1, 2, 3, 4]}], 5, 6400),
            ("as text", '[{"pg_name": "0", "pg_size": 2, "ranks": "[0, 1]"}]', 2, 4000),
            ("damaged", ["?", {"pg_size": -3}, 7], None, None),
            ("damaged text", "[{", None, None),
        ]
    ),
)
def test_a_group_of_gloo_has_the_only_size_of_the_header(tmp_path: Path, config: Any, size: int, wire: int) -> None:
    told = {"distributedInfo": {"backend": "gloo", "rank": 0, "world_size": 2, "pg_config": config}}
    write(tmp_path / "r.json", [step(5, 1000, 1000), gloo(1100)], rank=None, **told)
    found = tracekit.open(tmp_path / "r.json", cache=False).collectives
    assert found.select("group_size", "wire_bytes").row(0) == (size, wire)


@pytest.mark.parametrize(
    ("args", "size", "members", "axis"),
    rows(
        [
            ("by its arguments", {"Group size": 2, "Process Group Ranks": "[0, 1]"}, 2, "0, 1", None),
            ("by its name in the header", {"Process Group Name": "7"}, 4, "0, 2, 4, 6", "dp_shard"),
            ("an unknown name", {"Process Group Name": "8"}, None, None, None),
            ("described", {"Process Group Description": "mesh_tp", "Group size": 2}, 2, None, "tp"),
            ("a mesh without names", {"Process Group Description": "mesh_dim_1", "Group size": 2}, 2, None, "1"),
            ("Megatron's", {"Process Group Description": "TENSOR_MODEL_PARALLEL_GROUP"}, None, None, "tp"),
            ("undescribed", {"Process Group Description": "undefined", "Group size": 2}, 2, None, None),
            ("a list that Kineto cut", {"Group size": 64, "Process Group Ranks": "[0, 1, 2, ...]"}, 64, None, None),
            ("a group of others", {"Group size": 2, "Process Group Ranks": "[4, 5]"}, 2, None, None),
        ]
    ),
)
def test_a_foreign_trace_tells_of_its_groups(
    tmp_path: Path, args: dict[str, Any], size: int, members: str, axis: str
) -> None:
    told = header(group("0", *range(8)), group("7", 0, 2, 4, 6, pg_desc="mesh_dp_shard"), world_size=8)
    write(tmp_path / "r.json", [step(5, 1000, 1000), *nccl(1100, 1, **args)], rank=None, **told)
    run = tracekit.open(tmp_path / "r.json", cache=False)
    assert run.table("groups").select("group_size", "members", "axis").row(0) == (size, members, axis)


@pytest.mark.parametrize(
    ("ids", "names"),
    rows(
        [
            ("shared ids", [(11, 12), (11, 12)], ["comms 11", "comms 12"]),
            ("beyond 63 bits", [(2**64 - 1, 12), (2**64 - 1, 12)], ["comms 12", f"comms {2**64 - 1}"]),
            ("own ids", [(11, 12), (21, 22)], ["communicator 1", "communicator 2"]),
            ("one id", [(11, 11), (11, 11)], ["comms 11"]),
            ("one rank", [(11, 12)], ["comms 11", "comms 12"]),
        ]
    ),
)
def test_communicators_without_a_name_are_told_apart(
    tmp_path: Path, ids: list[tuple[int, int]], names: list[str]
) -> None:
    told: dict[str, Any] = {"Process Group Name": "", "Group size": len(ids)}
    events = [
        [*nccl(1100, 1, **told, **{"Comms Id": first}), *nccl(1200, 2, **told, **{"Comms Id": second})]
        for first, second in ids
    ]
    run = opened(tmp_path, *events)
    assert run.table("groups")["group"].to_list() == names
    assert run.table("groups")["num_ranks"].to_list() == [len(ids)] * len(names)


def test_volume_by_group_has_a_row_a_group_and_groups_have_their_types(tmp_path: Path) -> None:
    half = {"Process Group Name": "b", "dtype": "BFloat16", "Group size": 2}
    events = [*nccl(1100, 1, **{"Process Group Name": "a"}), *nccl(1200, 2, **half), *nccl(1300, 3, **half)]
    run = opened(tmp_path, events)
    volume = run.table("volume", by=["group"])
    assert volume.select("group", "num_collectives", "payload_bytes").rows() == [("a", 1, 4000), ("b", 2, 4000)]
    sizes = run.table("volume", by=["group_size"])
    assert sizes.select("group_size", "num_collectives").rows() == [(None, 1), (2, 2)]
    assert run.table("groups").select("group", "dtype").rows() == [("a", "float32"), ("b", "bfloat16")]


@pytest.mark.parametrize("how", ["header", "arguments"])
def test_same_name_but_other_members_is_another_group(tmp_path: Path, how: str) -> None:
    """Ranks 0, 1 and ranks 2, 3 each call their group "1": rank 2 waits for none of the others."""
    for rank in range(4):
        members = [0, 1] if rank < 2 else [2, 3]
        told: dict[str, Any] = {"Process Group Name": "1"}
        if how == "arguments":
            told |= {"Process Group Ranks": str(members), "Group size": 2}
        events = [step(5, 1000, 1000), *nccl(1100, 1, **told)]
        facts = header(group("1", *members), rank=rank, world_size=4)
        write(tmp_path / f"rank{rank}.json", events, rank=None, **facts)
    run = tracekit.open(tmp_path, cache=False)
    assert run.table("groups").select("members", "num_ranks").rows() == [("0, 1", 2), ("2, 3", 2)]
    assert run.collectives["transfer_ns"].to_list() == [10_000] * 4


@pytest.mark.parametrize(
    ("cpu", "share", "told"),
    rows(
        [
            # A GEMM from 1010 to 1110 hides half of the all-reduce from 1060 on.
            ("beside gloo", True, "50 % of its time", True),
            ("alone", False, "50 % of its time", False),
        ]
    ),
)
def test_gloo_beside_a_device_is_told_apart(tmp_path: Path, cpu: bool, share: str, told: bool) -> None:
    gemm = kernel("ampere_sgemm_128x64", 1010, 100, stream=7, correlation=8)
    events = [*gemm, *nccl(1060, 9)]
    events[-1]["dur"] = 100
    run = opened(tmp_path, [*events, *([gloo(1400), gloo(1500)] if cpu else [])])
    said = sentences(run)
    assert share in said[0]
    assert any("carried out 2 collectives beside the devices" in sentence for sentence in said) == told


@pytest.mark.parametrize(
    ("on_cpu", "with_kernel", "peaked", "alone"),
    rows(
        [
            ("a CPU's curve without a manifest", True, False, "at least", False),
            ("a CPU's curve of a GPU run", True, True, "at least", True),
            ("a GPU's curve", False, True, "", False),
        ]
    ),
)
def test_a_curve_says_what_it_speaks_for(
    tmp_path: Path, on_cpu: bool, with_kernel: bool, peaked: str, alone: bool
) -> None:
    held = memory(1100, 4096, 1, 4096)
    if not on_cpu:
        held["args"] |= {"Device Type": 1, "Device Id": 0, "Total Reserved": 4096}
    run = opened(tmp_path, [held, *(nccl(1200, 1) if with_kernel else [span("aten::mm", 1200, 10)])])
    said = sentences(run)
    start = f"Memory held {peaked} 4.00 KiB at its peak" if peaked else "Memory peaked at 4.00 KiB"
    assert any(sentence.startswith(start) for sentence in said)
    assert any("memory of cuda:0 is unknown" in sentence for sentence in said) == alone
