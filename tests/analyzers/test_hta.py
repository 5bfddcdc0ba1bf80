from __future__ import annotations

import logging
import socket
from pathlib import Path

import pytest
from fakes import US, common_fixture, run_of, step, work

from tracekit.analyzers import hta
from tracekit.analyzers.breakdown import breakdown
from tracekit.analyzers.overlap import overlap

TABLES = (hta.temporal_breakdown, hta.idle, hta.kernel_breakdown, hta.comm_comp_overlap)


def cpu_run():
    return run_of(
        steps=[step(5, 0, 100)],
        work=[
            work("compute", "thread 1", 0, 40, device="cpu"),
            work("comm", "thread 2", 30, 60, device="cpu"),
            work("compute", "thread 1", 70, 100, device="cpu"),
        ],
    )


def test_half_of_the_gather_lies_under_the_gemm():
    assert hta.comm_comp_overlap(common_fixture()).rows() == [(0, 0, "cuda:0", 50.0)]


def test_two_collectives_at_once_agree_with_our_own():
    run = common_fixture(("comm", "stream 24", 1080, 1180))
    assert hta.comm_comp_overlap(run)["overlap_percent"].to_list() == [41.67]
    assert round(100 * overlap(run, by=["rank"])["overlap_ratio"][0], 2) == 41.67


@pytest.mark.parametrize("run", [common_fixture(), cpu_run()])
def test_the_temporal_breakdown_agrees_with_our_own(run):
    theirs = hta.temporal_breakdown(run).row(0, named=True)
    ours = breakdown(run).row(0, named=True)
    assert theirs["kernel_ns"] == ours["step_ns"]
    assert theirs["compute_ns"] == ours["compute_ns"]
    assert theirs["non_compute_ns"] == ours["exposed_comm_ns"] + ours["exposed_copy_ns"]
    assert theirs["idle_ns"] == ours["idle_ns"]


def test_nanoseconds_are_not_rounded_away():
    run = run_of(work=[{**work("compute", "stream 7", 0, 0), "start_ns": 10**18 + 1, "dur_ns": 123}])
    assert hta.temporal_breakdown(run).select("kernel_ns", "compute_ns").row(0) == (123, 123)


def test_idle_time_is_told_by_cause():
    run = run_of(
        work=[
            work("compute", "stream 7", 0, 100, launched_ns=0),
            work("compute", "stream 7", 110, 120, launched_ns=0),  # a gap of 10 µs: launch overhead
            work("compute", "stream 7", 170, 180, launched_ns=0),  # a gap of 50 µs, launched long before
            work("compute", "stream 7", 260, 270, launched_ns=250 * US),  # launched after its neighbour had ended
        ]
    )
    causes = hta.idle(run).select("lane", "cause", "idle_ns").rows()
    assert sorted(causes) == [
        ("stream 7", "host_wait", 80 * US),
        ("stream 7", "kernel_wait", 10 * US),
        ("stream 7", "other", 50 * US),
    ]


def test_work_launched_before_the_window_has_no_host_to_wait_for():
    run = run_of(work=[work("compute", "stream 7", 0, 10), work("compute", "stream 7", 100, 110)])
    assert hta.idle(run).select("cause", "idle_ns").rows() == [("other", 90 * US)]


@pytest.mark.parametrize("name", ["triton_poi_fused_padmask", "cudaSyncThing", "Memcpy-like", "nccl_free_gemm"])
def test_our_classes_hold_whatever_the_names(name):
    run = run_of(work=[work("compute", "stream 7", 0, 10, name=name)])
    assert hta.kernel_breakdown(run).select("class", "name", "total_ns").rows() == [("compute", name, 10 * US)]
    assert hta.temporal_breakdown(run)["compute_ns"].to_list() == [10 * US]


def test_copy_engine_collectives_are_communication():
    run = run_of(
        work=[
            work("compute", "stream 7", 0, 10),
            work("comm", "stream 9", 5, 15, name="Memcpy PtoP (Device -> Device)"),
        ]
    )
    assert hta.comm_comp_overlap(run)["overlap_percent"].to_list() == [50.0]


def test_kernels_keep_their_own_statistics_however_many_there_are():
    run = run_of(
        work=[
            work("compute", "stream 7", 100 * place, 100 * place + length, name=f"kernel {length % 40}")
            for place, length in enumerate((*range(1, 41), 41))
        ]
    )
    frame = hta.kernel_breakdown(run)
    assert frame.height == 40
    row = frame.filter(frame["name"] == "kernel 1").row(0, named=True)
    times = (row["total_ns"], row["max_ns"], row["min_ns"], row["mean_ns"])
    assert times == (42 * US, 41 * US, 1 * US, 21.0 * US)


def test_no_communication_is_null_and_not_nan():
    run = run_of(work=[work("compute", "stream 7", 0, 10)])
    assert hta.comm_comp_overlap(run)["overlap_percent"].to_list() == [None]


def test_ranks_cycles_and_devices_stay_apart():
    run = run_of(
        work=[
            work("compute", "stream 7", 0, 10),
            work("compute", "stream 7", 0, 20, cycle=1),
            work("compute", "stream 7", 0, 30, rank=3),
            work("compute", "stream 7", 0, 40, rank=3, device="cuda:1"),
        ]
    )
    assert hta.temporal_breakdown(run).select("rank", "cycle", "device", "compute_ns").rows() == [
        (0, 0, "cuda:0", 10 * US),
        (0, 1, "cuda:0", 20 * US),
        (3, 0, "cuda:0", 30 * US),
        (3, 0, "cuda:1", 40 * US),
    ]


@pytest.mark.parametrize("table", TABLES)
def test_empty_and_one_row_runs(table):
    empty = table(run_of())
    one = table(run_of(work=[work("other", None, 0, 10, name=None)]))
    assert empty.is_empty()
    assert one.schema == empty.schema


@pytest.mark.parametrize("table", TABLES)
def test_nothing_is_printed_written_or_fetched(table, capsys, caplog, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(socket, "socket", None)
    handlers = list(logging.getLogger().handlers)
    with caplog.at_level(logging.DEBUG):
        table(common_fixture())
    assert capsys.readouterr() == ("", "")
    assert [record for record in caplog.records if record.name == "hta"] == []
    assert list(Path().iterdir()) == []
    assert logging.getLogger().handlers == handlers
