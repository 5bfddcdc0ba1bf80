"""Ranks forked from one process that has torch loaded: starting a run costs its training, not its imports.

Run as a program it takes orders as JSON lines on stdin ({"argv", "ranks", "port", "log"}), one run at a time, and
answers each with the exit codes of its ranks. Rank 0's output goes to `log`, the others' errors too.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from importlib import import_module
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


class WarmRanks:
    """The process that forks; `run` trains in its children."""

    def __init__(self):
        from tracekit.training import environment

        self.process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment()
        )

    def run(self, strategy, path, *, num_ranks, args, log, timeout_s):
        """Records into `path` and returns rank 0's lines; raises when a rank fails or does not end."""
        argv = ["--strategy", strategy, "--out", str(path), *args]
        order = {"argv": argv, "ranks": num_ranks, "port": free_port(), "log": str(log), "timeout_s": timeout_s}
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        said = log.read_text("utf-8", "replace")
        if not answer or any(json.loads(answer)):
            raise RuntimeError(f"{' '.join(argv)}: exit codes {answer.strip() or 'unknown'}\n{said[-4000:]}")
        return said.splitlines()

    def close(self):
        with self.process as process:
            process.stdin.close()
            process.wait(30)


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def serve():
    sys.path.insert(0, str(REPOSITORY))
    answers = os.dup(1)
    os.dup2(2, 1)  # libraries greet on stdout
    train = loaded()
    for line in sys.stdin:
        order = json.loads(line)
        children = [start(train.main, order, rank) for rank in range(order["ranks"])]
        os.write(answers, json.dumps(wait(children, order["timeout_s"])).encode() + b"\n")


def loaded():
    """The runners' main module, with all that a strategy may need in memory; nothing here may start a thread."""
    from runners import strategies, train
    from tracekit.strategies import with_runner

    for name in with_runner():
        strategies.load(name)
    for name in ("torch._dynamo", "torch._inductor.compile_fx", "deepspeed"):
        with suppress(ImportError):
            import_module(name)
    return train


def start(main, order, rank):
    """The process id of a forked rank."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        log = os.open(order["log"], os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        ranks = str(order["ranks"])
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(order["port"])}
        code = main(order["argv"])
    except SystemExit as error:
        code = error.code
    except BaseException:  # noqa: BLE001 - a forked rank never returns to the loop of its parent
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1)
    return None


def wait(children, timeout_s):
    """The exit codes; what runs on when another failed, or at the end of the time, is killed."""
    codes, end = {}, time.monotonic() + timeout_s
    while len(codes) < len(children):
        for child in set(children) - codes.keys():
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                codes[child] = os.waitstatus_to_exitcode(status)
        if any(codes.values()) or time.monotonic() > end:
            for child in set(children) - codes.keys():
                os.kill(child, signal.SIGKILL)
                codes[child] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        time.sleep(0.02)
    return [codes[child] for child in children]


if __name__ == "__main__":
    serve()
