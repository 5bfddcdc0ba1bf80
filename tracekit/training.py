"""Starts a training program under torchrun on this machine. No torch here: the program's process loads it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TextIO


def _runners() -> Path:
    """The folder of the training programs: beside the modules of a wheel, beside the package of a checkout."""
    package = Path(__file__).resolve().parent
    shipped = package / "_runners"
    return shipped if shipped.is_dir() else package.parent / "runners"


RUNNERS = _runners()
TRAIN = RUNNERS / "train.py"
ERROR_PREFIX = "error: "
# torchrun gives its workers 30 seconds to end after SIGTERM, in which the recorder writes what it has.
GRACE_S = 35.0
KEPT_LINES = 200
# A sentence of a program's own, or of its argparse, which puts the program's name before it.
SENTENCE = re.compile(r"(?:[\w-]+\.py: )?" + re.escape(ERROR_PREFIX) + r"(.*)")
# The last line of a traceback, with the rank that torch puts before it.
EXCEPTION = re.compile(r"(?:\[rank\d+\]: )?([\w.]+(?:Error|Exception|Interrupt): .*\S)")


class LaunchError(RuntimeError):
    """The training program failed; the text is one sentence, `output` the last lines of its stderr."""

    def __init__(self, sentence: str, output: Sequence[str] = ()) -> None:
        super().__init__(sentence)
        self.output = list(output)


def run(
    strategy: str,
    out: str | os.PathLike[str],
    *,
    num_ranks: int = 2,
    args: Sequence[str] = (),
    on_line: Callable[[str], None] = print,
    timeout_s: float | None = None,
) -> Path:
    """Records `strategy` with `num_ranks` ranks into `out` and returns the run folder; `args` go to runners/train.py.

    Rank 0's lines (the loss of each step) go to `on_line` as they come. Raises LaunchError when the program fails or
    runs longer than `timeout_s`; whatever ends this function early ends the ranks too, with the time to write their
    traces.
    """
    program = [str(TRAIN), "--strategy", strategy, "--out", str(out), *args]
    process = subprocess.Popen(
        command(program, num_ranks),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=environment(),
    )
    errors: deque[str] = deque(maxlen=KEPT_LINES)
    takers = ((process.stdout, on_line), (process.stderr, errors.append))
    readers = [threading.Thread(target=_drain, args=taker, daemon=True) for taker in takers]
    for reader in readers:
        reader.start()
    old_handler = _terminate_politely()
    try:
        code = process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        raise LaunchError(f"{strategy} on {num_ranks} ranks ran longer than {timeout_s:g} s and was stopped") from None
    finally:
        _stop(process)
        if old_handler is not None:
            signal.signal(signal.SIGTERM, old_handler)
        for reader in readers:
            reader.join(5.0)
    if code != 0:
        raise LaunchError(f"recording {strategy} on {num_ranks} ranks failed: {reason(list(errors), code)}", errors)
    return Path(out)


def options(strategy: str) -> str:
    """The help of the training program for a strategy. Raises LaunchError where the program fails."""
    return started(TRAIN, ["--strategy", strategy, "--help"])


def started(program: Path, args: Sequence[str]) -> str:
    """Output of a program of the runners' folder, run in a process of its own without torchrun.

    Raises LaunchError with the reason, from its stderr, when it fails.
    """
    done = subprocess.run(
        [sys.executable, str(program), *args],
        capture_output=True,
        text=True,
        errors="replace",
        env=environment(),
        check=False,
    )
    if done.returncode:
        lines = done.stderr.splitlines()
        raise LaunchError(reason(lines, done.returncode), lines[-KEPT_LINES:])
    return done.stdout.rstrip()


def command(program: Sequence[str], num_ranks: int) -> list[str]:
    """The torchrun of one machine, on a free port of its own choice."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num_ranks)]
    return [*torchrun, *program]


def environment() -> dict[str, str]:
    """This process's environment, with one OpenMP thread a rank and torchrun's own notices off unless set otherwise."""
    quiet = {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR", "KINETO_LOG_LEVEL": "6", "PYTHONUNBUFFERED": "1"}
    return quiet | os.environ


def reason(lines: Sequence[str], code: int) -> str:
    """Why a run failed, from its stderr: the program's own sentence, else the last exception, else the exit code."""
    told = [match[1] for line in lines if (match := SENTENCE.match(line))]
    if told:
        return told[0]
    # torchrun's own traceback comes last and tells only that a child failed.
    causes = [match[1] for line in lines if (match := EXCEPTION.match(line)) and "ChildFailedError" not in line]
    return causes[-1] if causes else f"the program ended with code {code}"


def _drain(stream: TextIO, take: Callable[[str], None]) -> None:
    with stream:
        for line in stream:
            take(line.rstrip("\n"))


def _terminate_politely() -> signal.Handlers | None:
    """Lets SIGTERM raise here, so that the ranks are ended too; returns the handler to give back, None if untouched."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        return None

    def leave(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, leave)
    return signal.SIG_DFL


def _stop(process: subprocess.Popen[str]) -> None:
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
