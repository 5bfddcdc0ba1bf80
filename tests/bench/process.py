"""CPU seconds of whole processes, imports included, beside HTA's on the same trace, in one run.

    python tests/bench/process.py

HTA's process imports it, loads the trace and makes what is compared: its temporal breakdown alone, or its four standard
analyses (temporal breakdown, overlap, kernel breakdown, idle time breakdown). Commands run without tracekit's cache,
into a fresh folder, with modules compiled and the page's script kept before: one round is not counted. Figures are
medians of REPEATS (5) rounds in which the processes take turns, and of the ratios round by round. Environment: REPEATS,
TRACEKIT_CORPUS (public traces; without them traces of the same size are made here).
"""

from __future__ import annotations

import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import analyse
import generate

ROOT = Path(__file__).parents[2]
REPEATS = int(os.environ.get("REPEATS", "5"))
# Everything that is written; removed at the end.
_TEMPORARY = tempfile.TemporaryDirectory()
FOLDER = Path(_TEMPORARY.name)

# What a process of HTA does with the traces named on its command line; "all" for the four standard analyses.
_HTA = """
import contextlib, io, logging, sys
logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
what, *paths = sys.argv[1:]
files = dict(enumerate(paths))
with contextlib.redirect_stdout(io.StringIO()):
    analysis = TraceAnalysis(trace_files=files, trace_dir="")
    analysis.get_temporal_breakdown(visualize=False)
    if what == "all":
        analysis.get_comm_comp_overlap(visualize=False)
        analysis.get_gpu_kernel_breakdown(visualize=False)
        analysis.get_idle_time_breakdown(ranks=list(files), visualize=False)
"""


class Bound(NamedTuple):
    """One line of the result: `top` over `under`, both names of processes, and where it has to lie."""

    what: str
    top: str
    under: str
    most: float | None = None
    least: float | None = None

    def holds(self, ratio: float) -> bool:
        """Whether the ratio lies where it has to."""
        return ratio <= (self.most or float("inf")) and ratio >= (self.least or 0)

    @property
    def text(self) -> str:
        return f"at most {self.most:.2f}" if self.least is None else f"at least {self.least:.2f}"


BOUNDS = [
    Bound("report / HTA's four analyses, 132k events", "report large", "hta large", most=2 / 3),
    Bound("report / HTA's four analyses, eight tiny ranks", "report tiny", "hta tiny", most=1),
    Bound("HTA's temporal breakdown / show breakdown, 132k events", "hta breakdown", "show breakdown", least=5),
    Bound("tracekit --version / python -c pass", "version", "python", most=2.5),
]


# An installed package is compiled; so is the checkout, also where Python is told to write no bytecode.
_ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def cpu(command: list[str]) -> float:
    """CPU seconds, of all its threads and children, of a command that ends well."""
    shutil.rmtree(FOLDER / "out", ignore_errors=True)
    before = _children()
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=_ENVIRONMENT)
    used = _children() - before
    if done.returncode:
        raise SystemExit(f"{' '.join(command)[:200]} failed:\n{done.stderr[-2000:]}")
    return used


def _children() -> float:
    """CPU seconds of all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def commands(large: Path, tiny: Path) -> dict[str, list[str]]:
    """The processes by name."""
    python = [sys.executable, "-W", "ignore"]
    tracekit, out = [*python, "-m", "tracekit"], str(FOLDER / "out")
    ranks = [str(path) for path in sorted(tiny.iterdir())]
    fresh = ["--no-cache", "--force", "-o", out]
    return {
        "report large": [*tracekit, "report", str(large), *fresh],
        "hta large": [*python, "-c", _HTA, "all", str(large)],
        "report tiny": [*tracekit, "report", str(tiny), *fresh],
        "hta tiny": [*python, "-c", _HTA, "all", *ranks],
        "show breakdown": [*tracekit, "show", "breakdown", str(large), "--no-cache"],
        "hta breakdown": [*python, "-c", _HTA, "breakdown", str(large)],
        "version": [*tracekit, "--version"],
        "python": [*python, "-c", "pass"],
    }


def traces() -> tuple[Path, Path]:
    """A trace of 132k events and a folder of eight tiny ranks: the public ones, or some of the same size made here."""
    large, tiny = analyse.CORPUS / "h100-132k-events.json.gz", analyse.PUBLIC
    if not large.is_file():
        print(f"no {large}: a generated trace of the same size instead")
        large = FOLDER / "generated.json.gz"
        generate.write(large, 132_000)
    if not tiny.is_dir():
        print(f"no {tiny}: eight ranks made here instead")
        tiny = analyse.made(FOLDER)
    return large, tiny


def main() -> int:
    """Print every figure; 1 where a bound does not hold."""
    processes = commands(*traces())
    rounds = [{name: cpu(command) for name, command in processes.items()} for _ in range(REPEATS + 1)][1:]
    print(f"{datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, medians of {REPEATS}")
    for name in processes:
        print(f"  {name:<16} {statistics.median(one[name] for one in rounds):6.3f} s of CPU")
    held = []
    for bound in BOUNDS:
        ratio = statistics.median(one[bound.top] / one[bound.under] for one in rounds)
        held.append(bound.holds(ratio))
        print(f"{bound.what:<56} {ratio:6.2f}   {bound.text:<14} {'holds' if held[-1] else 'FAILS'}")
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
