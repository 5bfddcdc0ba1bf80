"""`tracekit plan`: what a strategy must send and hold, for any number of ranks, without a device."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tracekit.cli.options import ForceOption, Format, FormatOption, OutputOption, pick_format
from tracekit.errors import UsageError
from tracekit.extras import require
from tracekit.strategies import find

if TYPE_CHECKING:
    import polars as pl

    from tracekit.manifest import Manifest, Parameter

_ROWS_FOR_PEOPLE = 100
_MIB = 1 << 20


class Table(StrEnum):
    """What is printed of a plan."""

    COLLECTIVES = "collectives"
    VOLUME = "volume"
    TERMS = "terms"
    MEMORY = "memory"


def add_to(app: typer.Typer) -> None:
    """Adds the command to the app."""
    app.command(
        "plan",
        epilog="Examples: [bold]tracekit plan --strategy fsdp2 --model 7b --mesh dp_shard=64[/]  ·  "
        "[bold]tracekit plan --strategy hsdp --model 70b --mesh dp_replicate=8,dp_shard=64 --table volume[/]  ·  "
        "[bold]tracekit plan --strategy fsdp2 --model 7b --mesh dp_shard=512 --prove[/]",
    )(command)


def command(
    strategy: Annotated[str, typer.Option(help="How the model is trained; as in record.", show_default=False)],
    mesh: Annotated[list[str], typer.Option(help="Ranks by axis: dp_replicate, dp_shard, tp.", show_default=False)],
    model: Annotated[str | None, typer.Option(help="A size of the runners' decoder.", show_default=False)] = None,
    params_from: Annotated[
        Path | None,
        typer.Option(help="Parameters of a manifest or a safetensors file, in place of --model.", show_default=False),
    ] = None,
    micro_batches: Annotated[int, typer.Option(min=1, max=100_000, help="Micro-batches a step.")] = 1,
    param_dtype: Annotated[str, typer.Option(help="Type to compute and gather in.")] = "bfloat16",
    reduce_dtype: Annotated[
        str | None,
        typer.Option(help="Type to reduce in: float32, with DeepSpeed that of parameters.", show_default=False),
    ] = None,
    reshard: Annotated[
        str, typer.Option("--reshard-after-forward", metavar="default|true|false|N", help="For FSDP2 and HSDP.")
    ] = "default",
    batch_size: Annotated[int, typer.Option(min=1, help="Sequences a rank and micro-batch, for tp.")] = 4,
    seq_len: Annotated[int, typer.Option(min=1, help="Tokens of a sequence, for tp.")] = 128,
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Any other option, as a manifest has it.", show_default=False),
    ] = None,
    table: Annotated[Table, typer.Option(help="What to print.")] = Table.COLLECTIVES,
    prove: Annotated[bool, typer.Option("--prove", help="Run torch's own code and compare every call.")] = False,
    form: FormatOption = None,
    output: OutputOption = None,
    force: ForceOption = False,
) -> None:
    """Print every collective that a strategy must issue in a step, what they add up to, or what a rank holds.

    Nothing is trained and no device is needed; --prove needs torch, but no GPU.
    """
    from tracekit.cli import output as out
    from tracekit.plan import plan as expected
    from tracekit.plan import plan_totals as summary

    manifest = _manifest(strategy, mesh, model, params_from, micro_batches, param_dtype, reduce_dtype, reshard)
    manifest = _with_options(manifest, {"batch_size": batch_size, "seq_len": seq_len, **_options(option or [])})
    calls = expected(manifest)
    if prove:
        _prove(manifest, calls, model)
    frame = _table(table, manifest, calls)
    totals = summary.totals(calls)
    about = {"strategy": strategy, "mesh": {axis.axis: axis.size for axis in manifest.mesh}, "psi": manifest.psi}
    shown = frame.head(_ROWS_FOR_PEOPLE) if pick_format(form, output) is Format.TABLE else frame
    cut = f"; the first {shown.height} of {frame.height:,} rows" if shown.height < frame.height else ""
    multiple = totals["passes_numel"] / manifest.psi if manifest.psi else 0
    out.write(
        shown,
        table=f"plan-{table.value}",
        about={**about, "totals": totals},
        chosen=form,
        output=output,
        force=force,
        title=f"{strategy}, Ψ = {manifest.psi:,}: {totals['num_collectives']:,} collectives a step, "
        f"{totals['passes_numel']:,} elements ({multiple:.4f}Ψ), payload {totals['payload_bytes']:,} bytes, "
        f"on the wire {totals['wire_bytes']:,} bytes a rank{cut}",
    )


def _table(table: Table, manifest: Manifest, calls: pl.DataFrame) -> pl.DataFrame:
    from tracekit import plan
    from tracekit.plan import plan_totals as summary

    if table is Table.VOLUME:
        return summary.volume(calls, manifest.psi)
    if table is Table.TERMS:
        return plan.terms(manifest)
    return plan.memory(manifest) if table is Table.MEMORY else calls


def _manifest(
    strategy: str,
    mesh: list[str],
    model: str | None,
    params_from: Path | None,
    micro_batches: int,
    param_dtype: str,
    reduce_dtype: str | None,
    reshard: str,
) -> Manifest:
    """The manifest of the run that is asked for.

    Raises:
        UsageError: an option is unknown, or not exactly one source of parameters is given.
    """
    from tracekit.dtypes import ITEM_SIZES
    from tracekit.manifest import Precision
    from tracekit.plan import build

    find(strategy)
    for name, value in (("--param-dtype", param_dtype), ("--reduce-dtype", reduce_dtype)):
        if value is not None and value not in ITEM_SIZES:
            raise UsageError(f"{name} {value} is unknown: choose from {', '.join(ITEM_SIZES)}")
    sharded = build.mesh_of(mesh)
    deepspeed = strategy in ("zero1-deepspeed", "zero2", "zero3-deepspeed")
    reduced = reduce_dtype or (param_dtype if deepspeed else "float32")
    stored = param_dtype if deepspeed else "float32"
    return build.manifest(
        strategy,
        _parameters(model, params_from, stored),
        mesh=sharded,
        micro_batches=micro_batches,
        precision=Precision(param_dtype, reduced, None, stored),
        reshard=_reshard(reshard),
        options=_defaults(strategy, model) if model else {},
        buffers=build.model_buffers(_size(model)) if model else [],
    )


def _parameters(model: str | None, params_from: Path | None, stored: str) -> list[Parameter]:
    from msgspec.structs import replace

    from tracekit.plan import build

    if (model is None) == (params_from is None):
        raise UsageError("give either --model or --params-from, so that the parameters are known")
    if params_from is not None:
        return [replace(found, dtype=stored) for found in build.parameters_from(params_from)]
    return build.model_parameters(_size(model or ""), stored)


def _size(model: str) -> Any:
    from tracekit.reference_models import SIZES

    if model not in SIZES:
        raise UsageError(f"--model {model} is unknown: choose from {', '.join(SIZES)}")
    return SIZES[model]


def _defaults(strategy: str, model: str) -> dict[str, Any]:
    """Settings that the runners derive from the size of a model, such as buckets of a quarter of it."""
    size = _size(model)
    quarter = size.num_params() // 4
    bucket = min(quarter, 500_000_000)
    settings: dict[str, dict[str, Any]] = {
        "ddp": {"bucket_mb": min(size.num_params() / _MIB, 25.0)},
        "zero1-deepspeed": {"reduce_bucket_size": bucket},
        "zero2": {"reduce_bucket_size": bucket},
        "zero3-deepspeed": {
            "reduce_bucket_size": bucket,
            "stage3_prefetch_bucket_size": bucket,
            "stage3_param_persistence_threshold": min(100_000, size.dim + 1),
            "stage3_max_reuse_distance": 10**9 if size.num_params() > 10**9 else 0,
        },
    }
    settings["zero1"] = settings["ddp"]
    return settings.get(strategy, {})


def _options(given: list[str]) -> dict[str, Any]:
    """NAME=VALUE pairs; values are read as JSON where they are, else as text."""
    options: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError(f"--option {text} names no value: write NAME=VALUE, as in sync_every_micro_batch=false")
        try:
            options[name.replace("-", "_")] = json.loads(value)
        except ValueError:
            options[name.replace("-", "_")] = value
    return options


def _with_options(manifest: Manifest, options: dict[str, Any]) -> Manifest:
    from msgspec.structs import replace

    return replace(manifest, options={**manifest.options, **options})


def _reshard(text: str) -> bool | int | None:
    words: dict[str, bool | None] = {"default": None, "true": True, "false": False}
    if text in words:
        return words[text]
    if not text.isdecimal() or int(text) < 1:
        raise UsageError(f"--reshard-after-forward {text} is neither default, true, false nor a size of groups")
    return int(text)


def _prove(manifest: Manifest, calls: pl.DataFrame, model: str | None) -> None:
    """Says on stderr that torch agrees, or leaves with exit code 1 and the first differences.

    Raises:
        UsageError: there is no model to run, or torch is missing.
    """
    import sys

    if model is None:
        raise UsageError("--prove runs the runners' decoder: give --model")
    require("record", "--prove")
    from tracekit.plan.proof import differences, prove

    proved = prove(manifest, model)
    apart = differences(calls, proved)
    if apart.is_empty():
        print(f"torch's own code issues the same {proved.height:,} collectives, call by call", file=sys.stderr)
        return
    print(f"tracekit: torch's own code differs in {apart['place'].n_unique():,} calls:", file=sys.stderr)
    for row in apart.head(10).iter_rows(named=True):
        print(f"  {row}", file=sys.stderr)
    raise typer.Exit(1)
