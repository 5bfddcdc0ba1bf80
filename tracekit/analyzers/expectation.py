"""Expected volume of a run: the manifest's plan or, for a foreign trace, what a user says of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from tracekit.collective_kinds import PASSES
from tracekit.errors import InputError
from tracekit.plan import PLAN_SCHEMA, TERMS_SCHEMA, plan, terms_by_place
from tracekit.strategies import STRATEGIES, find
from tracekit.theory import strategy_stage, zero_communication_volume

if TYPE_CHECKING:
    from tracekit.manifest import Manifest
    from tracekit.model.run import Run

# What a backend runs for a collective that it does not have, and how much oftener the payload crosses then.
EMULATES = {"gloo": {"reduce_scatter": 1}}
_BEYOND = "planned beyond the theory"


class Expectation(NamedTuple):
    """Terms by place (TERMS_SCHEMA) and what the backend adds to them; `missing` says which input would tell more.

    `calls` is the plan (PLAN_SCHEMA), empty where there is none, and `manifest` what it is made of, if of one.
    `complete`: there is something to compare with.
    """

    terms: pl.DataFrame
    calls: pl.DataFrame
    emulated: pl.DataFrame
    psi: int | None
    complete: bool
    missing: list[str]
    manifest: Manifest | None = None


def expectation(
    run: Run,
    *,
    strategy: str | None = None,
    params: int | Manifest | None = None,
    planned: Path | None = None,
) -> Expectation:
    """The manifest's plan, or, for a foreign trace, what the options say.

    `params`: Ψ alone, which gives the theory, or a manifest with shapes and mesh, which gives a plan. `planned`: a file
    that `tracekit plan --format json` wrote.

    Raises:
        InputError: the plan's file cannot be read. UsageError: the strategy is unknown.
    """
    if strategy is not None:
        find(strategy)
    if planned is not None:
        return _of_plan(read_plan(planned), run, strategy, params if isinstance(params, int) else None)
    manifest = run.manifest if params is None or isinstance(params, int) else params
    if manifest is not None and (strategy is None or strategy in STRATEGIES):
        return _of_manifest(manifest, strategy)
    psi = params if isinstance(params, int) else run.psi
    return _of_theory(strategy, psi)


def read_plan(path: Path) -> pl.DataFrame:
    """Expected collectives that `tracekit plan --format json -o FILE` wrote, with PLAN_SCHEMA.

    Raises:
        InputError: the file cannot be read or holds something else.
    """
    import msgspec

    try:
        rows = msgspec.json.decode(path.read_bytes())["rows"]
        calls = pl.DataFrame(rows, schema=PLAN_SCHEMA, orient="row", strict=True)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError, pl.exceptions.PolarsError) as error:
        raise _no_plan(path, " ".join(str(error).split())[:120]) from None
    unknown = calls.select("payload_numel", "passes").null_count().sum_horizontal()
    if sum(unknown) or not set(calls["kind"]) <= set(PASSES):
        raise _no_plan(path, "calls without kind, elements or passes")
    return calls


def _no_plan(path: Path, problem: str) -> InputError:
    return InputError(f"{path}: no plan ({problem}); write one with tracekit plan --format json -o FILE")


def _of_manifest(manifest: Manifest, strategy: str | None) -> Expectation:
    from msgspec.structs import replace

    named = manifest if strategy is None else replace(manifest, strategy=strategy)
    expected, calls = terms_by_place(named), plan(named)
    if expected.is_empty():
        return _of_theory(named.strategy, named.psi)
    emulated = _emulated(calls, manifest.backend)
    return Expectation(expected, calls, emulated, named.psi, complete=True, missing=[], manifest=named)


def _of_plan(frame: pl.DataFrame, run: Run, strategy: str | None, psi: int | None) -> Expectation:
    """A plan without its terms: the theory where it is known, and one term for the rest."""
    stage = strategy_stage(strategy) if strategy else None
    psi = psi or run.psi
    numel = pl.col("payload_numel") * pl.col("passes")
    calls = frame.select(
        pl.lit(_BEYOND).alias("term"),
        numel.cast(pl.Int64).alias("numel"),
        *TERMS_SCHEMA.names()[2:],
    )
    rows = [calls]
    if stage is not None and psi is not None:
        theory = zero_communication_volume(psi, stage)
        rows = [_single("theory", theory), _single(_BEYOND, -theory), calls]
    terms = pl.concat([row.select(TERMS_SCHEMA.names()) for row in rows], how="vertical_relaxed")
    backend = run.manifest.backend if run.manifest else None
    missing = [] if stage is not None and psi else ["the theory: give --strategy and --params"]
    return Expectation(terms, frame, _emulated(frame, backend), psi, complete=True, missing=missing)


def _of_theory(strategy: str | None, psi: int | None) -> Expectation:
    stage = strategy_stage(strategy) if strategy else None
    calls = pl.DataFrame(schema=PLAN_SCHEMA)
    emulated = _emulated(calls, None)
    if stage is None or psi is None:
        wanted = [option for option, known in (("--strategy", stage), ("--params", psi)) if known is None]
        missing = [f"what the run should send: give {' and '.join(wanted)}, or --plan"]
        return Expectation(pl.DataFrame(schema=TERMS_SCHEMA), calls, emulated, psi, complete=False, missing=missing)
    terms = _single("theory", zero_communication_volume(psi, stage), num_bytes=None)
    missing = ["the plan: give --params a file with parameter shapes, or --plan"]
    return Expectation(terms, calls, emulated, psi, complete=True, missing=missing)


def _single(term: str, numel: int, num_bytes: int | None = 0) -> pl.DataFrame:
    return pl.DataFrame([{"term": term, "numel": numel, "payload_bytes": num_bytes}], schema=TERMS_SCHEMA)


def _emulated(frame: pl.DataFrame, backend: str | None) -> pl.DataFrame:
    """Elements that cross again because the backend has not got a collective, by place."""
    extra = pl.col("kind").replace_strict(EMULATES.get(backend or "", {}), default=0, return_dtype=pl.Int64)
    return frame.select(
        (pl.col("payload_numel") * extra).cast(pl.Int64).alias("numel"), *TERMS_SCHEMA.names()[3:]
    ).filter(pl.col("numel") > 0)
