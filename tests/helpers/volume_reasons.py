"""What must be so where a sentence gives a reason for a volume: a check of each clause on the facts of a run."""

from __future__ import annotations

from collections import Counter


def root_once(facts):
    """The root is there, is gathered for forward, and is not gathered in backward."""
    flat = [unit for unit in facts.manifest.units if unit.flat is not None]
    forward, backward = (facts.some("all_gather", (phase,), layer="") for phase in ("forward", "backward"))
    return any(p.layer == "" for p in facts.manifest.parameters) and bool(forward or flat) and not backward


def odd(facts):
    """Some parameter's first dimension, or size, is no multiple of the ranks that share it."""
    ranks = facts.axis("dp_shard") if facts.manifest.mesh else facts.manifest.world_size
    shared = [*(p.shape for p in facts.manifest.parameters), *([p.numel] for p in facts.manifest.parameters)]
    return any(shape and shape[0] % ranks for shape in shared) or any(not p.shape for p in facts.manifest.parameters)


CLAUSES = {
    "what forward gathered is kept for backward": lambda f: (
        f.a_step(f.some("all_gather")) < 2 * f.psi * f.manifest.micro_batches
    ),
    "tied parameters are gathered at each of their uses": lambda f: any(p.tied_to for p in f.manifest.parameters),
    "some parameters are gathered more than twice": lambda f: any(
        n > 2 * f.manifest.micro_batches
        for n in Counter((r["rank"], r["step"], r["layer"]) for r in f.some("all_gather")).values()
    ),
    "the other tensor-parallel ranks hold part of the parameters": lambda f: f.axis("tp") > 1,
    "tensor parallelism all-reduces activations": lambda f: f.some("all_reduce", ("forward", "backward"), "tp"),
    "recomputed activations are all-reduced again": lambda f: (
        f.manifest.options.get("activation_checkpointing") and f.some("all_reduce", ("backward",), "tp")
    ),
    "the replicas all-reduce gradients": lambda f: f.some("all_reduce", ("backward",), "dp_replicate"),
    "buffers are broadcast before forward": lambda f: f.manifest.buffers and f.some("broadcast"),
    "ignored parameters are not sent": lambda f: f.manifest.options.get("ignored_parameters"),
    "the root unit is not gathered again": root_once,
    "units kept gathered are not gathered again": lambda f: f.a_step(f.some("all_gather")) < 2 * f.psi,
    "units before all that is trained have no backward to be gathered for": lambda f: any(
        not p.requires_grad for p in f.manifest.parameters
    ),
    "frozen parameters are not reduced": lambda f: any(not p.requires_grad for p in f.manifest.parameters),
    "frozen parameters are not sent": lambda f: any(not p.requires_grad for p in f.manifest.parameters),
    "some parameters got no gradient": lambda f: (
        len(f.manifest.grad_order or ()) < sum(p.requires_grad for p in f.manifest.parameters)
    ),
    "dim 0 is padded to a multiple of the ranks": odd,
    "the flat parameters are padded": lambda f: (
        any(u.flat and u.flat.padding_numel for u in f.manifest.units) or odd(f)
    ),
    "mixed types are gathered as bytes": lambda f: any(r["dtype"] in ("uint8", "int8") for r in f.some("all_gather")),
    "every further micro-batch communicates anew": lambda f: f.manifest.micro_batches > 1,
    "it all-reduces gradients (2Ψ) where the ZeRO paper reduce-scatters them (Ψ)": lambda f: f.some(
        "all_reduce", ("backward",)
    ),
    "it looks for unused parameters": lambda f: any(r["dtype"] == "int32" for r in f.some("all_reduce")),
    "some units did not run": lambda f: f.some("all_gather"),
    "it checks for overflow": lambda f: any(r["kind"] == "all_reduce" and r["payload_numel"] == 1 for r in f.beside()),
    "it sums the gradient norm": lambda f: any(r["kind"] == "all_reduce" for r in f.beside()),
    "a group of one rank has nobody to send to": lambda f: f.axis("dp_shard") == 1 or f.run.world_size == 1,
    "a group of one rank has nothing to gather": lambda f: f.axis("dp_shard") == 1,
    "the loop sends collectives of its own": lambda f: f.beside(),
}  # fmt: skip
