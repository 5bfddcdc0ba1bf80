"""The lesson's claims about volume, each answered from recorded and proved numbers: `python -m analysis.claims`.

Every number on the page comes from a run that the runners recorded over gloo on this machine (they are recorded if the
folder lacks them), from the plan, or from torch's own code run for N ranks in one process.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tracekit.model.run import Run

HOLDS, WHEN, NOT = "holds", "holds when", "does not hold"
# Name of the folder: strategy, options, ranks.
RUNS: dict[str, tuple[str, tuple[str, ...], int]] = {
    "ddp": ("ddp", (), 2),
    "ddp--compile-model": ("ddp", ("--compile", "model"), 2),
    "zero1": ("zero1", (), 2),
    "zero1-deepspeed": ("zero1-deepspeed", (), 2),
    "zero1-deepspeed--micro-batches-2": ("zero1-deepspeed", ("--micro-batches", "2"), 2),
    "zero2": ("zero2", (), 2),
    "zero2--reduce-to-owner": ("zero2", ("--grad-path", "reduce-to-owner"), 2),
    "zero2--micro-batches-2": ("zero2", ("--micro-batches", "2"), 2),
    "zero2-fsdp1": ("zero2-fsdp1", (), 2),
    "zero2-fsdp2": ("zero2-fsdp2", (), 2),
    "fsdp1": ("fsdp1", (), 2),
    "fsdp1--compile-model": ("fsdp1", ("--compile", "model"), 2),
    "fsdp2": ("fsdp2", (), 2),
    "fsdp2--reshard-true": ("fsdp2", ("--reshard-after-forward", "true"), 2),
    "fsdp2--no-sync": ("fsdp2", ("--micro-batches", "2", "--no-sync-every-micro-batch"), 2),
    "fsdp2--odd": ("fsdp2", ("--model", "odd"), 2),
    "fsdp2--compile-model": ("fsdp2", ("--compile", "model"), 2),
    "fsdp2-graph": ("fsdp2-graph", (), 2),
    "fsdp2-tp": ("fsdp2-tp", (), 4),
    "zero3-deepspeed": ("zero3-deepspeed", (), 2),
}
PROOFS = [
    *(("fsdp2", "7b", f"dp_shard={ranks}", ()) for ranks in (2, 8, 64, 512)),
    ("fsdp2", "7b", "dp_shard=64", ("--reshard-after-forward", "true")),
    ("fsdp2", "7b", "dp_shard=64", ("--reshard-after-forward", "8")),
    ("zero2-fsdp2", "7b", "dp_shard=64", ()),
    ("hsdp", "7b", "dp_replicate=8,dp_shard=64", ()),
    ("fsdp2-tp", "7b", "dp_shard=64,tp=8", ()),
    ("fsdp2", "odd", "dp_shard=8", ()),
    ("hsdp", "odd", "dp_replicate=2,dp_shard=4", ()),
]


class Claim(NamedTuple):
    """What the lesson says, whether it does, and the numbers."""

    says: str
    verdict: str
    evidence: list[str]


def claims(run: Callable[[str], Run]) -> list[Claim]:
    """Every claim, answered; `run` opens a run of RUNS by its name."""
    return [*_volumes(run), _accumulation(run), _padding(run), _mesh(run), *_graphs(run)]


def page(answered: Sequence[Claim], proofs: Sequence[str]) -> str:
    """The claims as a Markdown page."""
    parts = [
        "# What the lesson claims about volume, and what was seen",
        (
            "Made by `make claims` (`python -m analysis.claims`). Recorded numbers are those of a decoder with "
            "Ψ = 7,248 (`nano`) on two to four ranks over gloo, rank 0, one step; `odd` has Ψ = 106,554 and shapes "
            "that divide by nothing. Elements count once a pass, so an all-reduce counts twice. What the ledger cannot "
            "explain is 0 elements and 0 bytes in every run used here."
        ),
    ]
    for claim in answered:
        parts.append(f"## {claim.says}\n\n**{claim.verdict[0].upper()}{claim.verdict[1:]}**")
        parts.append("\n".join(f"- {line}" for line in claim.evidence))
    if proofs:
        parts.append("## Proof: torch's own code for N ranks, compared call by call with the plan")
        parts.append("\n".join(f"- {line}" for line in proofs))
    return "\n\n".join(parts) + "\n"


def _volumes(run: Callable[[str], Run]) -> Iterator[Claim]:
    yield Claim(
        "DDP moves 2Ψ a step",
        f"{HOLDS}, for gradients",
        [
            _walk(run("ddp"), "ddp"),
            "Buffers are sent beside it before every forward; without any, or told not to, it is 2Ψ to the element.",
        ],
    )
    yield Claim(
        "ZeRO-1 moves 2Ψ, as DDP does",
        f"{NOT} in either implementation: both all-reduce gradients and send parameters as well",
        [_walk(run(name), name) for name in ("zero1", "zero1-deepspeed")],
    )
    yield Claim(
        "ZeRO-2 moves 2Ψ",
        f"{WHEN} gradients are reduced to their owners or reduce-scattered; DeepSpeed's default all-reduces them: 3Ψ",
        [_walk(run(name), name) for name in ("zero2-fsdp1", "zero2-fsdp2", "zero2--reduce-to-owner", "zero2")],
    )
    yield Claim(
        "ZeRO-3 moves 3Ψ, half as much again",
        f"{WHEN} every unit is resharded after forward; torch keeps the root, DeepSpeed what is small or soon needed",
        [_walk(run(name), name) for name in ("fsdp2--reshard-true", "fsdp2", "fsdp1", "zero3-deepspeed")]
        + [_planned("fsdp2", "7b", ranks) for ranks in (8, 64)],
    )


def _accumulation(run: Callable[[str], Run]) -> Claim:
    def gradients(name: str) -> str:
        sent = run(name).collectives.filter(pl.col("rank") == 0, pl.col("phase") == "backward")
        first = sent.filter(pl.col("step") == sent["step"].min(), pl.col("kind") != "all_gather")
        psi = (first["in_numel"] * first["passes"]).sum() / (run(name).psi or 1)
        return f"`{name}`: gradients {psi:.3f}Ψ a step in {first.height} calls, {_micro_batches(run(name))}"

    names = ("zero1-deepspeed", "zero1-deepspeed--micro-batches-2", "zero2", "zero2--micro-batches-2", "fsdp2--no-sync")
    return Claim(
        "Accumulation multiplies ZeRO-2's gradients, not ZeRO-1's",
        f"{HOLDS} (FSDP2 may wait for the last micro-batch too, and then holds whole gradients)",
        [gradients(name) for name in names],
    )


def _padding(run: Callable[[str], Run]) -> Claim:
    def padded(name: str) -> str:
        from analysis.ledger import ledger

        rows = ledger(run(name), summed=True).filter(pl.col("term") == "padding of dim 0")
        return f"`{name}`: {int(rows['numel'].sum()) // _steps(run(name)):,} elements of padding a step"

    return Claim(
        "FSDP2 shards without padding",
        f"{WHEN} every dim 0 divides by the ranks; otherwise each gather and reduction carries the padding",
        [padded("fsdp2"), padded("fsdp2--odd"), *(_gathered("7b", ranks) for ranks in (8, 64, 512))],
    )


def _mesh(run: Callable[[str], Run]) -> Claim:
    from tracekit.plan.build import manifest, model_parameters
    from tracekit.plan.fsdp2_tp import local_shape

    size = _sizes()["7b"]
    planned = manifest("fsdp2-tp", model_parameters(size), mesh={"dp_shard": 2, "tp": 4})
    evidence: list[str] = []
    for name in ("layers.0.attention.wo.weight", "layers.0.attention.wq.weight"):
        whole = next(parameter for parameter in planned.parameters if parameter.name == name)
        rows, *rest = local_shape(planned, whole)
        evidence.append(f"7B, mesh (dp 2, tp 4): `{name}` {whole.shape} lies as {[-(-rows // 2), *rest]} on each rank")
    recorded = json.loads((run("fsdp2-tp").paths[0] / "manifest.json").read_bytes())
    seen = {entry["name"]: entry for entry in recorded["parameters"]}
    for name in ("layers.0.attention.wo.weight", "layers.0.attention.wq.weight"):
        entry = seen[name]
        evidence.append(f"recorded on (2, 2): `{name}` {entry['shape']}, {entry['placements']}, {entry['local_shape']}")
    return Claim(
        "On a (dp 2, tp 4) mesh a 4096 × 4096 weight lies as [2048, 1024], placed [Shard(0), Shard(1)]",
        f"{WHEN} tensor parallelism splits the rows (dim 1); what it splits by columns is dim 0 on both axes",
        evidence,
    )


def _graphs(run: Callable[[str], Run]) -> Iterator[Claim]:
    def compiled(name: str) -> str:
        told = json.loads((run(name).paths[0] / "manifest.json").read_bytes())["compile"]
        nodes = sum(call.get("count", 1) for call in told["collectives_in_graph"])
        return (
            f"`{name}` (torch {_torch(run(name))}): {told['graphs']} graphs, {told['graph_breaks']} graph breaks, "
            f"{nodes} collectives inside the graphs"
        )

    yield Claim(
        "FSDP1 breaks the compiled graph, FSDP2 does not",
        f"{HOLDS} for the number of breaks",
        [compiled(name) for name in ("ddp--compile-model", "fsdp1--compile-model", "fsdp2--compile-model")],
    )
    yield Claim(
        "FSDP2's collectives are nodes of the compiled graph",
        f"{NOT} for `fully_shard`, whose hooks run outside the graph; {WHEN} parameters are redistributed DTensors",
        [compiled("fsdp2--compile-model"), compiled("fsdp2-graph")],
    )


def _walk(run: Run, name: str) -> str:
    """One run's way from the lesson to the trace, in Ψ, of rank 0's first step."""
    from analysis.ledger import ledger

    rows = ledger(run).filter(pl.col("rank") == 0)
    rows = rows.filter(pl.col("step") == rows["step"].min(), (pl.col("psi") != 0) | (pl.col("term") == "unexplained"))
    psi: dict[str, float] = dict(rows.select("term", "psi").iter_rows())
    theory, measured, left = psi.pop("theory"), psi.pop("measured"), psi.pop("unexplained")
    psi.pop("emulated by the backend", None)
    named = ", ".join(f"{value:+.3f}Ψ {term}" for term, value in psi.items())
    return f"`{name}`: {measured:.3f}Ψ = {theory:g}Ψ{' ' + named if named else ''}; unexplained {left:g}"


def _planned(strategy: str, model: str, ranks: int) -> str:
    from tracekit.plan import plan
    from tracekit.plan.build import manifest, model_parameters
    from tracekit.plan.summary import totals

    made = manifest(strategy, model_parameters(_sizes()[model]), mesh={"dp_shard": ranks})
    sent = totals(plan(made))["passes_numel"]
    return f"planned and proved, {model} on {ranks}: {sent / made.psi:.4f}Ψ"


def _gathered(model: str, ranks: int) -> str:
    from tracekit.plan import plan
    from tracekit.plan.build import manifest, model_parameters

    made = manifest("zero2-fsdp2", model_parameters(_sizes()[model]), mesh={"dp_shard": ranks})
    once = plan(made).filter(pl.col("kind") == "all_gather")["out_numel"].sum()
    return f"planned and proved, {model} on {ranks}: one gather of all units is {once / made.psi:.5f}Ψ"


def _micro_batches(run: Run) -> str:
    number = run.manifest.micro_batches if run.manifest else 1
    return "1 micro-batch" if number == 1 else f"{number} micro-batches"


def _steps(run: Run) -> int:
    return run.steps.filter("complete").height or 1


def _torch(run: Run) -> str | None:
    return run.manifest.versions.get("torch") if run.manifest else None


def _sizes() -> dict[str, Any]:
    from runners.sizes import SIZES

    return SIZES


def _opener(folder: Path) -> Callable[[str], Run]:
    """Opens runs of the folder by name, once each; records what is not there."""
    import tracekit
    from runners import launch

    known: dict[str, Run] = {}

    def opened(name: str) -> Run:
        if name not in known:
            strategy, args, ranks = RUNS[name]
            if not (folder / name / "manifest.json").is_file():
                print(f"recording {name}", file=sys.stderr)
                options = ["--model", "nano", "--seq-len", "16", "--active", "2", *args]
                launch.run(strategy, folder / name, num_ranks=ranks, args=options, on_line=lambda _: None)
            known[name] = tracekit.open(folder / name)
        return known[name]

    return opened


def _proofs() -> Iterator[str]:
    for strategy, model, mesh, args in PROOFS:
        command = [sys.executable, "-m", "tracekit", "plan", "--strategy", strategy, "--model", model, "--mesh", mesh]
        done = subprocess.run(
            [*command, "--prove", "--seq-len", "16", *args], capture_output=True, text=True, check=False
        )
        said = next((line for line in reversed(done.stderr.splitlines()) if line.strip()), "nothing was said")
        print(f"{strategy} {model} {mesh}: {said}", file=sys.stderr)
        yield f"`{strategy} {' '.join((model, mesh, *args))}`: {said}"


def main(args: Sequence[str] | None = None) -> int:
    """Writes the page; 0 when done."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("out/claims"), help="folder of the runs, filled as needed")
    parser.add_argument("--out", type=Path, default=Path("docs/claims.md"))
    parser.add_argument("--no-prove", action="store_true", help="leave the proofs out")
    given = parser.parse_args(args)
    text = page(claims(_opener(given.runs)), [] if given.no_prove else list(_proofs()))
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
