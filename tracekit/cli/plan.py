"""`tracekit plan`: what a strategy must send and hold, for any number of ranks, without a device."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tracekit.cli.options import ForceOption, Format, FormatOption, OutputOption, pick_format
from tracekit.errors import UsageError
from tracekit.extras import require
from tracekit.strategies import STRATEGIES, find

if TYPE_CHECKING:
    from collections.abc import Mapping

    import polars as pl

    from tracekit.manifest import Manifest, Precision

_ROWS_FOR_PEOPLE = 100


class Table(StrEnum):
    """Parts of a plan that are printed."""

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
    strategy: Annotated[
        str, typer.Option(help=f"How the model is trained: {', '.join(STRATEGIES)}.", show_default=False)
    ],
    mesh: Annotated[
        list[str],
        typer.Option(
            help="Ranks by axis, as in dp_replicate=2,dp_shard=8 or dp_shard=4,tp=2; 8 for the only axis.",
            show_default=False,
        ),
    ],
    model: Annotated[str | None, typer.Option(help="A size of the runners' decoder.", show_default=False)] = None,
    params_from: Annotated[
        Path | None,
        typer.Option(help="Parameters of a manifest or a safetensors file, in place of --model.", show_default=False),
    ] = None,
    micro_batches: Annotated[int, typer.Option(min=1, max=100_000, help="Micro-batches a step.")] = 1,
    param_dtype: Annotated[
        str | None, typer.Option(help="Type to compute and gather in; default: bfloat16.", show_default=False)
    ] = None,
    reduce_dtype: Annotated[
        str | None,
        typer.Option(help="Type to reduce in; default: float32, with DeepSpeed the one above.", show_default=False),
    ] = None,
    reshard: Annotated[
        str, typer.Option("--reshard-after-forward", metavar="default|true|false|N", help="For FSDP2 and HSDP.")
    ] = "default",
    batch_size: Annotated[int, typer.Option(min=1, help="Sequences a rank and micro-batch, for tp.")] = 4,
    seq_len: Annotated[int, typer.Option(min=1, help="Tokens of a sequence, for tp.")] = 128,
    option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="Any other option that the plan depends on, as a manifest has it.",
            show_default=False,
        ),
    ] = None,
    table: Annotated[Table, typer.Option(help="What to print.")] = Table.COLLECTIVES,
    fit: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="What fits in so much memory, as 80GB or 79GiB: the largest batch, and what to change.",
            show_default=False,
        ),
    ] = None,
    prove: Annotated[bool, typer.Option("--prove", help="Run torch's own code and compare every call.")] = False,
    form: FormatOption = None,
    output: OutputOption = None,
    force: ForceOption = False,
) -> None:
    """Print every collective that a strategy must issue in a step, what they add up to, or what a rank holds.

    Nothing is trained and no device is needed; --prove needs torch, but no GPU.
    """
    from tracekit.cli import output as out
    from tracekit.plan import build, options
    from tracekit.plan import plan as expected
    from tracekit.plan import plan_totals as summary

    find(strategy)
    given = options.read(option or [])
    if not prove:
        # The training program knows more options than the plan depends on, and refuses what it does not know.
        options.check_names(strategy, given)
    options.check_values(given)
    manifest = _manifest(
        strategy,
        build.mesh_of(mesh, strategy),
        model,
        params_from,
        _precision(strategy, param_dtype, reduce_dtype),
        micro_batches=micro_batches,
        reshard=_reshard(reshard),
        options={"batch_size": batch_size, "seq_len": seq_len, **given},
    )
    calls = expected(manifest)
    if prove:
        _prove(manifest, calls, model)
    totals = summary.totals(calls)
    multiple = totals["passes_numel"] / manifest.psi if manifest.psi else 0
    if fit is not None:
        frame, name, title = _fit(manifest, model, fit)
    else:
        frame, name = _table(table, manifest, calls, model), table.value
        title = (
            f"{strategy}, Ψ = {manifest.psi:,}: {totals['num_collectives']:,} collectives a step, "
            f"{totals['passes_numel']:,} elements ({multiple:.4f}Ψ), payload {totals['payload_bytes']:,} bytes, "
            f"on the wire {totals['wire_bytes']:,} bytes a rank"
        )
    about = {"strategy": strategy, "mesh": {axis.axis: axis.size for axis in manifest.mesh}, "psi": manifest.psi}
    shown = frame.head(_ROWS_FOR_PEOPLE) if pick_format(form, output) is Format.TABLE else frame
    cut = f"; the first {shown.height} of {frame.height:,} rows" if shown.height < frame.height else ""
    out.write(
        shown,
        table=f"plan-{name}",
        about={**about, "totals": totals},
        chosen=form,
        output=output,
        force=force,
        runs=[] if params_from is None else [params_from],
        title=f"{title}{cut}",
    )


def _table(table: Table, manifest: Manifest, calls: pl.DataFrame, model: str | None) -> pl.DataFrame:
    from tracekit import plan
    from tracekit.plan import footprint
    from tracekit.plan import plan_totals as summary

    if table is Table.MEMORY:
        if footprint.can_run(manifest, model):
            require("record", "--table memory")
        return footprint.planned(manifest, model)
    if table is Table.VOLUME:
        return summary.volume(calls, manifest.psi)
    return plan.terms(manifest) if table is Table.TERMS else calls


def _fit(manifest: Manifest, model: str | None, text: str) -> tuple[pl.DataFrame, str, str]:
    """What fits in that much memory, the name of that table, and the answer in a sentence."""
    from tracekit.cli.console import progress
    from tracekit.plan.footprint import fitting
    from tracekit.units import size

    if model is None:
        raise UsageError("--fit runs a step of a model: give --model")
    capacity = fitting.parse_size(text)
    require("record", "--fit")
    with progress("running steps without training") as tell:
        table = fitting.fitting(manifest, model, capacity, tell)
    asked = table.row(0, named=True)
    says = {"yes": "fits", "no": "does not fit", "maybe": "may or may not fit"}[asked["fits"]]
    title = (
        f"{manifest.strategy}, batch {asked['batch_size']}: reserves {size(asked['reserved_bytes'])} "
        f"({size(asked['low_bytes'])} to {size(asked['high_bytes'])}) and {says} in {size(capacity)}"
    )
    change = fitting.first_change(table)
    if asked["fits"] != "yes":
        title += "; nothing that was tried fits" if change is None else f"; change first: {_said(change, table)}"
    return table, "fit", title


def _said(change: str, table: pl.DataFrame) -> str:
    row = table.filter(edit=change).row(-1, named=True)
    return f"{change} {row['batch_size']}" if change == "largest batch" else change


def _manifest(
    strategy: str,
    mesh: Mapping[str, int],
    model: str | None,
    params_from: Path | None,
    precision: Precision,
    **more: Any,
) -> Manifest:
    """The manifest of the run that is asked for; `more` are arguments of `build.manifest`.

    Raises:
        UsageError: the model is unknown, or not exactly one source of parameters is given.
    """
    from msgspec.structs import replace

    from tracekit.plan import build
    from tracekit.reference_models import find_size

    if (model is None) == (params_from is None):
        raise UsageError("give either --model or --params-from, so that the parameters are known")
    if params_from is None:
        return build.of_model(strategy, find_size(model or ""), mesh=mesh, precision=precision, **more)
    stored = precision.storage_dtype or "float32"
    parameters = [replace(found, dtype=stored) for found in build.parameters_from(params_from)]
    return build.manifest(strategy, parameters, mesh=mesh, precision=precision, **more)


def _precision(strategy: str, param_dtype: str | None, reduce_dtype: str | None) -> Precision:
    """The types that are asked for, else the strategy's own. Raises UsageError for a type without whole bytes."""
    from tracekit.dtypes import ITEM_SIZES
    from tracekit.plan import build

    for name, value in (("--param-dtype", param_dtype), ("--reduce-dtype", reduce_dtype)):
        if value is not None and value not in ITEM_SIZES:
            raise UsageError(f"{name} {value} is unknown: choose from {', '.join(ITEM_SIZES)}")
    return build.precision_of(strategy, param_dtype, reduce_dtype)


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
