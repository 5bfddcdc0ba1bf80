"""The registry of strategies: what each is called, what it claims to be, its defaults, and where it is planned and run.

Everything that depends on a strategy's name reads it here: the training programs, the plans, the closed forms, the
ledger, the sentences of a report and `docs/strategies.md`. To add one, append an entry to `_OURS` and write its file
in `tracekit/plan/strategies/`; a training program in `runners/strategies/` may follow. Nothing here needs torch or
polars: planners and runners are named by their modules and imported when they are asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from tracekit.errors import UsageError
from tracekit.text import suggestion

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracekit.reference_models import Size

    Defaults = Callable[[Size], dict[str, Any]]

# What is computed again in backward: nothing, whole blocks, or all but attention and every second matrix product.
CHECKPOINTING = ("none", "full", "selective-op")

_MIB = 1 << 20
# The bucket sizes of torch (25 MiB) and DeepSpeed (5e8 elements) would hold a small model whole: one reduction, after
# backward, and nothing hidden. The training programs therefore take a quarter of the model where that is less.
_BUCKETS_A_MODEL = 4
_TORCH_BUCKET_MB, _DEEPSPEED_BUCKET_NUMEL = 25.0, 500_000_000
# DeepSpeed's own limits of stage 3, in elements. A model below the reuse distance would be gathered once and never
# freed; below it nothing is gathered ahead, kept for reuse or kept whole but vectors.
_PREFETCH_NUMEL, _PERSISTENCE_NUMEL, _REUSE_NUMEL = 50_000_000, 100_000, 1_000_000_000


@dataclass(frozen=True)
class Strategy:
    """One strategy.

    `title` is its name in a sentence, `stage` the ZeRO stage that it claims. `planner` and `runner` are modules: the
    first has `collectives`, `absent` and `memory`, the second is None where there is no training program. `axes` are
    those of its mesh. Of the types, a `reduce_dtype` or `storage_dtype` of None is the type computed in. `defaults`
    gives the options that follow from the size of the model, as a manifest has them; `options` names those that its
    plan takes. `dry_run`: torch's own code can issue its collectives without data;
    `dry_step` tells how a step runs in one process: `without data`, `with data` (small models only), or not at all.
    """

    name: str
    title: str
    stage: int
    framework: str
    planner: str
    runner: str | None = None
    axes: tuple[str, ...] = ("dp_shard",)
    param_dtype: str = "bfloat16"
    reduce_dtype: str | None = "float32"
    storage_dtype: str | None = "float32"
    defaults: Defaults = lambda _size: {}
    options: frozenset[str] = frozenset()
    dry_run: bool = False
    dry_step: Literal["without data", "with data", "not at all"] = "with data"

    @property
    def extra(self) -> str:
        """The extra that recording it needs."""
        return "deepspeed" if self.framework == "DeepSpeed" else "record"


def ddp_defaults(size: Size) -> dict[str, Any]:
    """MiB of a bucket of fp32 gradients: torch's own, or a quarter of the model."""
    quarter = size.num_params() * 4 / _BUCKETS_A_MODEL / _MIB
    return {"bucket_mb": min(quarter, _TORCH_BUCKET_MB), "broadcast_buffers": True}


