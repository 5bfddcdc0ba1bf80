from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys

import pytest
import torch
from record_models import Toy, train_step

from tracekit.record import Precision, Recorder, RecordError, RunExistsError, Schedule, Terminated, folder, results


@pytest.fixture
def toy():
    torch.manual_seed(0)
    model = Toy()
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


@pytest.fixture
def record(tmp_path, toy):
    """Trains `num_steps` steps under a recorder; `during(step)` runs in the middle of each."""

    def run(num_steps, *, during=lambda step: None, path=tmp_path / "run", **options):
        model, optimizer = toy
        options = {"strategy": "ddp", "optimizer": optimizer, "schedule": Schedule(1, 1, 2)} | options
        with Recorder(path, model, **options) as recorder:
            for step in range(num_steps):
                train_step(model, optimizer)
                during(step)
                recorder.step()

    return run


def read(path):
    data = path.read_bytes()
    return json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)


def marks(trace):
    return sorted(e["name"] for e in trace["traceEvents"] if e.get("name", "").startswith("ProfilerStep#"))


def the_trace(path):
    """Rank 0's only entry, the same in its meta and in the manifest."""
    (entry,) = read(path / "rank0.meta.json")["traces"]
    assert read(path / "manifest.json")["ranks"][0]["traces"] == [entry]
    return entry


def test_a_run_folder(tmp_path, record):
    record(5, options={"seed": 7}, mesh=[("dp_shard", 1)], precision=Precision("float32", "bfloat16"))
    path = tmp_path / "run"
    assert sorted(file.name for file in path.iterdir()) == ["manifest.json", "rank0.json.gz", "rank0.meta.json"]
    manifest = read(path / "manifest.json")
    assert (manifest["format"], manifest["strategy"], manifest["options"]) == (1, "ddp", {"seed": 7})
    assert (manifest["psi"], manifest["psi_train"], manifest["world_size"], manifest["backend"]) == (80, 76, 1, None)
    assert manifest["mesh"] == [{"axis": "dp_shard", "size": 1}]
    assert manifest["schedule"] == {"wait": 1, "warmup": 1, "active": 2, "repeat": 1}
    assert manifest["units"][-1] == {"name": "", "reshard_after_forward": None}
    assert (manifest["precision"]["reduce_dtype"], manifest["micro_batches"]) == ("bfloat16", 1)
    assert manifest["grad_order"][-1] == "embed.weight"
    assert set(manifest["versions"]) == {"python", "torch", "cuda", "nccl", "deepspeed"}
    rank = manifest["ranks"][0]
    assert (rank["rank"], rank["device"], rank["pid"], rank["ended"]) == (0, "cpu", os.getpid(), True)
    assert rank["held_bytes"] == {
        "parameters": 320,
        "gradients": 0,
        "optimizer_state": 0,
        "buffers": 12,
        "collective_buffers": 0,
    }
    assert (manifest["hosts"], manifest["devices"]) == ([rank["host"]], [rank["device_name"]])
    entry = {"cycle": 0, "file": "rank0.json.gz", "complete": True, "reason": None, "first_step": 2, "last_step": 3}
    assert the_trace(path) == entry


def test_a_trace_holds_marks_shapes_memory_and_forward_ranges(tmp_path, record):
    record(4)
    trace = read(tmp_path / "run" / "rank0.json.gz")
    assert marks(trace) == ["ProfilerStep#2", "ProfilerStep#3"]
    names = [event.get("name") for event in trace["traceEvents"]]
    ranges = ["tracekit::forward", "tracekit::forward (layers.0)", "tracekit::forward (layers.1)"]
    assert [names.count(name) for name in ranges] == [2, 2, 2]
    assert "[memory]" in names
    linear = next(event for event in trace["traceEvents"] if event.get("name") == "aten::linear")
    assert linear["args"]["Input Dims"][0] == [2, 3, 4]
    assert trace["tracekit"] == {"run_id": read(tmp_path / "run" / "manifest.json")["run_id"], "rank": 0}


