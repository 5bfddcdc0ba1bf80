"""Record any training loop into a run folder: `manifest.json` and one Kineto trace a rank and cycle.

    with Recorder("traces/mine", model, optimizer=optimizer) as recorder:
        for batch in batches:
            train_on(batch)
            recorder.step()

This package needs torch and the standard library only, so that it runs inside a bare training image.

    RecordError(RuntimeError)     what the caller can fix, in one sentence
    └── RunExistsError            the folder holds a run and `overwrite` is off
    Terminated(SystemExit)        raised in the main thread by SIGTERM, so that the trace so far is written
"""

from __future__ import annotations

from tracekit.record.errors import RecordError, RunExistsError
from tracekit.record.frameworks.found import Precision
from tracekit.record.hooks import phase
from tracekit.record.names import clean_name
from tracekit.record.recorder import Recorder
from tracekit.record.schedule import Schedule
from tracekit.record.signals import Terminated

__all__ = ["Precision", "RecordError", "Recorder", "RunExistsError", "Schedule", "Terminated", "clean_name", "phase"]