def deepspeed_defaults(size: Size) -> dict[str, Any]:
    """Elements of a bucket of gradients, and whether its reduction overlaps with backward."""
    bucket = min(size.num_params() // _BUCKETS_A_MODEL, _DEEPSPEED_BUCKET_NUMEL)
    return {"overlap_comm": True, "reduce_bucket_size": bucket}


def deepspeed_flat_defaults(size: Size) -> dict[str, Any]:
    """Stages 1 and 2: gathers as large as the buckets, and DeepSpeed's own way of reducing."""
    common = deepspeed_defaults(size)
    gathered = {"allgather_bucket_size": common["reduce_bucket_size"]}
    return common | gathered | {"reduce_scatter": True, "use_multi_rank_bucket_allreduce": True}


def deepspeed_stage3_defaults(size: Size) -> dict[str, Any]:
    """Stage 3: how much is gathered ahead, kept for reuse, and so small that it stays whole."""
    big = size.num_params() > _REUSE_NUMEL
    return deepspeed_defaults(size) | {
        "stage3_prefetch_bucket_size": _PREFETCH_NUMEL if big else 0,
        "stage3_param_persistence_threshold": min(_PERSISTENCE_NUMEL, size.dim + 1),
        "stage3_max_reuse_distance": _REUSE_NUMEL if big else 0,
    }


# What every training program takes, whether its plan changes or not.
_COMMON = frozenset({"activation_checkpointing", "clip_grad_norm", "backend"})
_DDP = _COMMON | {
    "bucket_mb",
    "broadcast_buffers",
    "compile",
    "sync_every_micro_batch",
    "find_unused_parameters",
    "static_graph",
}
_STAGES = _COMMON | {"reduce_bucket_size", "reduce_scatter", "overlap_comm", "grad_accum_dtype"}
_STAGES_1_AND_2 = _STAGES | {"use_multi_rank_bucket_allreduce", "check_grad_overflow", "compute_grad_norm"}
_STAGE_3 = _STAGES | {
    "stage3_prefetch_bucket_size",
    "stage3_param_persistence_threshold",
    "stage3_model_persistence_threshold",
    "stage3_max_reuse_distance",
    "stage3_max_live_parameters",
}
_FSDP1 = _COMMON | {"sync_every_micro_batch"}
_FSDP2 = _FSDP1 | {"backward_prefetch", "ignored_parameters", "reshard_after_backward"}

_OURS = (
    Strategy(
        name="ddp",
        title="DDP",
        stage=0,
        framework="torch DDP",
        planner="tracekit.plan.strategies.ddp",
        runner="runners.strategies.ddp",
        axes=("dp_replicate",),
        defaults=ddp_defaults,
        options=_DDP,
    ),
    Strategy(
        name="zero1",
        title="ZeRO-1",
        stage=1,
        framework="torch DDP",
        planner="tracekit.plan.strategies.zero1",
        runner="runners.strategies.zero1",
        axes=("dp_replicate",),
        defaults=ddp_defaults,
        options=_DDP,
    ),
    Strategy(
        name="zero1-deepspeed",
        title="DeepSpeed's stage 1",
        stage=1,
        framework="DeepSpeed",
        planner="tracekit.plan.strategies.zero1_deepspeed",
        runner="runners.strategies.zero1_deepspeed",
        reduce_dtype=None,
        storage_dtype=None,
        defaults=deepspeed_flat_defaults,
        options=_STAGES_1_AND_2 | {"optimizer"},
    ),
    Strategy(
        name="zero2",
        title="DeepSpeed's stage 2",
        stage=2,
        framework="DeepSpeed",
        planner="tracekit.plan.strategies.zero2",
        runner="runners.strategies.zero2",
        reduce_dtype=None,
        storage_dtype=None,
        defaults=deepspeed_flat_defaults,
        options=_STAGES_1_AND_2,
    ),
    Strategy(
        name="zero2-fsdp1",
        title="FSDP1 with SHARD_GRAD_OP",
        stage=2,
        framework="torch FSDP1",
        planner="tracekit.plan.strategies.zero2_fsdp1",
        runner="runners.strategies.zero2_fsdp1",
        options=_FSDP1,
    ),
    Strategy(
        name="zero2-fsdp2",
        title="FSDP2 without resharding",
        stage=2,
        framework="torch FSDP2",
        planner="tracekit.plan.strategies.zero2_fsdp2",
        runner="runners.strategies.zero2_fsdp2",
        options=_FSDP2,
        dry_run=True,
        dry_step="without data",
    ),
    Strategy(
        name="zero3-deepspeed",
        title="DeepSpeed's stage 3",
        stage=3,
        framework="DeepSpeed",
        planner="tracekit.plan.strategies.zero3_deepspeed",
        runner="runners.strategies.zero3_deepspeed",
        reduce_dtype=None,
        storage_dtype=None,
        defaults=deepspeed_stage3_defaults,
        options=_STAGE_3,
    ),
    Strategy(
        name="fsdp1",
        title="FSDP1",
        stage=3,
        framework="torch FSDP1",
        planner="tracekit.plan.strategies.fsdp1",
        runner="runners.strategies.fsdp1",
        options=_FSDP1,
        dry_step="without data",
    ),
    Strategy(
        name="fsdp2",
        title="FSDP2",
        stage=3,
        framework="torch FSDP2",
        planner="tracekit.plan.strategies.fsdp2",
        runner="runners.strategies.fsdp2",
        options=_FSDP2,
        dry_run=True,
        dry_step="without data",
    ),
    Strategy(
        name="hsdp",
        title="HSDP",
        stage=3,
        framework="torch FSDP2",
        planner="tracekit.plan.strategies.hsdp",
        runner="runners.strategies.hsdp",
        axes=("dp_replicate", "dp_shard"),
        options=_FSDP2 | {"all_reduce_every_micro_batch"},
        dry_run=True,
        dry_step="without data",
    ),
    Strategy(
        name="fsdp2-tp",
        title="FSDP2 with tensor parallelism",
        stage=3,
        framework="torch FSDP2",
        planner="tracekit.plan.strategies.fsdp2_tp",
        runner="runners.strategies.fsdp2_tp",
        axes=("dp_shard", "tp"),
        options=_FSDP2 | {"batch_size", "seq_len"},
        dry_run=True,
        dry_step="without data",
    ),
    Strategy(
        name="fsdp2-graph",
        title="FSDP2 in the compiled graph",
        stage=3,
        framework="torch DTensor and torch.compile",
        planner="tracekit.plan.strategies.fsdp2_graph",
        runner="runners.strategies.fsdp2_graph",
        options=_COMMON,
        dry_step="not at all",
    ),
)
STRATEGIES: dict[str, Strategy] = {strategy.name: strategy for strategy in _OURS}


def register(strategy: Strategy) -> None:
    """Adds a strategy for the rest of the process, for plans and tables as much as those of this module.

    Raises:
        ValueError: its name is taken.
    """
    if strategy.name in STRATEGIES:
        raise ValueError(f"there is a strategy {strategy.name!r} already; give yours another name")
    STRATEGIES[strategy.name] = strategy


def find(name: str, option: str = "--strategy") -> Strategy:
    """The strategy of that name; `option` is where the name was given.

    Raises:
        UsageError: there is none; the message offers the nearest name, or all of them.
    """
    if name not in STRATEGIES:
        raise UsageError(f"{option} {name} is unknown: {suggestion(name, STRATEGIES)}")
    return STRATEGIES[name]


def title(name: str) -> str:
    """The strategy's name in a sentence: the name itself where it is not registered."""
    return STRATEGIES[name].title if name in STRATEGIES else name


def with_runner() -> list[str]:
    """The names of those that a training program exists for."""
    return [name for name, strategy in STRATEGIES.items() if strategy.runner is not None]
