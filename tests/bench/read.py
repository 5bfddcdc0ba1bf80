"""How fast and in how much memory traces are read, side by side with HTA and with what reading costs at least.

``python tests/bench/read.py``. Environment: EVENTS of the large generated trace (5000000), REPEATS (5).
Every figure is the median of REPEATS runs that take turns, each in a fresh process that has read a small trace before:
imports, thread pools and compiled expressions do not count on any side.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import generate

CORPUS = Path(os.environ.get("TRACEKIT_CORPUS", Path(__file__).parents[3] / "shared" / "corpus"))
REPEATS = int(os.environ.get("REPEATS", "5"))
EVENTS = int(os.environ.get("EVENTS", "5000000"))
# Everything that is written, the caches too; removed at the end.
_TEMPORARY = tempfile.TemporaryDirectory()
FOLDER = Path(_TEMPORARY.name)

# What a fresh process does: import, work on a small file, note its memory, work on the file, print what that took.
_CHILD = """
import json, resource, shutil, sys, tempfile, time
from pathlib import Path
small, path, work = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
import polars, msgspec, numpy
from isal import igzip, isal_zlib
from tracekit.read.decode import decode
import tracekit.model.run, tracekit
polars.DataFrame({"a": [1]}).filter(polars.col("a") > 0)

def tables(run):
    for name in ("steps", "work", "collectives", "memory"):
        getattr(run, name)
    return run.ranks["num_events"].sum()

def opened(path, cache):
    return tables(tracekit.open(path, cache=cache))

if work == "hta":
    import logging
    logging.disable(logging.CRITICAL)
    from hta.trace_analysis import TraceAnalysis
if work == "floor":
    import simdjson
do = {
    "tables": lambda path: opened(path, False),
    "kept": lambda path: opened(path, True),
    "cached": lambda path: opened(path, True),
    "frames": lambda path: decode(path).columns.num_events,
    "hta": lambda path: len(TraceAnalysis(trace_files={0: str(path)}, trace_dir="").t.get_trace(0)),
    "floor": lambda path: len(simdjson.Parser().parse(igzip.decompress(path.read_bytes()))["traceEvents"]),
}[work]
do(small)
if work == "kept":
    # Where nothing is kept yet.
    path = Path(shutil.copy(path, tempfile.mkdtemp(dir=small.parent)))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
start, cpu = time.perf_counter(), time.process_time()
events = do(path)
seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
print(json.dumps({"seconds": seconds, "cpu": cpu, "bytes": grown, "peak": grown + 1024 * before, "events": events}))
"""


def measure(path: Path, work: str) -> dict[str, Any]:
    """Run one kind of work on a file in a fresh process."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _CHILD, str(FOLDER / "warm-up.json.gz"), str(path), work],
        capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{work} of {path.name} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def medians(jobs: dict[str, tuple[Path, str]]) -> dict[str, dict[str, float]]:
    """Return the medians of REPEATS runs of several jobs (a file, and what to do with it), which take turns."""
    seen: dict[str, list[dict[str, Any]]] = {name: [] for name in jobs}
    for _ in range(REPEATS):
        for name, (path, work) in jobs.items():
            seen[name].append(measure(path, work))
    return {
        name: {
            **{key: statistics.median(one[key] for one in rows) for key in rows[0]},
            "fastest": min(one["seconds"] for one in rows),
        }
        for name, rows in seen.items()
    }