def test_cycles_have_folders_of_their_own(tmp_path, record):
    record(8, schedule=Schedule(0, 1, 2, 2))
    path = tmp_path / "run"
    entries = read(path / "rank0.meta.json")["traces"]
    told = [(e["file"], e["complete"], e["first_step"], e["last_step"]) for e in entries]
    assert told == [("cycle0/rank0.json.gz", True, 1, 2), ("cycle1/rank0.json.gz", True, 4, 5)]
    assert marks(read(path / "cycle1" / "rank0.json.gz")) == ["ProfilerStep#4", "ProfilerStep#5"]


def test_what_the_first_steps_decide_is_written_at_the_end(tmp_path, record):
    def look(step):
        assert "buckets" not in read(tmp_path / "run" / "manifest.json")

    calls = []
    record(4, during=look, learned=lambda: calls.append(1) or {"buckets": [80]})
    assert read(tmp_path / "run" / "manifest.json")["buckets"] == [80]
    assert calls == [1]


def test_nothing_is_learned_before_a_step(tmp_path, record):
    record(0, learned=lambda: {"buckets": [80]})
    assert "buckets" not in read(tmp_path / "run" / "manifest.json")


def test_compiled_forwards_are_not_marked(tmp_path, record, toy):
    record(4, mark_layers=False)
    assert not [n for n in names_in(tmp_path / "run") if n.startswith("tracekit::")]
    toy[0].layers[0].compile(backend="eager")
    record(4, path=tmp_path / "partly")
    found = {n for n in names_in(tmp_path / "partly") if n.startswith("tracekit::")}
    assert found == {"tracekit::forward", "tracekit::forward (layers.1)"}


def names_in(path):
    return [event.get("name", "") for event in read(path / "rank0.json.gz")["traceEvents"]]


def test_windows_that_touch(tmp_path, record):
    record(2, schedule=Schedule(0, 0, 1, 2))
    assert [marks(read(tmp_path / "run" / f"cycle{c}" / "rank0.json.gz")) for c in (0, 1)] == [
        ["ProfilerStep#0"],
        ["ProfilerStep#1"],
    ]


def test_nothing_is_left_behind_after_the_last_window(tmp_path, record, toy):
    def look(step):
        if step == 5:
            assert not toy[0]._forward_hooks
            assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
            assert read(tmp_path / "run" / "manifest.json")["ranks"][0]["traces"][0]["complete"]

    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    record(7, during=look)
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_step_times_leave_out_the_first_step_and_the_warm_up(tmp_path, record):
    record(9, schedule=Schedule(3, 1, 3))
    times = read(tmp_path / "run" / "manifest.json")["step_times"]
    assert (len(times["unprofiled_ns"]), len(times["profiled_ns"])) == (2, 3)
    assert times["overhead_ratio"] > 0
    assert all(isinstance(ns, int) and ns > 0 for ns in times["unprofiled_ns"] + times["profiled_ns"])


def test_the_overhead_is_null_without_an_unprofiled_step(tmp_path, record):
    record(4)
    assert read(tmp_path / "run" / "manifest.json")["step_times"]["overhead_ratio"] is None


def test_the_overhead_is_the_ratio_of_medians(monkeypatch):
    clock = iter([0, 900, 900, 1000, 1000, 1100, 2000, 2150, 2150, 2400])
    monkeypatch.setattr("time.perf_counter_ns", lambda: next(clock))
    times = results.StepTimes(Schedule(3, 0, 2))
    for step in range(5):
        times.start()
        times.stop(step)
    assert times.summary() == {"unprofiled_ns": [100, 100], "profiled_ns": [150, 250], "overhead_ratio": 2.0}


