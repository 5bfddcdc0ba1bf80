"""The fuzzer of truth: random models, wrappers and loops, recorded over gloo with nothing told, against what was asked.

    python tests/fuzz/ledger.py

Environment: N configurations (300) from START (0) of SEED (0); KEEP names a folder for the runs that are wrong.
A configuration is exact (nothing unexplained, in elements and bytes), told (what is unexplained is said), or wrong: the
trace has other collectives than torch was asked for, a sentence is not true, or what is unexplained is not said.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import polars as pl
from ledger_configs import config

import tracekit
from tracekit.report.sentences import sentences
from tracekit.training import environment

try:
    from sentence_checker import complaints
except ImportError:
    # As a program; pytest has the helpers' folder on its path.
    sys.path.append(str(Path(__file__).parents[1] / "helpers"))
    from sentence_checker import complaints

BATCH = 20
TIMEOUT_S = 600


def record(folder: Path, seed: int, numbers: list[int]) -> None:
    """Record these configurations of a seed, each into a folder of its number."""
    program = Path(__file__).with_name("ledger_ranks.py")
    subprocess.run(
        [sys.executable, str(program), str(folder), str(seed), *map(str, numbers)],
        env=environment(), check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=TIMEOUT_S,
    )  # fmt: skip


def verdict(folder: Path, number: int) -> tuple[str, list[str]]:
    """Class of a recorded configuration (exact, told, wrong or failed), and what is wrong or was told."""
    failed = folder / f"{number}.failed"
    if failed.exists():
        return "failed", [failed.read_text().strip().splitlines()[-1]]
    run = tracekit.open(folder / str(number), cache=False)
    texts = sentences(run)
    wrong = [*_other_calls(run, folder / str(number)), *complaints(run, texts)]
    rest = run.table("ledger", by=("layer", "phase", "kind", "axis", "dtype")).filter(pl.col("term") == "unexplained")
    off = rest.filter(pl.any_horizontal((pl.col(n) != 0) | pl.col(n).is_null() for n in ("numel", "payload_bytes")))
    said = [text for text in texts if "disagree" in text or "unexplained" in text or "bytes are not" in text]
    if rest.is_empty():
        said += [text for text in texts if text.startswith("No strategy is named")]
        wrong += [] if said else ["nothing is compared, and it is not said why"]
    if off.height and not said:
        wrong.append(f"unexplained and not said: {off.select('layer', 'phase', 'kind', 'numel').head(3).rows()}")
    if wrong:
        return "wrong", wrong
    return ("told", said) if off.height or rest.is_empty() else ("exact", [])


def _other_calls(run: tracekit.Run, folder: Path) -> list[str]:
    """Differences between the collectives of the trace and those that torch was asked for, a rank and step each."""
    found = []
    steps = run.steps["step"].drop_nulls().unique().sort().to_list()
    for file in sorted(folder.glob("asked-*.json")):
        rank = int(file.stem.partition("-")[2])
        for number, asked in zip(steps, json.loads(file.read_text()), strict=True):
            rows = run.collectives.filter(rank=rank, step=number).select("kind", "in_numel").rows()
            expected, seen = Counter(map(tuple, asked)), Counter(rows)
            if expected != seen:
                found.append(f"rank {rank}, step {number}: asked {expected - seen}, in the trace {seen - expected}")
    return found


def main() -> int:
    """Fuzz and print; return 1 where anything is wrong."""
    seed, start, count = (
        int(os.environ.get(name, default)) for name, default in (("SEED", 0), ("START", 0), ("N", 300))
    )
    classes: Counter[str] = Counter()
    for first in range(start, start + count, BATCH):
        numbers = list(range(first, min(first + BATCH, start + count)))
        with tempfile.TemporaryDirectory() as name:
            record(Path(name), seed, numbers)
            for number in numbers:
                kind, texts = verdict(Path(name), number)
                classes[kind] += 1
                if kind != "exact":
                    print(
                        f"{kind} {seed}/{number}: {config(seed, number).text}\n    " + "\n    ".join(texts), flush=True
                    )
                if kind == "wrong" and "KEEP" in os.environ:
                    kept = Path(os.environ["KEEP"]) / f"{seed}-{number}"
                    shutil.copytree(Path(name) / str(number), kept, dirs_exist_ok=True)
        print(f"{first + len(numbers) - start} of {count}: {dict(classes)}", flush=True)
    return 1 if classes["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
