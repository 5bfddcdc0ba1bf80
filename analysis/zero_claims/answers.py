"""Common claims about what ZeRO and FSDP send, each with its verdict and the numbers that it was made of."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl

from zero_claims import verdicts as verdict
from zero_claims.verdicts import Padded, Placed, Sent, Walk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tracekit.manifest import Manifest
    from tracekit.model.run import Run


class Claim(NamedTuple):
    """A claim, whether it holds, and the numbers."""

    says: str
    verdict: str
    evidence: list[str]


def claims(run: Callable[[str], Run]) -> list[Claim]:
    """Every claim, answered; `run` opens a run of RUNS by its name."""
    return [*_volumes(run), _accumulation(run), _padding(run), _mesh(run), *_graphs(run)]


def walk(run: Run, name: str) -> Walk:
    """The way from the closed form to the trace of rank 0's first step."""
    rows = run.table("ledger").filter(pl.col("rank") == 0)
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
    cases: list[Padded] = []
    for name in ("fsdp2", "fsdp2--odd"):
        opened = run(name)
        rows = opened.table("ledger").filter(pl.col("term") == "padding of dim 0")
        assert opened.manifest is not None
        divides = _divides(opened.manifest, opened.manifest.world_size)
        cases.append(Padded(name, int(rows["numel"].sum()) // steps_of(opened), divides))
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


def steps_of(run: Run) -> int:
    """Complete steps of all ranks, at least 1."""
    return run.steps.filter("complete").height or 1


def _sizes() -> dict[str, Any]:
    from tracekit.reference_models import SIZES

    return SIZES
