"""The lesson's claims about volume, each answered from recorded and proved numbers: `make claims`.

Every number on the page comes from a run that the runners recorded over gloo on this machine (they are recorded if the
folder lacks them), from the plan, or from torch's own code run for N ranks in one process; every verdict is made of
those numbers by `tracekit.report.claims.verdicts`.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl

from tracekit.report.claims import verdicts as verdict
from tracekit.report.claims.recorded import AGREES, opener, proofs
from tracekit.report.claims.verdicts import Padded, Placed, Sent, Walk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tracekit.manifest import Manifest
    from tracekit.model.run import Run


class Claim(NamedTuple):
    """What the lesson says, whether it does, and the numbers."""

    says: str
    verdict: str
    evidence: list[str]


def claims(run: Callable[[str], Run]) -> list[Claim]:
    """Every claim, answered; `run` opens a run of RUNS by its name."""
    return [*_volumes(run), _accumulation(run), _padding(run), _mesh(run), *_graphs(run)]


def page(answered: Sequence[Claim], proved: Sequence[str], made: Sequence[str] = ()) -> str:
    """The claims as a Markdown page; `made` says with what."""
    parts = [
        "# What the lesson claims about volume, and what was seen",
        (
            "Recorded numbers are those of a small decoder (`nano`) on two to four ranks over gloo, rank 0, its first "
            "recorded step; `odd` is a model whose shapes divide by nothing. A run is called by its strategy and "
            "options. Elements count once a pass, so an all-reduce counts twice; flags and norms of "
            "single elements do not decide a verdict."
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
        "(`tracekit/report/claims/verdicts.py`, tested in `tests/report/test_claims.py`); no number and no verdict "
        "here is written by hand."
    )
    if made:
        parts.append("\n".join(f"- {line}" for line in made))
    return "\n\n".join(parts) + "\n"


def walk(run: Run, name: str) -> Walk:
    """The way from the lesson to the trace of rank 0's first step."""
    from tracekit.analyzers.ledger import ledger

    rows = ledger(run).filter(pl.col("rank") == 0)
    numel: dict[str, int] = dict(rows.filter(pl.col("step") == rows["step"].min()).select("term", "numel").iter_rows())
    theory, measured, left = numel.pop("theory"), numel.pop("measured"), numel.pop("unexplained")
    return Walk(name, run.psi or 1, theory, {term: value for term, value in numel.items() if value}, measured, left)


def written(way: Walk) -> str:
    """A walk as a line, in Ψ; what two decimals would hide in elements."""

    def amount(value: int) -> str:
        psi = value / way.psi
        return f"{psi:+.3f}Ψ" if abs(psi) >= 0.005 else f"{value:+,} element{'' if abs(value) == 1 else 's'}"

    named = ", ".join(f"{amount(value)} {term}" for term, value in way.terms.items())
    left = "unknown" if way.unexplained is None else f"{way.unexplained:,}"
    psi = f"{way.measured / way.psi:.3f}Ψ = {way.theory / way.psi:g}Ψ"
    return f"`{way.name}`: {psi}{' ' + named if named else ''}; unexplained {left}"


def _volumes(run: Callable[[str], Run]) -> Iterator[Claim]:
    for says, multiple, names in (
        ("DDP moves 2Ψ a step", 2, ("ddp--no-broadcast-buffers", "ddp")),
        ("ZeRO-1 moves 2Ψ, as DDP does", 2, ("zero1", "zero1-deepspeed")),
        ("ZeRO-2 moves 2Ψ", 2, ("zero2-fsdp1", "zero2-fsdp2", "zero2--reduce-to-owner", "zero2")),
        ("ZeRO-3 moves 3Ψ, half as much again", 3, ("fsdp2--reshard-true", "fsdp2", "fsdp1", "zero3-deepspeed")),
    ):
        ways = [walk(run(name), name) for name in names]
        planned = [_planned("fsdp2", "7b", ranks) for ranks in (8, 64)] if multiple == 3 else []
        yield Claim(says, verdict.volume(ways, multiple), [*map(written, ways), *planned])


