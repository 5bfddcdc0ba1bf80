from __future__ import annotations

import zlib
from collections import Counter, defaultdict

import polars as pl
import pytest
from fake_runs import PSI, STEP, US, empty_run, fake_run

from tracekit.export.counters import counters, peaks
from tracekit.export.perfetto import write_trace
from tracekit.export.slices import exposed_slices, first_free_row, label_runs, slices, slices_of
from tracekit.manifest import Manifest
from tracekit.model.device_time import compute_cover

BASE = 10**18
BEGIN, END, COUNTER = 1, 2, 4


def packets(path):
    """The file's packets, unpacked, by the package's own messages."""
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

    found = []
    for packet in Trace.FromString(path.read_bytes()).packet:
        found += Trace.FromString(zlib.decompress(packet.compressed_packets)).packet
    return found


@pytest.fixture
def written(tmp_path):
    def write(*runs):
        path = tmp_path / "trace.pftrace"
        write_trace(list(runs), path)
        return packets(path)

    return write


def events(found):
    """Track name of each process to its (timestamp, type, name) in file order."""
    names = {n.iid: n.name for packet in found for n in packet.interned_data.event_names}
    tracks = {p.track_descriptor.uuid: p.track_descriptor for p in found if p.HasField("track_descriptor")}

    def process(track):
        while not track.HasField("process"):
            track = tracks[track.parent_uuid]
        return track.process.process_name

    listed = defaultdict(list)
    for packet in found:
        if packet.HasField("track_event"):
            event, track = packet.track_event, tracks[packet.track_event.track_uuid]
            value = event.counter_value if event.type == COUNTER else names.get(event.name_iid)
            listed[process(track), track.name].append((packet.timestamp, event.type, value))
    return listed


def test_one_process_a_rank_and_all_tracks_in_it(written):
    listed = events(written(fake_run()))
    assert {process for process, _ in listed} == {"rank 0", "rank 1"}
    assert {track for _, track in listed} == {
        "step",
        "phase",
        "layer",
        "compute",
        "communication",
        "exposed communication",
        "allocated memory",
        "memory: gathered parameters",
        "memory: optimizer state",
        "memory: parameters",
        "memory peak",
        "bytes moved",
    }


def test_every_slice_is_there_with_its_exact_nanoseconds(written):
    listed = events(written(fake_run(num_ranks=1, num_steps=1)))
    assert listed["rank 0", "step"] == [(BASE, BEGIN, "step 0"), (BASE + STEP, END, None)]
    assert listed["rank 0", "exposed communication"] == [
        (BASE + 10 * US, BEGIN, "all_gather (root)"),
        (BASE + 50 * US, END, None),
        (BASE + 950 * US, BEGIN, "reduce_scatter (root)"),
        (BASE + 990 * US, END, None),
    ]
    assert listed["rank 0", "phase"] == [
        (BASE + 50 * US, BEGIN, "forward"),
        (BASE + 350 * US, END, None),
        (BASE + 650 * US, BEGIN, "backward"),
        (BASE + 950 * US, END, None),
    ]
    assert Counter(kind for _, kind, _ in listed["rank 0", "compute"]) == {BEGIN: 12, END: 12}