def machine() -> str:
    """Say where this runs, with which versions."""
    model = next((line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")), "?")
    names = ("polars", "msgspec", "isal", "pysimdjson", "traceinsight")
    packages = ", ".join(f"{name} {version(name)}" for name in names)
    return f"{os.cpu_count()} cores of {model}, Python {platform.python_version()}, {packages}"


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines() if Path(path).exists() else []


def say(what: str, value: str, bound: str, *, holds: bool) -> bool:
    """Print one figure with its bound."""
    print(f"{what:<58} {value:>10}   {bound:<18} {'holds' if holds else 'FAILS'}", flush=True)
    return holds


def _speed(one: dict[str, float]) -> str:
    return f"{one['seconds']:.3f} s ({one['cpu']:.3f} s of CPU)"


def small(path: Path, json_bytes: int) -> list[bool]:
    """Compare with HTA, the floor and the second opening."""
    got = medians({work: (path, work) for work in ("floor", "frames", "tables", "kept", "hta")})
    for work, one in got.items():
        print(f"  {work:<8} {_speed(one)}, {one['bytes'] / 2**20:.0f} MiB above the imports")
    tables = got["tables"]
    hta, floor = got["hta"]["seconds"] / tables["seconds"], tables["seconds"] / got["floor"]["seconds"]
    share = tables["bytes"] / json_bytes
    return [
        say("HTA's load / file to all tables", f"{hta:.1f}", "at least 8", holds=hta >= 8),
        say("file to all tables / floor (igzip + simdjson)", f"{floor:.2f}", "at most 2.5", holds=floor <= 2.5),
        say("peak bytes a byte of JSON", f"{share:.2f}", "at most 3", holds=share <= 3),
        *second_opening(path, tables["seconds"]),
    ]


def second_opening(path: Path, first: float) -> list[bool]:
    """Compare the opening from the cache with the first, not counting that the first also writes the cache."""
    own = Path(shutil.copy(path, FOLDER))
    measure(own, "cached")
    ratio = first / medians({"cached": (own, "cached")})["cached"]["seconds"]
    return [say("first opening / second, file to all tables", f"{ratio:.1f}", "at least 10", holds=ratio >= 10)]


def large() -> list[bool]:
    """Read a generated trace, and one of half the size, and compare."""
    counts = {"half": EVENTS // 2, "whole": EVENTS}
    paths = {name: FOLDER / f"{name}.json.gz" for name in counts}
    sizes = {name: generate.write(path, counts[name]) for name, path in paths.items()}
    jobs = ["half frames", "whole frames", "half tables", "whole tables", "whole kept"]
    got = medians({job: (paths[job.split()[0]], job.split()[1]) for job in jobs})
    for job, one in got.items():
        name, work = job.split()
        speed = f"{_speed(one)}, {counts[name] / one['seconds']:,.0f} events a second"
        size = f"{counts[name]} events, {sizes[name] / 1e9:.2f} GB"
        print(f"  {size}: {work:<7} {speed}, peak {one['peak'] / 2**30:.2f} GiB", flush=True)
    kept = got["whole kept"]["peak"] / 2**30
    held = [say("peak GiB, file to all tables, all of it kept", f"{kept:.2f}", "at most 3", holds=kept <= 3)]
    for work, until in (("frames", "file to frames"), ("tables", "file to all tables")):
        whole, half = got[f"whole {work}"], got[f"half {work}"]
        rate, peak = EVENTS / whole["seconds"], whole["peak"] / 2**30
        # Noise only ever adds, and adds more to what lasts longer: growth is that of the fastest runs.
        growth = whole["fastest"] / half["fastest"]
        held += [
            say(f"events a second, {until}", f"{rate:,.0f}", "at least 300,000", holds=rate >= 300_000),
            say(f"peak GiB, {until}", f"{peak:.2f}", "at most 3", holds=peak <= 3),
            say(f"time for twice the events, {until}", f"{growth:.2f}", "at most 2, ± 5 %", holds=growth <= 2.1),
        ]
    return held


def with_file(then: Callable[[Path, int], list[bool]]) -> list[bool]:
    """Use the public H100 trace, or a generated one of its size."""
    path = CORPUS / "h100-132k-events.json.gz"
    if path.is_file():
        import gzip

        return then(path, len(gzip.decompress(path.read_bytes())))
    print(f"no {path}: a generated trace of the same size instead")
    path = FOLDER / "generated.json.gz"
    return then(path, generate.write(path, 132_000))


def main() -> int:
    """Print every figure; 1 where one does not hold."""
    print(f"{datetime.now(UTC):%Y-%m-%d}, {machine()}, load {os.getloadavg()[0]:.1f}, medians of {REPEATS}")
    generate.write(FOLDER / "warm-up.json.gz", 2000)
    held = with_file(small)
    held += large() if EVENTS else []
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
