"""CPU seconds and memory of all tables and of the report against the number of events, each in a process of its own.

    python tests/bench/linear.py

One rank with 200,000, 400,000 and 800,000 events shows that each table takes 1, 2 and 4 parts; one with 2.5 million
(12,500 collectives; EVENTS sets another number, 0 leaves it out) and 64 ranks of 5,000 to 15,000 events show the
whole. Figures are the least of REPEATS (3) processes that take turns; the long ones run once. Without tracekit's cache.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import generate

ROOT = Path(__file__).parents[2]
REPEATS = int(os.environ.get("REPEATS", "3"))
EVENTS = int(os.environ.get("EVENTS", "2500000"))
SIZES = (200_000, 400_000, 800_000)
# A table that takes less than this for the longest trace is over before a clock can tell; four times the events may
# take this much more than four times the time, for caches and noise.
LEAST_S, SLACK = 0.05, 1.2
MOST_CPU_S, MOST_GIB, MOST_RANKS_CPU_S = 60.0, 2.0, 16.0

# Makes every table of a run once, and prints the CPU seconds of each.
_TABLES = """
import json, resource, sys, time
import tracekit
from tracekit import table_registry
run = tracekit.open(sys.argv[1], cache=False)
seconds = {}
for name in table_registry.names():
    before = time.process_time()
    run.table(name)
    seconds[name] = time.process_time() - before
print(json.dumps(seconds))
"""


def main() -> int:
    """Measure and print; return 1 where a bound does not hold."""
    print(f"{datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} cores, least of {REPEATS}\n")
    with tempfile.TemporaryDirectory() as folder:
        held = [growth(Path(folder)), long_trace(Path(folder)), many_ranks(Path(folder))]
    return 0 if all(held) else 1


def growth(folder: Path) -> bool:
    """Each table at three sizes; only those that take long enough to be timed are printed."""
    paths = {size: folder / f"{size}.json.gz" for size in SIZES}
    for size, path in paths.items():
        generate.write(path, size)
    found: dict[int, list[dict[str, float]]] = {size: [] for size in SIZES}
    for _ in range(REPEATS):
        for size, path in paths.items():
            found[size].append(json.loads(finished([sys.executable, "-c", _TABLES, str(path)])[0]))
    least = {size: {name: min(one[name] for one in runs) for name in runs[0]} for size, runs in found.items()}
    print("| table | 200k | 400k | 800k | 800k / 200k |\n|---|---|---|---|---|")
    timed = [name for name, seconds in least[SIZES[-1]].items() if seconds >= LEAST_S]
    ratios = {name: least[SIZES[2]][name] / least[SIZES[0]][name] for name in timed}
    for name in timed:
        print(f"| {name} | {' | '.join(f'{least[size][name]:.2f} s' for size in SIZES)} | {ratios[name]:.2f} |")
    return told("no table grows faster than the events", max(ratios.values(), default=0.0), 4 * SLACK, "times")


def long_trace(folder: Path) -> bool:
    """All tables and the report of one long trace."""
    if not EVENTS:
        return True
    path = folder / "long.json.gz"
    generate.write(path, EVENTS)
    tables = finished([sys.executable, "-c", _TABLES, str(path)])[1:]
    report = finished(report_of(path, folder / "long"))[1:]
    most = max(tables[1], report[1])
    print(f"\n{EVENTS:,} events of one rank: tables {tables[0]:.1f} s, report {report[0]:.1f} s of CPU")
    holds = told("all tables and the report", tables[0] + report[0], MOST_CPU_S, "s of CPU")
    return told("the larger peak of the two", most, MOST_GIB, "GiB") and holds


def many_ranks(folder: Path) -> bool:
    """The report of 64 ranks of 5,000 to 15,000 events."""
    ranks = folder / "ranks"
    ranks.mkdir()
    for rank in range(64):
        generate.write(ranks / f"rank{rank}.json.gz", 5_000 + 10_000 * rank // 63, rank, 64)
    return told("report of 64 ranks", finished(report_of(ranks, folder / "many"))[1], MOST_RANKS_CPU_S, "s of CPU")


def report_of(path: Path, out: Path) -> list[str]:
    """The command that reports on a run."""
    return [sys.executable, "-m", "tracekit", "report", str(path), "-o", str(out), "--no-cache"]


def finished(command: list[str]) -> tuple[str, float, float]:
    """Output, CPU seconds and peak GiB of a process of its own."""
    # The usage of all children has the peak of the largest so far: each is asked from a process that has no other.
    asked = (
        "import resource, subprocess, sys; "
        "done = subprocess.run(sys.argv[1:], stdout=subprocess.PIPE, text=True, check=True); "
        "used = resource.getrusage(resource.RUSAGE_CHILDREN); "
        "print(used.ru_utime + used.ru_stime, used.ru_maxrss / 2**20); print(done.stdout)"
    )
    done = subprocess.run(
        [sys.executable, "-c", asked, *command], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    )
    first, _, output = done.stdout.partition("\n")
    seconds, gib = map(float, first.split())
    return output, seconds, gib


def told(what: str, value: float, most: float, unit: str) -> bool:
    """Print a figure with its bound; whether it holds."""
    holds = value <= most
    print(f"{what}: {value:.2f} {unit} (at most {most:g}): {'holds' if holds else 'DOES NOT HOLD'}")
    return holds


if __name__ == "__main__":
    sys.exit(main())