def test_a_loop_that_ends_inside_the_window(tmp_path, record):
    record(3)
    entry = the_trace(tmp_path / "run")
    assert (entry["complete"], entry["reason"]) == (False, "the loop ended after 3 steps")
    assert (entry["file"], entry["first_step"], entry["last_step"]) == ("rank0.json.gz", 2, 2)
    assert "ProfilerStep#2" in marks(read(tmp_path / "run" / "rank0.json.gz"))


def test_a_loop_that_ends_before_the_window(tmp_path, record):
    record(1)
    entry = the_trace(tmp_path / "run")
    assert (entry["file"], entry["complete"], entry["first_step"]) == (None, False, None)
    assert entry["reason"] == "the loop ended after 1 steps, before the window (steps 2 to 3)"
    assert not (tmp_path / "run" / "rank0.json.gz").exists()


def test_an_exception_inside_the_window(tmp_path, record):
    def fail(step):
        if step == 3:
            raise ValueError("boom\nand more")

    with pytest.raises(ValueError, match="boom"):
        record(9, during=fail)
    entry = the_trace(tmp_path / "run")
    assert (entry["complete"], entry["reason"]) == (False, "ValueError in step 3: boom and more")
    assert (entry["first_step"], entry["last_step"]) == (2, 2)
    assert marks(read(tmp_path / "run" / "rank0.json.gz")) == ["ProfilerStep#2", "ProfilerStep#3"]


