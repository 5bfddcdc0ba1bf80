"""Snapshots of CUDA memory: read as memory events, through an unpickler that admits plain containers."""

from __future__ import annotations

import os
import pickle

import pytest

import tracekit
from tracekit import cli
from tracekit.errors import InputError

MIB = 2**20


def entry(action, size, addr, time_us):
    return {"action": action, "size": size, "addr": addr, "stream": 0, "time_us": time_us, "frames": []}


SNAPSHOT = {
    "segments": [
        {"device": 0, "total_size": 20 * MIB, "allocated_size": 3 * MIB, "blocks": []},
        {"device": 1, "total_size": 2 * MIB, "allocated_size": 0, "blocks": []},
    ],
    "device_traces": [
        [
            entry("alloc", 2 * MIB, 0x7F00_0000_0000, 1_700_000_000_000_010),
            entry("segment_alloc", 10 * MIB, 0x7F00_0000_0000, 1_700_000_000_000_015),
            entry("alloc", 4 * MIB, 0x7F00_0080_0000, 1_700_000_000_000_020),
            entry("free_requested", 4 * MIB, 0x7F00_0080_0000, 1_700_000_000_000_030),
            entry("free_completed", 4 * MIB, 0x7F00_0080_0000, 1_700_000_000_000_031),
        ],
        [],
    ],
}


def snapshot(tmp_path, content, name="memory.pickle"):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else pickle.dumps(content))
    return path


def test_events_and_totals_of_a_snapshot(tmp_path):
    run = tracekit.open(snapshot(tmp_path, SNAPSHOT), cache=False)
    rows = run.allocations
    assert rows.select("device", "delta_bytes", "allocated_bytes", "reserved_bytes").rows() == [
        # 3 MiB are left at the end, of which 2 were allocated in the history; 10 of 20 reserved came in it.
        ("cuda:0", 2 * MIB, 3 * MIB, 10 * MIB),
        ("cuda:0", 4 * MIB, 7 * MIB, 20 * MIB),
        ("cuda:0", -4 * MIB, 3 * MIB, 20 * MIB),
    ]
    assert run.blocks["end_ns"].to_list() == [None, 1_700_000_000_000_030_000]
    peak = run.table("peak").filter(category="reserved beyond allocated")
    assert peak["bytes"].item() == 13 * MIB
    # Without steps and phases nothing tells what a block was for.
    assert run.blocks["category"].to_list() == ["unknown", "unknown"]


def test_without_times_the_order_is_kept(tmp_path):
    bare = [{k: v for k, v in e.items() if k != "time_us"} for e in SNAPSHOT["device_traces"][0]]
    run = tracekit.open(snapshot(tmp_path, {**SNAPSHOT, "device_traces": [bare]}), cache=False)
    assert run.allocations["delta_bytes"].to_list() == [2 * MIB, 4 * MIB, -4 * MIB]


def test_a_pickle_that_names_code_is_not_run(tmp_path, capfd):
    class Evil:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path / 'ran'}",)

    path = snapshot(tmp_path, {**SNAPSHOT, "more": Evil()})
    with pytest.raises(InputError, match=r"it names (posix|nt)\.system"):
        tracekit.open(path, cache=False)
    assert not (tmp_path / "ran").exists()
    assert cli.run(["show", "memory", str(path)]) == 2
    told = capfd.readouterr().err
    assert "Traceback" not in told
    assert told.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({"segments": []}, "this one has no device_traces"),
        ([1, 2], "this one has no device_traces"),
        ({"device_traces": [[]]}, "holds no allocation"),
        ({"device_traces": [[{"action": "alloc", "size": "big"}, 7, {"action": 3, "size": 1}]]}, "holds no allocation"),
        (pickle.dumps(SNAPSHOT)[:-40], "this pickle is not read"),
        (b"\x80\x04" + b"\xff" * 40, "this pickle is not read"),
    ],
)
def test_other_pickles_are_one_sentence(tmp_path, content, sentence):
    with pytest.raises(InputError, match=sentence):
        tracekit.open(snapshot(tmp_path, content), cache=False)
