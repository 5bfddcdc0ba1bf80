"""The recorder: drives torch.profiler over a training loop and leaves a run folder."""

from __future__ import annotations

import atexit
import json
import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch.profiler import ProfilerAction, ProfilerActivity, profile

from tracekit import __version__
from tracekit.record import describe, folder, frameworks, results, team
from tracekit.record.claim import Claim
from tracekit.record.errors import tell
from tracekit.record.frameworks.found import Found, Precision, Unit
from tracekit.record.held import Held, held_bytes
from tracekit.record.hooks import ForwardMarks, GradOrder
from tracekit.record.names import clean_name, inner_optimizer, named_modules, wrappers
from tracekit.record.observed import MicroBatches, sync_option
from tracekit.record.schedule import Schedule, State, checked
from tracekit.record.signals import Signals
from tracekit.record.told import Told, settle, with_modules

ACTIONS: dict[State, ProfilerAction] = {
    "idle": ProfilerAction.NONE,
    "warmup": ProfilerAction.WARMUP,
    "active": ProfilerAction.RECORD,
    "last": ProfilerAction.RECORD_AND_SAVE,
}
# How long rank 0 waits for the other ranks' final meta files. After an error they may hang in a collective until rank 0
# is gone, so waiting does not help; readers find their files anyway.
PATIENCE_S, PATIENCE_AFTER_ERROR_S = 30.0, 0.5
LOOP_ENDED = "the loop ended"
# Characters of an exception's text that the manifest keeps.
MAX_REASON = 200