def test_an_exception_in_the_first_recorded_step_leaves_no_whole_step(tmp_path, record):
    with pytest.raises(ZeroDivisionError):
        record(9, during=lambda step: 1 // (2 - step))
    entry = the_trace(tmp_path / "run")
    assert (entry["file"], entry["first_step"], entry["last_step"]) == ("rank0.json.gz", None, None)


def test_an_exception_after_the_window_leaves_it_complete(tmp_path, record):
    with pytest.raises(ZeroDivisionError):
        record(9, during=lambda step: 1 // (5 - step))
    assert the_trace(tmp_path / "run")["complete"]


@pytest.fixture
def interruptible():
    """SIGINT as a shell in the foreground leaves it; what is started in the background may ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize(("number", "error"), [(signal.SIGTERM, Terminated), (signal.SIGINT, KeyboardInterrupt)])
def test_a_signal_inside_the_window(tmp_path, record, number, error):
    before = signal.getsignal(number)
    with pytest.raises(error):
        record(9, during=lambda step: step == 3 and signal.raise_signal(number))
    entry = the_trace(tmp_path / "run")
    assert (entry["complete"], entry["reason"]) == (False, f"{number.name} arrived in step 3")
    assert marks(read(tmp_path / "run" / "rank0.json.gz")) == ["ProfilerStep#2", "ProfilerStep#3"]
    assert signal.getsignal(number) == before


def test_sigterm_before_the_window(tmp_path, record):
    with pytest.raises(Terminated) as caught:
        record(9, during=lambda step: signal.raise_signal(signal.SIGTERM))
    assert caught.value.code == 143
    assert the_trace(tmp_path / "run")["reason"] == "SIGTERM arrived in step 0, before the window (steps 2 to 3)"


def during_the_writing(monkeypatch, number):
    """Sends a signal when half of a trace is written."""
    write = folder.write_trace

    def interrupted(path, export):
        def half(plain):
            export(plain)
            signal.raise_signal(number)

        write(path, half)

    monkeypatch.setattr(folder, "write_trace", interrupted)


def test_a_second_signal_during_the_writing(tmp_path, record, monkeypatch):
    during_the_writing(monkeypatch, signal.SIGTERM)
    with pytest.raises(Terminated):
        record(9, during=lambda step: step == 3 and signal.raise_signal(signal.SIGTERM))
    assert not the_trace(tmp_path / "run")["complete"]
    assert marks(read(tmp_path / "run" / "rank0.json.gz")) == ["ProfilerStep#2", "ProfilerStep#3"]


def test_a_signal_while_a_whole_window_is_written_raises_after_it(tmp_path, record, monkeypatch):
    during_the_writing(monkeypatch, signal.SIGTERM)
    with pytest.raises(Terminated):
        record(9)
    assert the_trace(tmp_path / "run")["complete"]


def test_a_program_keeps_its_own_handler(tmp_path, record):
    seen = []
    old = signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    try:
        record(5, during=lambda step: step == 2 and signal.raise_signal(signal.SIGTERM))
    finally:
        signal.signal(signal.SIGTERM, old)
    assert seen == [signal.SIGTERM]
    assert the_trace(tmp_path / "run")["complete"]


def test_an_ignored_signal_stays_ignored(tmp_path, record):
    old = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        record(5, during=lambda step: signal.raise_signal(signal.SIGTERM))
    finally:
        signal.signal(signal.SIGTERM, old)
    assert the_trace(tmp_path / "run")["complete"]


def test_a_killed_process_leaves_the_truth(tmp_path, record):
    def look(step):
        entry = read(tmp_path / "run" / "rank0.meta.json")["traces"][0]
        assert entry["complete"] or entry["reason"] == results.NOT_CLOSED
        assert read(tmp_path / "run" / "manifest.json")["psi"] == 80

    record(5, during=look)


def test_a_full_disk_does_not_end_the_training(tmp_path, record, monkeypatch):
    def full(path, export):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(folder, "write_trace", full)
    with pytest.warns(UserWarning, match=r"rank0.json.gz could not be written .*training goes on"):
        record(5)
    entry = the_trace(tmp_path / "run")
    assert (entry["file"], entry["complete"]) == (None, False)
    assert "No space left on device" in entry["reason"]


def test_a_folder_in_use_is_refused_before_anything_is_written(tmp_path, record):
    record(4)
    before = read(tmp_path / "run" / "manifest.json")
    with pytest.raises(RunExistsError, match="holds a run already"):
        record(4)
    assert read(tmp_path / "run" / "manifest.json") == before


def test_overwriting_leaves_no_file_of_the_old_run(tmp_path, record):
    record(6, schedule=Schedule(0, 1, 1, 2))
    (tmp_path / "run" / "rank1.meta.json").write_text('{"rank": 1}', encoding="utf-8")
    record(4, overwrite=True)
    files = sorted(p.relative_to(tmp_path / "run").as_posix() for p in (tmp_path / "run").rglob("*"))
    assert files == ["manifest.json", "rank0.json.gz", "rank0.meta.json"]


def test_options_that_are_no_json(tmp_path, toy):
    with pytest.raises(RecordError, match="options cannot be written"):
        Recorder(tmp_path, toy[0], strategy="ddp", options={"dtype": torch.float32})


def test_processes_that_are_not_connected(tmp_path, toy, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RecordError, match=r"one of 2 processes .* call init_process_group"):
        Recorder(tmp_path, toy[0], strategy="ddp").__enter__()


def test_a_meta_of_another_run_is_not_folded_in(tmp_path):
    first = {"rank": 1, "run_id": "new", "host": "h", "device_name": "d", "traces": [], "ended": False}
    folder.write_json(tmp_path / "rank1.meta.json", first | {"run_id": "old", "ended": True})
    results.write_manifest(tmp_path, {}, [first])
    assert read(tmp_path / "manifest.json")["ranks"] == [first]
    folder.write_json(tmp_path / "rank1.meta.json", first | {"ended": True})
    results.wait_for_metas(tmp_path, [first], patience_s=60.0)
    results.write_manifest(tmp_path, {}, [first])
    assert read(tmp_path / "manifest.json")["ranks"][0]["ended"]


@pytest.mark.slow
def test_the_recorder_needs_torch_and_the_standard_library_only():
    code = "import sys; import tracekit; assert 'torch' not in sys.modules; import tracekit.record; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    roots = {name.partition(".")[0] for name in done.stdout.split()}
    assert "torch" in roots
    assert not roots & {
        "polars",
        "altair",
        "msgspec",
        "typer",
        "rich",
        "isal",
        "pandas",
        "perfetto",
        "hta",
        "deepspeed",
    }


def test_a_complete_run_replaces_the_old_one(tmp_path, record):
    def look(step):
        assert read(tmp_path / "run" / "manifest.json") == before
        assert (tmp_path / "run.new" / "manifest.json").exists()

    record(4)
    before = read(tmp_path / "run" / "manifest.json")
    record(4, overwrite=True, during=look)
    assert read(tmp_path / "run" / "manifest.json")["run_id"] != before["run_id"]
    assert not (tmp_path / "run.new").exists()


@pytest.mark.parametrize("num_steps", [1, 3])
def test_an_incomplete_run_leaves_the_old_one(tmp_path, record, num_steps):
    record(4)
    before = read(tmp_path / "run" / "manifest.json")
    with pytest.warns(UserWarning, match=r"not complete: it is in .*run\.new, and the old one is where it was"):
        record(num_steps, overwrite=True)
    assert read(tmp_path / "run" / "manifest.json") == before
    assert read(tmp_path / "run.new" / "manifest.json")["ranks"][0]["ended"]


def test_two_jobs_in_one_folder_at_one_moment(tmp_path, record, monkeypatch):
    """The other job takes the folder between this one's look and its claim."""
    look = folder.look

    def looked(path, overwrite):
        found = look(path, overwrite)
        folder.claim(path, {"run_id": "other"})
        return found

    monkeypatch.setattr(folder, "look", looked)
    with pytest.raises(RunExistsError, match="another job began to record"):
        record(4)
    assert read(tmp_path / "run" / "manifest.json") == {"run_id": "other"}
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["manifest.json"]


def test_a_loop_shorter_than_the_schedule_is_told(record, capfd):
    record(1)
    assert "the loop ended after 1 steps, before the window (steps 2 to 3)" in capfd.readouterr().err
    assert "the schedule needs 4 steps" not in capfd.readouterr().err


def test_the_full_disk_is_not_waited_for(tmp_path, record, monkeypatch):
    """Metas that cannot be written will not appear, so that rank 0 has nothing to wait for."""

    def full(path, export):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(folder, "write_trace", full)
    monkeypatch.setattr(results, "wait_for_metas", lambda *args: pytest.fail("waited"))
    with pytest.warns(UserWarning, match="No space left on device"):
        record(5)


def test_a_name_with_a_newline(tmp_path, record):
    record(4, path=tmp_path / "a\nb")
    assert the_trace(tmp_path / "a\nb")["complete"]


OPEN = """
import sys, torch
from tracekit.record import Recorder, Schedule
model = torch.nn.Linear(2, 2)
recorder = Recorder(sys.argv[1], model, schedule=Schedule(0, 1, 5))
recorder.start()
for _ in range(4):
    model(torch.ones(1, 2)).sum().backward()
    recorder.step()
"""


@pytest.mark.slow
def test_a_recording_that_nobody_ended_is_written_with_the_process(tmp_path):
    path = tmp_path / "run"
    done = subprocess.run(
        [sys.executable, "-c", OPEN, str(path)], capture_output=True, text=True, check=True, timeout=120
    )
    assert "the loop ended after 4 steps" in done.stderr
    entry = the_trace(path)
    assert (entry["complete"], entry["first_step"], entry["last_step"]) == (False, 1, 3)
    assert "ProfilerStep#3" in marks(read(path / "rank0.json.gz"))


def test_ending_twice_changes_nothing(tmp_path, toy):
    recorder = Recorder(tmp_path / "run", toy[0], schedule=Schedule(0, 0, 1))
    recorder.start()
    train_step(*toy)
    recorder.step()
    recorder.stop()
    before = read(tmp_path / "run" / "manifest.json")
    recorder.stop()
    assert read(tmp_path / "run" / "manifest.json") == before
