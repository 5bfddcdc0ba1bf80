"""DeepSpeed's engine: stage, buckets and types as it decided them, and what it holds outside model and optimizer."""

from __future__ import annotations

from typing import Any

import torch

from tracekit.record.frameworks.found import UNKNOWN, Found, Held, Precision, blocks
from tracekit.record.names import dtype_name

STRATEGIES = {1: "zero1-deepspeed", 2: "zero2", 3: "zero3-deepspeed"}
# Settings of the configuration's `zero_optimization` by the engine's method, for all stages and for each.
COMMON = {"reduce_bucket_size": "zero_reduce_bucket_size", "overlap_comm": "zero_overlap_comm"}
BY_STAGE = {
    1: {"allgather_bucket_size": "zero_allgather_bucket_size"},
    2: {"allgather_bucket_size": "zero_allgather_bucket_size"},
    3: {
        "stage3_prefetch_bucket_size": "zero_prefetch_bucket_size",
        "stage3_param_persistence_threshold": "zero_param_persistence_threshold",
        "stage3_model_persistence_threshold": "zero_model_persistence_threshold",
        "stage3_max_reuse_distance": "zero_max_reuse_distance",
        "stage3_max_live_parameters": "zero_max_live_parameters",
    },
}
MAX_INT = 2**53


def look(engine: Any, model: torch.nn.Module) -> Found:
    """The settings of an engine around `model`."""
    stage, size = int(engine.zero_optimization_stage()), int(engine.dp_world_size)
    param, reduce = _precision(engine)
    strategy, why = _strategy(engine, stage)
    return Found(
        strategy=strategy,
        framework="DeepSpeed",
        wrapped=f"a DeepSpeed engine of ZeRO stage {stage} holds the model over {size} ranks",
        why=why,
        units=blocks(model),
        mesh=[("dp_shard", size)],
        precision=Precision(param, reduce, None, param),
        options={"stage": stage} | _options(engine, stage),
        micro_batches=int(engine.gradient_accumulation_steps()),
        held=held(engine, model, stage),
    )


def _strategy(engine: Any, stage: int) -> tuple[str, str | None]:
    if stage not in STRATEGIES:
        return UNKNOWN, "there is no plan for DeepSpeed without a ZeRO stage"
    if int(getattr(engine, "mp_world_size", 1)) > 1 or int(getattr(engine, "sequence_parallel_size", 1)) > 1:
        return UNKNOWN, "there is no plan for DeepSpeed with model or sequence parallelism"
    return STRATEGIES[stage], None


def _options(engine: Any, stage: int) -> dict[str, Any]:
    zero = engine.optimizer
    asked = COMMON | BY_STAGE.get(stage, {})
    told = {name: getattr(engine, method)() for name, method in asked.items() if hasattr(engine, method)}
    # Its defaults of "no limit" are beyond what an integer of a manifest holds.
    options = {name: min(value, MAX_INT) if isinstance(value, int) else value for name, value in told.items()}
    options["reduce_scatter"] = bool(getattr(zero, "reduce_scatter", False))
    clip = float(engine.gradient_clipping() or 0.0)
    options["clip_grad_norm"] = clip or None
    if stage in (1, 2):
        paths = bool(getattr(zero, "use_multi_rank_bucket_allreduce", False))
        padding = [int(numel) for numel in getattr(zero, "groups_padding", ())]
        options |= {"use_multi_rank_bucket_allreduce": paths, "padding_numel": padding}
        options["optimizer"] = type(zero).__name__
        options |= _step_checks(zero)
    told = getattr(engine._config, "grad_accum_dtype", None)  # noqa: SLF001 - only the configuration knows whether it was set
    return options | ({"grad_accum_dtype": dtype_name(engine.get_data_types()[1])} if told else {})


def _step_checks(zero: Any) -> dict[str, bool]:
    """Whether the step of stages 1 and 2 looks for overflow and takes the norm of the gradients.

    In 0.16 to 0.18 `DeepSpeedZeroOptimizer.step` looks for that of float16 only; later ones are told by the engine.
    """
    overflow = getattr(zero, "check_grad_overflow", getattr(zero, "dtype", None) == torch.float16)
    return {"check_grad_overflow": bool(overflow), "compute_grad_norm": bool(getattr(zero, "compute_grad_norm", True))}


def _precision(engine: Any) -> tuple[str | None, str | None]:
    dtype = next((p.dtype for p in engine.module.parameters()), None)
    reduce = engine.communication_data_type
    return dtype_name(dtype), dtype_name(reduce) if isinstance(reduce, torch.dtype) else dtype_name(dtype)


def _buckets(zero: Any) -> list[torch.Tensor]:
    """The buffers of a ZeRO optimizer's buckets: one of stage 3 from the start, lists that come and go of 1 and 2."""
    buffers = [bucket.buffer for bucket in getattr(zero, "ipg_buckets", {}).values()]
    found = [buffer for held in buffers for buffer in (held if isinstance(held, list) else [held])]
    return [buffer for buffer in found if buffer is not None]


def held(engine: Any, model: torch.nn.Module, stage: int) -> Held:
    """Tensors of the ZeRO optimizer outside model and torch's optimizer, by component."""

    def flat() -> dict[str, list[torch.Tensor]]:
        zero = engine.optimizer
        if hasattr(zero, "fp32_groups_flat_partition"):
            # BF16_Optimizer, which stage 1 with fp32 accumulation is, keeps the sums of whole gradients.
            gradients = list(getattr(zero, "fp32_groups_gradients_flat", []))
            return {"optimizer_state": list(zero.fp32_groups_flat_partition), "gradients": gradients}
        state = list(getattr(zero, "single_partition_of_fp32_groups", []))
        return {"optimizer_state": state, "collective_buffers": _buckets(zero)}

    def partitioned() -> dict[str, list[torch.Tensor]]:
        zero, parameters = engine.optimizer, list[Any](model.parameters())
        return {
            "parameters": [p.ds_tensor for p in parameters if getattr(p, "ds_tensor", None) is not None],
            "optimizer_state": list(zero.fp32_partitioned_groups_flat),
            "gradients": [zero.grad_partitions_flat_buffer],
            "collective_buffers": _buckets(zero),
        }

    return partitioned if stage == 3 else flat
