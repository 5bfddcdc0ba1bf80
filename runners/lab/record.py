"""One run in the lab, recorded as on a cluster: the launch script is started on every host with the same values."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from runners.lab.hosts import Hosts, LabError
from tracekit.training import environment, reason

SCRIPT = Path(__file__).resolve().parents[1] / "launch" / "multi_node.sh"
_POLL_S = 0.05


def record(
    hosts: Hosts,
    strategy: str,
    out: Path,
    args: Sequence[str] = (),
    *,
    on_line: Callable[[str], None] = print,
    timeout_s: float = 600.0,
) -> Path:
    """Records a strategy on the hosts, a rank on each, into the folder `out`, and returns it.

    `args` go to runners/train.py; rank 0's lines go to `on_line`.

    Raises:
        LabError: a rank failed, or the run took longer than `timeout_s`.
    """
    given = _environment(hosts, strategy, out)
    started = [_start(hosts.command(n, ["bash", str(SCRIPT), *args]), given) for n in range(len(hosts.names))]
    errors: list[str] = []
    readers = [
        threading.Thread(target=_drain, args=taker, daemon=True)
        for process in started
        for taker in ((process.stdout, on_line), (process.stderr, errors.append))
    ]
    for reader in readers:
        reader.start()
    try:
        code = _wait(started, timeout_s)
    finally:
        _stop(started)
        for reader in readers:
            reader.join(5.0)
    if code is None:
        raise LabError(f"{strategy} on {len(hosts.names)} hosts ran longer than {timeout_s:g} s and was stopped")
    if code:
        raise LabError(f"recording {strategy} on {len(hosts.names)} hosts failed: {reason(errors, code)}")
    return out


def _environment(hosts: Hosts, strategy: str, out: Path) -> dict[str, str]:
    """What the script is told; gloo and NCCL pick the link, and no rank finds a GPU that all hosts would share."""
    told = {"HEAD": hosts.names[0], "NUM_NODES": str(len(hosts.names)), "GPUS_PER_NODE": "1", "STRATEGY": strategy}
    told |= {"MODEL": "tiny", "OUT": str(out.resolve()), "CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": "eth0"}
    # The torchrun of this Python comes first.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    return environment() | told | {"PATH": path}


def _start(command: list[str], environment: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )


def _wait(started: list[subprocess.Popen[str]], timeout_s: float) -> int | None:
    """The exit code of the first host that failed, as soon as it has; 0 when all are done, None when time is up."""
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        codes = [process.poll() for process in started]
        if failed := next((code for code in codes if code), None):
            return failed
        if None not in codes:
            return 0
        time.sleep(_POLL_S)
    return None


def _stop(started: list[subprocess.Popen[str]]) -> None:
    """Ends what still runs. torchrun's children are in sessions of their own: they end with it or with the host."""
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
    for process in started:
        try:
            process.wait(10.0)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _drain(stream: object, take: Callable[[str], None]) -> None:
    with stream:  # type: ignore[attr-defined]
        for line in stream:  # type: ignore[attr-defined]
            take(line.rstrip("\n"))