def test_slices_of_a_track_neither_cross_nor_nest(written):
    run = fake_run(num_ranks=1)
    # A second collective at the same time as another, on the same lane.
    double = run.work.filter(pl.col("class") == "comm").head(1)
    run.work = pl.concat([run.work, double.with_columns(pl.col("start_ns") + 5 * US, index=pl.lit(999, pl.Int64))])
    found = written(run)
    by_track = defaultdict(list)
    for packet in found:
        if packet.track_event.type in (BEGIN, END):
            by_track[packet.track_event.track_uuid].append((packet.timestamp, packet.track_event.type))
    for listed in by_track.values():
        assert [kind for _, kind in listed] == [BEGIN, END] * (len(listed) // 2)
        assert [ts for ts, _ in listed] == sorted(ts for ts, _ in listed)
    names = Counter(p.track_descriptor.name for p in found if p.HasField("track_descriptor"))
    assert names["communication"] == 2  # two rows of one name, which viewers draw as one track


def test_counters_hold_memory_and_the_sum_of_known_payloads(written):
    run = fake_run(num_ranks=1)
    moved = [value for _, _, value in events(written(run))["rank 0", "bytes moved"]]
    assert moved == [4_000 * (i + 1) for i in range(35)]  # 36 collectives, the payload of one is unknown
    memory = counters(run).filter(pl.col("name") == "allocated memory")["value"]
    # What was held (12 bytes a parameter) before the first allocation of 4,000.
    assert memory[0] == 12 * PSI + 4_000


def test_the_peak_is_an_instant_with_its_bytes_by_category(written):
    run = fake_run(num_ranks=1)
    top = run.table("peak")
    found = [packet for packet in written(run) if packet.track_event.type == packet.track_event.TYPE_INSTANT]
    assert [packet.timestamp for packet in found] == [top["ts_ns"][0]]
    event = found[0].track_event
    assert event.name == peaks(run)["label"][0]
    told = {note.name: note.int_value for note in event.debug_annotations}
    assert told == {f"{category}, bytes": nbytes for category, nbytes in top.select("category", "bytes").rows()}


def test_several_runs_begin_together_and_say_by_how_much_they_moved(written):
    found = written(fake_run("a"), fake_run("b", base_ns=BASE + 7 * STEP))
    listed = events(found)
    assert listed["a · rank 0", "step"][0][0] == listed["b · rank 0", "step"][0][0] == BASE
    processes = [p.track_descriptor.process for p in found if p.track_descriptor.HasField("process")]
    assert [list(p.process_labels) for p in processes] == [[], [], [f"moved by {-7 * STEP} ns"]] * 1 + [
        [f"moved by {-7 * STEP} ns"]
    ]
    assert len({p.pid for p in processes}) == 4


def test_times_before_zero_are_moved_not_lost(written):
    listed = events(written(fake_run(num_ranks=1, num_steps=1, base_ns=-500 * US)))
    assert listed["rank 0", "step"] == [(0, BEGIN, "step 0"), (STEP, END, None)]


def test_same_bytes_each_time(tmp_path):
    for name in ("a", "b"):
        write_trace([fake_run()], tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_names_are_kept_whatever_they_hold(written):
    run = fake_run(num_ranks=1, num_steps=1)
    odd = '</script>\n"é\u2028 \x01'
    run.work = run.work.with_columns(
        name=pl.when(pl.col("class") == "compute").then(pl.lit(odd)).otherwise("name"), layer=pl.lit(odd)
    )
    listed = events(written(run))
    assert listed["rank 0", "compute"][0][2] == odd
    assert listed["rank 0", "layer"][0][2] == odd


def test_an_empty_run_is_an_empty_trace(written):
    assert events(written(empty_run())) == {}


def test_one_row():
    run = fake_run(num_ranks=1, num_steps=1)
    run.work = run.work.head(1)
    run.collectives = run.collectives.head(0)
    run.steps = run.steps.head(0)
    assert slices(run).select("track", "name").rows() == [
        ("phase", "forward"),
        ("layer", "(root)"),
        ("compute", "aten::mm"),
    ]


def test_exposed_time_is_drawn_once_where_collectives_run_at_once():
    work = pl.DataFrame(
        {
            "rank": [0, 0, 0],
            "cycle": [0, 0, 0],
            "device": ["cuda:0"] * 3,
            "lane": ["stream 7", "stream 20", "stream 24"],
            "dur_ns": [100, 100, 120],
            "class": ["compute", "comm", "comm"],
            "name": ["GEMM", "first", "second"],
            "start_ns": [0, 50, 80],
            "end_ns": [100, 150, 200],
        }
    )
    drawn = exposed_slices(work, compute_cover(work))
    assert drawn.select("name", "start_ns", "end_ns").rows() == [("first", 100, 150), ("second", 150, 200)]


def test_a_stretch_ends_where_the_next_begins():
    rows = {"start_ns": [0, 10, 20, 40], "end_ns": [12, 18, 50, 60], "layer": ["a", "a", "b", None]}
    work = pl.DataFrame(rows).with_columns(
        rank=0, cycle=0, step=0, device=pl.lit("cpu"), phase=pl.lit("forward"), **{"class": pl.lit("compute")}
    )
    assert label_runs(work, "layer").select("name", "start_ns", "end_ns").rows() == [("a", 0, 18), ("b", 20, 40)]


def test_rows_are_reused_once_free():
    keys = pl.Series([0, 0, 0, 0, 1]).to_numpy()
    starts = pl.Series([0, 5, 10, 12, 0]).to_numpy()
    ends = pl.Series([10, 15, 20, 13, 4]).to_numpy()
    assert first_free_row(keys, starts, ends) == [0, 1, 0, 2, 0]


def test_a_step_without_a_number_is_the_whole_trace():
    run = fake_run(num_ranks=1, num_steps=1)
    steps = run.steps.with_columns(step=pl.lit(None, pl.Int64), complete=pl.lit(False))
    drawn = slices_of(steps, run.work.head(0), run.collectives.head(0), {})
    assert drawn["name"].to_list() == ["whole trace (cut)"]


def test_the_fake_manifest_is_one():
    assert isinstance(fake_run().manifest, Manifest)
