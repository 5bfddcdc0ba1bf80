"""`tracekit predict`: the closed forms for any size, group and stage."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated

import typer

from tracekit import theory
from tracekit.cli.options import ForceOption, FormatOption, OutputOption, count, integers, names
from tracekit.dtypes import ITEM_SIZES
from tracekit.errors import UsageError

if TYPE_CHECKING:
    import polars as pl

_FLOAT_SIZES = {name: size for name, size in ITEM_SIZES.items() if name.startswith(("float", "bfloat"))}
_LARGEST_GROUP = 10**9


def add_to(app: typer.Typer) -> None:
    """Adds the command to the app."""
    app.command(
        "predict",
        epilog="Examples: [bold]tracekit predict --params 7e9 --dp 1,8,64[/]  ·  "
        "[bold]tracekit predict --params 70B --dp 64 --stage 3 --dtype bfloat16 --reduce-dtype float32[/]",
    )(command)


def command(
    params: Annotated[str, typer.Option(help="Ψ, the number of parameters: 7e9, 7B or digits.", show_default=False)],
    dp: Annotated[str, typer.Option(help="Sizes of the data-parallel group.")] = "1,8,64",
    stage: Annotated[str, typer.Option(help="ZeRO stages; 0 is DDP, 3 is FSDP.")] = "0,1,2,3",
    k: Annotated[int, typer.Option("--k", help="Bytes of optimizer state a parameter.")] = 12,
    fp32_grad_accum: Annotated[bool, typer.Option("--fp32-grad-accum", help="Accumulate gradients in fp32.")] = False,
    dtype: Annotated[str, typer.Option(help="Types that parameters are sent in, comma-separated.")] = "bfloat16",
    reduce_dtype: Annotated[
        str | None, typer.Option(help="Type that gradients are sent in, if another.", show_default=False)
    ] = None,
    form: FormatOption = None,
    output: OutputOption = None,
    force: ForceOption = False,
) -> None:
    """Print the memory a device holds and the volume a step sends, in closed form, for ZeRO stages 0 to 3.

    Volumes are multiples of Ψ; wire is what one rank of a ring of N really sends, (N-1)/N of it.
    """
    from tracekit.cli import output as out

    num_params = count(params, "--params")
    frame = predict(
        num_params,
        [_checked_group(size, dp) for size in integers(dp, "--dp")],
        [_checked_stage(number) for number in integers(stage, "--stage")],
        k=_checked_multiplier(k),
        fp32_grad_accum=fp32_grad_accum,
        dtypes=_checked_dtypes(names(dtype), "--dtype"),
        reduce_dtype=_checked_dtypes([reduce_dtype], "--reduce-dtype")[0] if reduce_dtype else None,
    )
    about = {"num_params": num_params, "k": k, "fp32_grad_accum": fp32_grad_accum}
    accumulation = ", gradients accumulated in fp32" if fp32_grad_accum else ""
    title = f"Ψ = {num_params:,} parameters, optimizer state {k} bytes a parameter{accumulation}"
    gigabytes = (10**9, "GB")
    units: dict[str, tuple[int, str]] = dict.fromkeys(("memory_bytes", "payload_bytes", "wire_bytes"), gigabytes)
    out.write(
        frame,
        table="predict",
        about=about,
        chosen=form,
        output=output,
        force=force,
        title=title,
        units=units if num_params >= 10**7 else None,
        keep=("dp", "stage", "psi"),
    )


def predict(
    num_params: int,
    groups: list[int],
    stages: list[int],
    *,
    k: int,
    fp32_grad_accum: bool,
    dtypes: list[str],
    reduce_dtype: str | None,
) -> pl.DataFrame:
    """One row a group size, stage and dtype: memory_bytes, volume (psi, numel, payload_bytes) and its wire form.

    Where a share does not divide evenly it is rounded up: a device holds and sends whole bytes and elements.
    """
    import polars as pl

    rows = [
        {
            "dp": dp,
            "stage": stage,
            "memory_bytes": math.ceil(theory.zero_memory_per_gpu(num_params, dp, stage, k, fp32_grad_accum)),
            "psi": theory.stage_passes(stage),
            "volume_numel": theory.zero_communication_volume(num_params, stage),
            "wire_numel": math.ceil(theory.wire_elements(num_params, dp, stage)),
            "dtype": dtype,
            "reduce_dtype": reduce_dtype or dtype,
            **_bytes(num_params, dp, stage, dtype, reduce_dtype or dtype),
        }
        for dp in groups
        for stage in stages
        for dtype in dtypes
    ]
    text = {"dtype", "reduce_dtype"}
    return pl.DataFrame(rows, schema={name: pl.String if name in text else pl.Int64 for name in rows[0]})


def _bytes(num_params: int, dp: int, stage: int, dtype: str, reduce_dtype: str) -> dict[str, int]:
    """Gathers carry parameters, everything else carries gradients."""
    payload = sum(
        passes * num_params * _FLOAT_SIZES[dtype if kind == "all_gather" else reduce_dtype]
        for kind, passes in theory.passes_by_kind(stage).items()
    )
    return {"payload_bytes": payload, "wire_bytes": math.ceil(payload * theory.ring_share(dp))}


def _checked_group(size: int, text: str) -> int:
    if not 0 < size <= _LARGEST_GROUP:
        raise UsageError(f"--dp {text} must hold sizes from 1 to {_LARGEST_GROUP:,}")
    return size


def _checked_stage(stage: int) -> int:
    if stage not in theory.STAGES:
        raise UsageError(f"--stage {stage} is unknown: the stages are 0 (DDP), 1, 2 and 3 (FSDP)")
    return stage


def _checked_multiplier(k: int) -> int:
    if not 0 <= k <= 1000:
        raise UsageError(f"--k {k} must be from 0 to 1000 bytes a parameter (Adam in mixed precision: 12)")
    return k


def _checked_dtypes(given: list[str], option: str) -> list[str]:
    unknown = next((name for name in given if name not in _FLOAT_SIZES), None)
    if unknown is not None or not given:
        problem = f"{option} is empty" if unknown is None else f"{option} {unknown} is unknown"
        raise UsageError(f"{problem}: choose from {', '.join(_FLOAT_SIZES)}")
    return given