class Recorder:
    """Records the loop in its `with` block; `step()` is called once after every optimizer step, on every rank.

    `model` is the wrapped model, `optimizer` what updates it. Strategy, mesh, wrap units, types, options and how many
    micro-batches a step has are found on them and in the first steps: DistributedDataParallel, ZeroRedundancyOptimizer,
    FSDP1, FSDP2 with replicas or tensor parallelism, and DeepSpeed's engine, also inside the wrappers of torch.compile,
    Lightning Fabric and Accelerate. `strategy`, `mesh` (axis, size), `units` (name, reshard_after_forward), `precision`
    and `micro_batches` say what cannot be found, or hold what is expected against it. `held` names tensors that a
    framework keeps outside the model and optimizer (see `held_bytes`). `options` goes into the manifest as it is, over
    what was found, and must be JSON. `learned` is called at the end for entries of the manifest that only the first
    steps decide (compiled graphs). `mark_layers` off leaves out the ranges around forwards: of a compiled model, whose
    hooks would be compiled too; modules that `Module.compile` compiled are left out by themselves.

    Raises RunExistsError on every rank when any rank's folder holds a run and `overwrite` is off; RecordError when the
    recording cannot start for another reason, such as a strategy that is not what wraps the model. Once it has started,
    a trace that cannot be written is a warning and an entry of the manifest; the training goes on.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        model: torch.nn.Module,
        *,
        strategy: str | None = None,
        options: Mapping[str, Any] | None = None,
        optimizer: Any = None,
        schedule: Schedule | None = None,
        units: Sequence[Unit] | None = None,
        mesh: Sequence[tuple[str, int]] | None = None,
        precision: Precision | None = None,
        micro_batches: int | None = None,
        held: Held | None = None,
        learned: Callable[[], Mapping[str, Any]] | None = None,
        mark_layers: bool = True,
        with_stack: bool = False,
        overwrite: bool = False,
    ) -> None:
        self.path = Path(path)
        self.schedule = checked(schedule)
        self._wrapped, self._model = (chain := wrappers(model))[0], chain[-1]
        self._optimizer, self._held = optimizer, held
        self._options, self._micro_batches = describe.as_json(options or {}), micro_batches
        told_mesh = [(axis, int(size)) for axis, size in mesh] if mesh is not None else None
        self._told = Told(strategy, told_mesh, with_modules(units) if units is not None else None, precision)
        self._learned, self._mark_layers = learned, mark_layers
        self._with_stack, self._claim = with_stack, Claim(self.path, overwrite)
        self._signals, self._times = Signals(), results.StepTimes(self.schedule)
        self._num_done = 0
        self._cut: str | None = None
        self._ended = self._disk_is_full = False
        self._profiler: profile | None = None
        self._grad_order: GradOrder | None = None

    @property
    def recording(self) -> bool:
        """True while the step that runs now is written into a trace."""
        return self._profiler is not None and self._is_active(self._num_done)

    def __enter__(self) -> Self:
        self.start()
        return self

    def start(self) -> None:
        """Begins the recording, on all ranks at once: for loops that have no place for a `with` block.

        A recording that nobody ends is ended when the process does.
        """
        self._team = team.join()
        self._meta = results.Meta(self._team, self.schedule, *describe.device_of(self._model))
        self._description = self._claim.take(self._team, self._look)
        self._write(manifest=False)
        self._marks, self._watched = self._make_marks(), self._make_watch()
        self._grad_order = GradOrder([(clean_name(n), p) for n, p in self._model.named_parameters()])
        self._profiler = self._make_profiler()
        self._prepare(0)
        self._profiler.__enter__()
        self._signals.install()
        atexit.register(self.stop)
        self._times.start()

    def stop(self, error: BaseException | None = None) -> None:
        """Ends the recording; a second call changes nothing. `error` is why, where the loop ends before its time."""
        if self._ended:
            return
        self._ended = True
        atexit.unregister(self.stop)
        with self._signals.held_back(deliver=False):
            self._finish(self._why_cut(error))
            if self._team.rank == 0 and not self._disk_is_full:
                patience_s = PATIENCE_S if error is None else PATIENCE_AFTER_ERROR_S
                results.wait_for_metas(self._claim.folder, self._claim.metas, patience_s)
                self._write(manifest=True)
            self._replace_old()
        self._signals.restore()

    def step(self) -> None:
        """Ends a step. The trace of a window is written inside the call that ends its last step."""
        self._times.stop(self._num_done)
        if self._profiler is not None:
            self._watched.end_step(self._num_done)
        self._num_done += 1
        if self._profiler is None:
            return
        self._signals.rearm()
        with self._signals.held_back():
            self._stop_watching_gradients()
            self._prepare(self._num_done)
            with warnings.catch_warnings():
                # torch notes at the second cycle that the first one's events are gone; they are written by then.
                warnings.filterwarnings("ignore", message="(Warning: )?Profiler clears events")
                self._profiler.step()
            if self._num_done == self.schedule.num_steps:
                self._finish(None)
        self._times.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop(error)

    def _look(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The run's description, and this rank's meta. Raises RecordError where what was told is not what is there."""
        found = frameworks.look(self._wrapped, self._optimizer, self._team.world_size)
        self._found: Found = settle(found, self._told, self._team.world_size)
        self._meta.content["held_bytes"] = self._held_bytes()
        return self._describe(), self._meta.content

    def _held_bytes(self) -> dict[str, int]:
        return held_bytes(self._model, inner_optimizer(self._optimizer), self._held or self._found.held)

    def _describe(self) -> dict[str, Any]:
        description = describe.model(self._model, self._found)
        description["options"] |= self._options
        return description | {
            "tool": f"tracekit {__version__}",
            "world_size": self._team.world_size,
            "backend": self._team.backend,
            "micro_batches": self._micro_batches or self._found.micro_batches or 1,
            "schedule": vars(self.schedule),
            "grad_order": None,
            "step_times": self._times.summary(),
        }

    def _make_marks(self) -> ForwardMarks:
        if self._found.names_units or not self._mark_layers:
            return ForwardMarks([])
        modules = {name: m for name, m in named_modules(self._model) if not describe.is_compiled(m)}
        return ForwardMarks(
            [(unit, modules[name]) for (unit, _), names in self._found.units for name in names if name in modules]
        )

    def _make_watch(self) -> MicroBatches:
        # The hooks of a compiled module would be compiled with it; those of a module around a compiled one are not.
        module = None if describe.is_compiled(self._wrapped) else self._wrapped
        return MicroBatches(module, self._found.synced, self._found.synced_at)

    def _make_profiler(self) -> profile:
        activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * torch.cuda.is_available()
        profiler = profile(
            activities=activities,
            schedule=lambda step: ACTIONS[self.schedule.state(step)],
            on_trace_ready=self._export,
            record_shapes=True,
            profile_memory=True,
            with_stack=self._with_stack,
        )
        metadata = {"run_id": self._description["run_id"], "rank": self._team.rank}
        profiler.preset_metadata_json("tracekit", json.dumps(metadata))
        return profiler

    def _is_active(self, step: int) -> bool:
        return self.schedule.state(step) in ("active", "last")

    def _prepare(self, step: int) -> None:
        """Prepares what has to be in place before the profiler enters `step`."""
        if not self._is_active(step):
            self._marks.turn_off()
            self._watched.turn_off()
            return
        self._marks.turn_on()
        self._watched.turn_on()
        if step == self.schedule.window(0)[0]:
            self._meta.content["held_bytes"] = self._held_bytes()

    def _stop_watching_gradients(self) -> None:
        if self._grad_order is not None:
            self._description["grad_order"] = self._grad_order.stop()
            self._grad_order = None

    def _export(self, profiler: profile) -> None:
        """Writes the trace of the window that ends now: called by the profiler, at a window's end or when it is cut."""
        cycle = (self._num_done if self._cut else self._num_done - 1) // self.schedule.cycle_steps
        file = folder.trace_name(self._team.rank, cycle, self.schedule.repeat)
        try:
            folder.write_trace(self._claim.folder / file, profiler.export_chrome_trace)
            self._meta.add_trace(cycle, file, self._cut, self._num_done - 1)
        except OSError as error:
            self._disk_is_full |= error.errno in folder.FULL
            self._meta.add_trace(cycle, None, f"the trace could not be written: {error}", self._num_done - 1)
            told = folder.shown(self._claim.folder / file)
            tell(f"{told} could not be written ({error}); training goes on")
        self._write(manifest=False)

    def _finish(self, reason: str | None) -> None:
        """Stops recording for good: an open window is written as it is; `reason` says why, None at the regular end."""
        if self._profiler is None:
            return
        profiler, self._profiler, self._cut = self._profiler, None, reason
        self._stop_watching_gradients()
        self._marks.turn_off()
        self._watched.turn_off()
        try:
            profiler.__exit__(None, None, None)
        except RuntimeError as error:
            tell(f"the profiler could not be stopped on rank {self._team.rank}: {error}")
        self._description["step_times"] = self._times.summary()
        self._learn()
        self._meta.end(reason)
        self._write(manifest=True)
        missed = [entry["reason"] for entry in self._meta.content["traces"] if not entry["complete"]]
        if missed and self._team.rank == 0 and str(reason).startswith(LOOP_ENDED):
            needed = f"the schedule needs {self.schedule.num_steps} steps, so run more or give another"
            print(f"tracekit: {folder.shown(self.path)}: {missed[0]}; {needed}", file=sys.stderr, flush=True)

    def _learn(self) -> None:
        """Adds what the steps showed: what the framework decided in the first ones, and what each of the window did."""
        if not self._num_done:
            return
        observed = self._watched.learned()
        seen = observed.get("micro_batches", self._micro_batches)
        if self._micro_batches not in (None, seen) and self._team.rank == 0:
            tell(
                f"micro_batches is {self._micro_batches}, but every step of the window had {seen} forwards with a "
                "backward; the manifest has what was seen"
            )
        self._description |= observed
        synced = sync_option(observed.get("observed", ()))
        if synced is not None and self._description["micro_batches"] > 1:
            self._description["options"] = {"sync_every_micro_batch": synced} | self._description["options"]
        for learned in (self._found.learned, self._learned):
            self._description |= describe.as_json(learned()) if learned is not None else {}

    def _replace_old(self) -> None:
        try:
            left = self._claim.replace_old(self._team, self._meta.content)
        except OSError as error:
            left = f"the run in {folder.shown(self.path)} could not be replaced ({error})"
        if left is not None:
            tell(left)

    def _write(self, *, manifest: bool) -> None:
        """Writes this rank's meta and, if this is rank 0 and `manifest`, the manifest with the metas known so far."""
        try:
            self._meta.write(self._claim.folder)
            if manifest and self._team.rank == 0:
                results.write_manifest(self._claim.folder, self._description, self._claim.metas)
        except OSError as error:
            self._disk_is_full |= error.errno in folder.FULL
            tell(f"{folder.shown(self.path)}: the run's description could not be written ({error})")

    def _why_cut(self, error: BaseException | None) -> str:
        if self._signals.received is not None:
            return f"{self._signals.received} arrived in step {self._num_done}"
        if error is None:
            return f"{LOOP_ENDED} after {self._num_done} steps"
        text = " ".join(str(error).split())[:MAX_REASON]
        return f"{type(error).__name__} in step {self._num_done}{': ' + text if text else ''}"
