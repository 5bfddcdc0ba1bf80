"""Common claims about what ZeRO and FSDP send and hold, answered from recorded and proved numbers: `make claims`.

Every number on the page comes from a run that the training programs record over gloo on this machine (those that the
folder lacks are recorded, which takes minutes), from the plan, or from torch's own code run for N ranks in one process.
"""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import TYPE_CHECKING

import script
from zero_claims.answers import claims
from zero_claims.memory import memory_claims
from zero_claims.page import made_of, page
from zero_claims.recorded import opener, proofs

if TYPE_CHECKING:
    from tracekit import Run

ROOT = Path(__file__).parents[1]


def main() -> None:
    """Writes the page."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, default=ROOT / "out" / "claims", help="folder of runs, filled as needed")
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "docs" / "claims.md", help="the page to write")
    parser.add_argument("--no-prove", action="store_true", help="leave the proofs by torch's own code out")
    given = parser.parse_args()
    runs: dict[str, Run] = {}
    with script.one_sentence():
        answered = [*claims(opener(given.runs, runs)), *memory_claims()]
        proved = [] if given.no_prove else list(proofs())
        given.output.parent.mkdir(parents=True, exist_ok=True)
        given.output.write_text(page(answered, proved, list(made_of(runs, proved))), encoding="utf-8")


if __name__ == "__main__":
    main()
