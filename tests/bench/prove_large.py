"""Times the proof of large plans: python tests/bench/prove_large.py [MODEL RANKS]. Limits are those of the issue.

7b on 512 ranks within 20 s and 1 GiB, 70b on 512 ranks within 120 s and 2 GiB, on two cores. Seconds are those of
the CPU, which neighbours on the machine cannot lengthen; the proof runs on one core.
"""

from __future__ import annotations

import resource
import subprocess
import sys

CASES = [("7b", 8), ("7b", 64), ("7b", 512), ("70b", 512)]
LIMITS = {("7b", 512): (20.0, 1.0), ("70b", 512): (120.0, 2.0)}


def run(model: str, ranks: int) -> tuple[int, float, float, str]:
    """Exit code, CPU seconds, peak GiB of all so far and the last line of one proof in a process of its own."""
    command = [sys.executable, "-m", "tracekit", "plan", "--strategy", "fsdp2", "--model", model]
    command += ["--mesh", f"dp_shard={ranks}", "--prove", "--seq-len", "16", "--table", "volume"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    gib = after.ru_maxrss / 2**20
    return done.returncode, seconds, gib, (done.stderr.strip().splitlines() or [""])[-1]


def main(args: list[str]) -> int:
    """Prints a line a case; 1 if a proof failed or took more than its limit."""
    cases = [(args[0], int(args[1]))] if len(args) == 2 else CASES
    worst = 0
    for model, ranks in cases:
        code, seconds, gib, said = run(model, ranks)
        most_seconds, most_gib = LIMITS.get((model, ranks), (float("inf"), float("inf")))
        late = code != 0 or seconds > most_seconds or gib > most_gib
        worst |= late
        print(f"{model} on {ranks}: {seconds:.1f} s, {gib:.2f} GiB, {said}{'  OVER' if late else ''}", flush=True)
    return int(worst)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
