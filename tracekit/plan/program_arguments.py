"""The options of the training program that make the run of a manifest, planned or recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracekit.strategies import find

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.manifest import Manifest

# Options that the training programs switch on by themselves.
_ON_BY_DEFAULT = ("sync_every_micro_batch", "all_reduce_every_micro_batch", "broadcast_buffers")
# What a recorder finds and no option sets: it follows from the strategy, the model or another option.
_NO_OPTION = frozenset(
    {
        *("model", "vocab", "reshard", "reshard_after_backward", "ignored_parameters", "stage", "optimizer"),
        *("padding_numel", "overlap_comm", "allgather_bucket_size", "stage3_max_live_parameters"),
        *(
            "check_grad_overflow",
            "compute_grad_norm",
            "sharding_strategy",
            "use_orig_params",
            "gradient_as_bucket_view",
        ),
        *("reduce_scatter", "use_multi_rank_bucket_allreduce"),
        *("find_unused_parameters", "static_graph", "comm_hook", "limit_all_gathers"),
    }
)
_RENAMED = {
    "tied": "tie_embeddings",
    "reduce_bucket_size": "bucket_numel",
    "stage3_prefetch_bucket_size": "prefetch_numel",
    "stage3_param_persistence_threshold": "persistence_numel",
    "stage3_model_persistence_threshold": "model_persistence_numel",
    "stage3_max_reuse_distance": "max_reuse_numel",
}
# Larger is DeepSpeed's word for no limit.
_NO_LIMIT = 2**53
# DeepSpeed's `reduce_scatter` and `use_multi_rank_bucket_allreduce` by the program's word for both.
_GRAD_PATHS: dict[tuple[Any, Any], str] = {
    (True, True): "bucket-all-reduce",
    (True, False): "reduce-to-owner",
    (False, True): "plain-all-reduce",
}


def arguments(manifest: Manifest, model: str) -> list[str]:
    """Options of the training program for this manifest; `model` is the size of its decoder."""
    precision = manifest.precision
    args = ["--model", model, "--micro-batches", str(manifest.micro_batches)]
    for flag, value in (("--param-dtype", precision.param_dtype), ("--reduce-dtype", precision.reduce_dtype)):
        args += [flag, value] if value is not None else []
    args += ["--backend", manifest.backend] if manifest.backend in ("gloo", "nccl") else []
    return [*args, *_units(manifest), *_axes(manifest), *_grad_path(manifest), *_options(manifest.options)]


def _units(manifest: Manifest) -> Iterator[str]:
    # Stage 2 keeps every unit gathered by itself, and its program has no such option.
    for unit in manifest.units if find(manifest.strategy).stage == 3 else ():
        setting = unit.reshard_after_forward
        if setting is not None:
            yield from ("--reshard", f"{unit.name or 'root'}={_word(setting)}")


def _axes(manifest: Manifest) -> Iterator[str]:
    """The axis that the program cannot make of the number of ranks alone."""
    for axis in manifest.mesh if len(find(manifest.strategy).axes) > 1 else ():
        if axis.axis != "dp_shard":
            yield from (f"--{axis.axis.replace('_', '-')}", str(axis.size))


def _grad_path(manifest: Manifest) -> Iterator[str]:
    """Only the program of stage 2 has a choice."""
    options = manifest.options
    path = options.get("reduce_scatter"), options.get("use_multi_rank_bucket_allreduce")
    if manifest.strategy == "zero2" and path in _GRAD_PATHS:
        yield from ("--grad-path", _GRAD_PATHS[path])


def _options(options: dict[str, Any]) -> Iterator[str]:
    for name, value in options.items():
        if name in _NO_OPTION or value is None:
            continue
        if isinstance(value, int) and value >= _NO_LIMIT:
            continue
        flag = _RENAMED.get(name, name).replace("_", "-")
        if isinstance(value, bool):
            if value is not (name in _ON_BY_DEFAULT):
                yield f"--{'' if value else 'no-'}{flag}"
        else:
            yield from (f"--{flag}", str(value))


def _word(setting: bool | int) -> str:
    return str(setting).lower() if isinstance(setting, bool) else str(setting)
