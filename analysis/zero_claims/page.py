"""The claims, their evidence and what both were made of, as a page of Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from zero_claims.answers import Claim, steps_of
from zero_claims.recorded import AGREES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tracekit.model.run import Run


def page(answered: Sequence[Claim], proved: Sequence[str], made: Sequence[str] = ()) -> str:
    """The claims as a Markdown page; `made` says with what."""
    parts = [
        "# What is said about the volume and memory of ZeRO and FSDP, and what was measured",
        (
            "Recorded numbers are those of a small decoder (`nano`) on two to four ranks over gloo, rank 0, its first "
            "recorded step; `odd` is a model whose shapes divide by nothing. A run is called by its strategy and "
            "options. Elements count once a pass, so an all-reduce counts twice; flags and norms of "
            "single elements do not decide a verdict. Planned memory is that of a step of the strategy's own code, run "
            "in one process for N ranks (`tracekit plan --table memory`)."
        ),
    ]
    for claim in answered:
        parts.append(f"## {claim.says}\n\n**{claim.verdict[0].upper()}{claim.verdict[1:]}**")
        parts.append("\n".join(f"- {line}" for line in claim.evidence))
    if proved:
        parts.append("## Proof: torch's own code for N ranks, compared call by call with the plan")
        parts.append("\n".join(f"- {line}" for line in proved))
    parts.append("## How this page was made")
    parts.append(
        "`make claims` records the runs that `out/claims` lacks, reads them with "
        "tracekit, proves the plans, and writes this page. Its verdicts are functions of the numbers "
        "(`analysis/zero_claims/verdicts.py`, tested in `tests/analysis/test_claims.py`); no number and no verdict "
        "here is written by hand."
    )
    if made:
        parts.append("\n".join(f"- {line}" for line in made))
    return "\n\n".join(parts) + "\n"


def made_of(runs: Mapping[str, Run], proved: Sequence[str]) -> Iterator[str]:
    """Evidence of the page: runs and what is unexplained in them, proofs that agree, versions."""
    left = 0
    for run in runs.values():
        rest = (
            run.table("ledger")
            .filter(pl.col("term") == "unexplained")
            .select("numel", "payload_bytes", "backend_numel")
        )
        left += rest.filter(~pl.all_horizontal(pl.all().eq(0).fill_null(value=False))).height
    steps = sum(steps_of(run) for run in runs.values())
    yield f"{len(runs)} recorded runs with {steps} steps of a rank; in {left} of them anything is unexplained"
    sizes = {"nano": runs.get("fsdp2"), "odd": runs.get("fsdp2--odd")}
    yield "; ".join(f"{name} has Ψ = {run.psi:,}" for name, run in sizes.items() if run is not None and run.psi)
    if proved:
        agreeing = sum(AGREES in line for line in proved)
        yield f"{agreeing} of {len(proved)} proofs agree with the plan"
    told = [run.manifest.versions for run in runs.values() if run.manifest]
    for name in ("python", "torch", "deepspeed"):
        found = sorted({str(versions[name]) for versions in told if versions.get(name)})
        yield f"{name} {', '.join(found) or 'unknown'}"