def _accumulation(run: Callable[[str], Run]) -> Claim:
    pairs = (
        ("zero1-deepspeed", "zero1-deepspeed--micro-batches-2"),
        ("zero2", "zero2--micro-batches-2"),
        ("zero2-fsdp2", "zero2-fsdp2--no-sync"),
    )
    evidence: list[str] = []

    def gradients(name: str) -> int:
        sent = run(name).collectives.filter(pl.col("rank") == 0, pl.col("phase") == "backward")
        first = sent.filter(pl.col("step") == sent["step"].min(), pl.col("kind") != "all_gather")
        numel = (first["in_numel"] * first["passes"]).sum()
        count = _micro_batches(run(name))
        how = f"{first.height} calls, {count} micro-batch{'' if count == 1 else 'es'}"
        evidence.append(f"`{name}`: gradients {numel / (run(name).psi or 1):.3f}Ψ a step in {how}")
        return int(numel)

    zero1, zero2, waiting = (Sent(gradients(one), gradients(more), _micro_batches(run(more))) for one, more in pairs)
    says = "Accumulation multiplies ZeRO-2's gradients, not ZeRO-1's"
    return Claim(says, verdict.accumulation(zero1, zero2, waiting), evidence)


def _padding(run: Callable[[str], Run]) -> Claim:
    from tracekit.analyzers.ledger import ledger

    cases: list[Padded] = []
    for name in ("fsdp2", "fsdp2--odd"):
        opened = run(name)
        rows = ledger(opened, summed=True).filter(pl.col("term") == "padding of dim 0")
        assert opened.manifest is not None
        divides = _divides(opened.manifest, opened.manifest.world_size)
        cases.append(Padded(name, int(rows["numel"].sum()) // _steps(opened), divides))
    evidence = [f"`{case.name}`: {case.numel:,} elements of padding a step" for case in cases]
    for ranks in (8, 64, 512):
        made, once = _gathered("7b", ranks)
        cases.append(Padded(f"7b on {ranks}", once - made.psi, _divides(made, ranks)))
        evidence.append(f"planned, 7b on {ranks}: one gather of all units is {once / made.psi:.5f}Ψ")
    return Claim("FSDP2 shards without padding", verdict.padding(cases), evidence)


def _divides(manifest: Manifest, ranks: int) -> bool:
    return all(parameter.shape[0] % ranks == 0 for parameter in manifest.parameters if parameter.shape)


def _mesh(run: Callable[[str], Run]) -> Claim:
    from tracekit.plan.build import manifest, model_parameters
    from tracekit.plan.strategies.fsdp2_tp import local_shape

    planned = manifest("fsdp2-tp", model_parameters(_sizes()["7b"]), mesh={"dp_shard": 2, "tp": 4})
    recorded = json.loads((run("fsdp2-tp").paths[0] / "manifest.json").read_bytes())
    seen = {entry["name"]: entry for entry in recorded["parameters"]}
    whole = {parameter.name: parameter for parameter in planned.parameters}
    cases: list[Placed] = []
    evidence: list[str] = []
    names = ("layers.0.attention.wo.weight", "layers.0.attention.wq.weight")
    for name in names:
        rows, *rest = local_shape(planned, whole[name])
        cases.append(Placed(f"{name} of 7b", tuple(whole[name].shape), (2, 4), (-(-rows // 2), *rest)))
        lies = f"lies as {list(cases[-1].local)} on each rank"
        evidence.append(f"planned, 7b on (dp 2, tp 4): `{name}` {whole[name].shape} {lies}")
    for name in names:
        entry = seen[name]
        cases.append(Placed(f"{name} of nano", tuple(entry["shape"]), (2, 2), tuple(entry["local_shape"])))
        placed = ", ".join(f"{axis} {how}" for axis, how in entry["placements"].items())
        evidence.append(f"recorded on (2, 2): `{name}` {entry['shape']} lies as {entry['local_shape']}: {placed}")
    says = "On a (dp 2, tp 4) mesh a 4096 × 4096 weight lies as [2048, 1024], placed [Shard(0), Shard(1)]"
    return Claim(says, verdict.placement(cases), evidence)


def _graphs(run: Callable[[str], Run]) -> Iterator[Claim]:
    def told(name: str) -> tuple[int, int, str]:
        """Graph breaks, collectives inside the graphs, and both as a line."""
        said = json.loads((run(name).paths[0] / "manifest.json").read_bytes())["compile"]
        inside = sum(call.get("count", 1) for call in said["collectives_in_graph"])
        line = f"`{name}`: {said['graphs']} graphs, {said['graph_breaks']} graph breaks, {inside} collectives inside"
        return said["graph_breaks"], inside, line

    ddp, fsdp1, fsdp2 = (told(name) for name in ("ddp--compile-model", "fsdp1--compile-model", "fsdp2--compile-model"))
    says = "FSDP1 breaks the compiled graph, FSDP2 does not"
    yield Claim(says, verdict.breaks(fsdp1[0], fsdp2[0]), [ddp[2], fsdp1[2], fsdp2[2]])
    graph = told("fsdp2-graph")
    says = "FSDP2's collectives are nodes of the compiled graph"
    yield Claim(says, verdict.nodes(fsdp2[1], graph[1]), [fsdp2[2], graph[2]])


def _planned(strategy: str, model: str, ranks: int) -> str:
    from tracekit.plan import plan
    from tracekit.plan.build import manifest, model_parameters
    from tracekit.plan.plan_totals import totals

    made = manifest(strategy, model_parameters(_sizes()[model]), mesh={"dp_shard": ranks})
    sent = totals(plan(made))["passes_numel"]
    return f"planned, {strategy} as it is, {model} on {ranks}: {sent / made.psi:.4f}Ψ"


def _gathered(model: str, ranks: int) -> tuple[Manifest, int]:
    """A planned run that gathers every unit once, and the elements of that."""
    from tracekit.plan import plan
    from tracekit.plan.build import manifest, model_parameters

    made = manifest("zero2-fsdp2", model_parameters(_sizes()[model]), mesh={"dp_shard": ranks})
    return made, int(plan(made).filter(pl.col("kind") == "all_gather")["out_numel"].sum())


def _micro_batches(run: Run) -> int:
    return run.manifest.micro_batches if run.manifest else 1


def _steps(run: Run) -> int:
    return run.steps.filter("complete").height or 1


def _made(runs: Mapping[str, Run], proved: Sequence[str]) -> Iterator[str]:
    """What the page stands on: runs and what is unexplained in them, proofs that agree, versions."""
    from tracekit.analyzers.ledger import ledger

    left = 0
    for run in runs.values():
        rest = ledger(run).filter(pl.col("term") == "unexplained").select("numel", "payload_bytes", "backend_numel")
        left += rest.filter(~pl.all_horizontal(pl.all().eq(0).fill_null(value=False))).height
    steps = sum(_steps(run) for run in runs.values())
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


def _sizes() -> dict[str, Any]:
    from tracekit.reference_models import SIZES

    return SIZES


def main(args: Sequence[str] | None = None) -> int:
    """Writes the page; 0 when done."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("out/claims"), help="folder of the runs, filled as needed")
    parser.add_argument("--out", type=Path, default=Path("docs/claims.md"))
    parser.add_argument("--no-prove", action="store_true", help="leave the proofs out")
    given = parser.parse_args(args)
    runs: dict[str, Run] = {}
    answered = claims(opener(given.runs, runs))
    proved = [] if given.no_prove else list(proofs())
    text = page(answered, proved, list(_made(runs, proved)))
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
