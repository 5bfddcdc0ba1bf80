"""Eight ranks read and analysed, against HTA's load and its four standard analyses of the same files, in one run.

    python tests/bench/analyse.py [FOLDER]

HTA reads with as many processes as there are cores, its default, tracekit with as many threads; no cache, imports
excluded (both are warmed up on a first pass that is not counted). Prints the median of each side and the median of the
ratios, pair by pair. Without the public 8-rank trace it makes one of its own, of the same shape, and says so.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

RUNS = 5
CORPUS = Path(os.environ.get("TRACEKIT_CORPUS", Path(__file__).parents[3] / "shared" / "corpus"))
PUBLIC = CORPUS / "dlrm-ddp-8rank-v100"


def ours(folder: Path) -> None:
    """Read, and answer what HTA's four analyses answer, and who waited for whom besides."""
    import tracekit
    from tracekit.analyzers.breakdown import breakdown
    from tracekit.analyzers.causes.exposure import exposure
    from tracekit.analyzers.overlap import overlap
    from tracekit.analyzers.skew import skew, stragglers

    run = tracekit.open(folder, cache=False)
    breakdown(run)
    overlap(run)
    run.work.group_by("rank", "class", "name").agg("dur_ns").height  # noqa: B018 - the kernel breakdown
    exposure(run)
    skew(run)
    stragglers(run)


def theirs(folder: Path) -> None:
    """HTA's load, temporal breakdown, overlap, kernel breakdown and idle time, as its users call them."""
    from hta.trace_analysis import TraceAnalysis

    files = dict(enumerate(str(path) for path in sorted(folder.iterdir())))
    with contextlib.redirect_stdout(io.StringIO()):
        analyzer = TraceAnalysis(trace_files=files, trace_dir=str(folder))
        analyzer.get_temporal_breakdown(visualize=False)
        analyzer.get_comm_comp_overlap(visualize=False)
        analyzer.get_gpu_kernel_breakdown(visualize=False)
        analyzer.get_idle_time_breakdown(ranks=list(files), visualize=False)


def seconds(work: Callable[[Path], None], folder: Path) -> float:
    """How long it takes once."""
    start = time.perf_counter()
    work(folder)
    return time.perf_counter() - start


def made(folder: Path) -> Path:
    """Eight ranks of a DDP step, about the size of the public trace."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
    from gpu import Rank

    for number in range(8):
        rank = Rank(number, 8)
        rank.step(10, 0, 30_000)
        for layer in range(300):
            at = 100.0 * layer
            rank.kernel(f"gemm_{layer % 7}", at + 200, 70, launched=at + 20)
            if layer % 40 == 39:
                rank.collective("all_reduce", at + 280, 60, issued=at + 30, stream=24, shard=4096, seq=layer)
        rank.write(folder)
    return folder


def main() -> None:
    """Print both medians and the ratio."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(sys.argv[1]) if len(sys.argv) > 1 else PUBLIC if PUBLIC.is_dir() else made(Path(scratch))
        if folder == Path(scratch):
            print(f"the public trace is not at {PUBLIC}: eight ranks made here instead")
        pairs = [(seconds(ours, folder), seconds(theirs, folder)) for _ in range(RUNS + 1)][1:]
    mine, other = (statistics.median(side) for side in zip(*pairs, strict=True))
    ratio = statistics.median(b / a for a, b in pairs)
    print(f"{folder.name}, medians of {RUNS}: tracekit {mine:.3f} s, HTA {other:.3f} s, ratio {ratio:.1f}")


if __name__ == "__main__":
    main()
