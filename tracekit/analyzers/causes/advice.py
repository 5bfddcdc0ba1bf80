"""Advice against each cause of exposed communication: what to change, by the name that the run's framework has for it.

One table, `ADVICE`. An entry has a sentence that holds for every framework, and the knobs of those that have one: each
with the collectives that it acts on and the test that it is still off. A knob is offered only where the manifest names
its framework and says that it is off; a trace without manifest gets the sentence alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tracekit.strategies import STRATEGIES

if TYPE_CHECKING:
    from tracekit.manifest import Manifest

Off = Callable[["Manifest"], bool]
GATHERS, REDUCTIONS = ("all_gather", "broadcast"), ("reduce_scatter", "all_reduce", "reduce")
DDP, FSDP1, FSDP2, DEEPSPEED = "torch DDP", "torch FSDP1", "torch FSDP2", "DeepSpeed"


def _unset(option: str) -> Off:
    """Whether the manifest has an option, as off or 0: what it does not tell may be on."""
    return lambda manifest: option in manifest.options and not manifest.options[option]


def _set(option: str) -> Off:
    return lambda manifest: bool(manifest.options.get(option))


def _always(_: Manifest) -> bool:
    """For what is a matter of size, and never on or off."""
    return True


def _reduces_in_full(manifest: Manifest) -> bool:
    return (manifest.precision.reduce_dtype or manifest.precision.storage_dtype) == "float32"


def _gathers_in_full(manifest: Manifest) -> bool:
    return (manifest.precision.param_dtype or manifest.precision.storage_dtype) == "float32"


def _reduces_each_micro_batch(manifest: Manifest) -> bool:
    return manifest.micro_batches > 1 and manifest.options.get("sync_every_micro_batch", True) is not False


def _frees_units(manifest: Manifest) -> bool:
    """Whether backward gathers anything again: some unit beside the root is freed after forward."""
    return any(unit.name and unit.reshard_after_forward is not False for unit in manifest.units)


def _on_gpus(manifest: Manifest) -> bool:
    return manifest.backend != "gloo"


@dataclass(frozen=True)
class Knob:
    """A setting of one framework: `kinds` are the collectives that it acts on, `phases` when (all where empty)."""

    framework: str
    text: str
    kinds: tuple[str, ...]
    off: Off
    phases: tuple[str, ...] = ()

    def fits(self, manifest: Manifest, kind: str | None, phase: str | None) -> bool:
        """Whether the run could turn it, and that would act on such a collective."""
        return kind in self.kinds and (not self.phases or phase in self.phases) and self.off(manifest)


@dataclass(frozen=True)
class Advice:
    """What to do about a cause: `text` always, and `tensor_parallel` instead where an axis `tp` is what waits."""

    text: str
    knobs: tuple[Knob, ...] = field(default=())
    tensor_parallel: str | None = None


# Knobs that shrink what crosses the link. Names as of torch.distributed.fsdp (FullyShardedDataParallel, fully_shard),
# torch.nn.parallel.DistributedDataParallel and DeepSpeed's configuration.
_SMALLER = (
    Knob(
        FSDP2, "reshard_after_forward=False keeps what forward gathered", ("all_gather",), _frees_units, ("backward",)
    ),
    Knob(FSDP2, "MixedPrecisionPolicy(param_dtype=torch.bfloat16) gathers half", ("all_gather",), _gathers_in_full),
    Knob(FSDP2, "MixedPrecisionPolicy(reduce_dtype=torch.bfloat16) reduces half", REDUCTIONS, _reduces_in_full),
    Knob(FSDP2, "set_requires_gradient_sync(False) before the last micro-batch", REDUCTIONS, _reduces_each_micro_batch),
    Knob(
        FSDP1,
        "ShardingStrategy.SHARD_GRAD_OP keeps what forward gathered",
        ("all_gather",),
        _frees_units,
        ("backward",),
    ),
    Knob(FSDP1, "MixedPrecision(param_dtype=torch.bfloat16) gathers half", ("all_gather",), _gathers_in_full),
    Knob(FSDP1, "MixedPrecision(reduce_dtype=torch.bfloat16) reduces half", REDUCTIONS, _reduces_in_full),
    Knob(FSDP1, "no_sync() before the last micro-batch", REDUCTIONS, _reduces_each_micro_batch),
    Knob(DDP, "bf16_compress_hook halves the buckets", ("all_reduce",), _reduces_in_full),
    Knob(DDP, "no_sync() before the last micro-batch", ("all_reduce",), _reduces_each_micro_batch),
    Knob(DDP, "broadcast_buffers=False", ("broadcast",), _set("broadcast_buffers"), ("forward", "other")),
    Knob(DEEPSPEED, 'communication_data_type "bf16" halves the buckets', REDUCTIONS, _reduces_in_full),
)
ADVICE: dict[str, Advice] = {
    "late rank": Advice(
        "another rank came later: look at that rank's data loading, its clock speed or an uneven batch",
        tensor_parallel="another rank of the tensor-parallel group came later: look at that rank's data loading and "
        "clock speed, for each layer waits for it again",
    ),
    "waits for its sender": Advice(
        "the rank that sends had nothing to send yet: more micro-batches, an interleaved schedule, stages of equal work"
    ),
    "waits for its receiver": Advice(
        "the rank that receives was not there yet: post its receives earlier, stages of equal work"
    ),
    "point-to-point": Advice(
        "the transfer itself, or a wait for a peer whose part is not known: batched or earlier sends and receives, "
        "more micro-batches"
    ),
    "first use": Advice(
        "nothing ran before it to hide under: make what it brings smaller, or bring it in the step before",
        (
            Knob(FSDP2, "model.unshard(async_op=True) before the batch is loaded", ("all_gather",), _on_gpus),
            Knob(DDP, "broadcast_buffers=False", ("broadcast",), _set("broadcast_buffers")),
        ),
    ),
    "end of step": Advice(
        "nothing is left to hide it under: make the last of the step smaller, or overlap it with the next step",
        (
            Knob(
                DDP,
                "a smaller bucket_cap_mb, so that less is left for the last bucket",
                ("all_reduce",),
                _always,
            ),
            Knob(
                FSDP2,
                "units of their own for embedding and output, so that the root's is small",
                REDUCTIONS,
                _always,
            ),
            Knob(
                FSDP1,
                "units of their own for embedding and output, so that the root's is small",
                REDUCTIONS,
                _always,
            ),
            Knob(
                DEEPSPEED,
                "a smaller reduce_bucket_size, so that less is left for the last bucket",
                REDUCTIONS,
                _always,
            ),
            Knob(
                DEEPSPEED,
                "a larger allgather_bucket_size for fewer gathers",
                ("all_gather",),
                _set("allgather_bucket_size"),
            ),
        ),
    ),
    "serialised": Advice(
        "it waited behind another collective on its lane: fewer, larger collectives, or a stream of its own",
        (
            Knob(DDP, "a larger bucket_cap_mb for fewer buckets", ("all_reduce",), _always),
            Knob(DEEPSPEED, "a larger reduce_bucket_size for fewer buckets", REDUCTIONS, _always),
            Knob(FSDP2, "larger units, or several blocks in one fully_shard", (*GATHERS, *REDUCTIONS), _always),
            Knob(FSDP1, "larger units in the auto_wrap_policy", (*GATHERS, *REDUCTIONS), _always),
        ),
    ),
    "launched late": Advice(
        "the device ran dry before the CPU issued it: torch.compile, CUDA graphs, larger micro-batches"
    ),
    "no prefetch": Advice(
        "issued only when it was needed: gather the next unit while this one computes",
        (
            Knob(FSDP2, "set_modules_to_forward_prefetch", ("all_gather",), _unset("forward_prefetch"), ("forward",)),
            Knob(
                FSDP2, "set_modules_to_backward_prefetch", ("all_gather",), _unset("backward_prefetch"), ("backward",)
            ),
            Knob(FSDP2, "asynchronous gathers (_set_unshard_async_op)", ("all_gather",), _unset("async_unshard")),
            Knob(FSDP1, "forward_prefetch=True", ("all_gather",), _unset("forward_prefetch"), ("forward",)),
            Knob(DEEPSPEED, "a stage3_prefetch_bucket_size", ("all_gather",), _unset("stage3_prefetch_bucket_size")),
            Knob(DDP, "broadcast_buffers=False", ("broadcast",), _set("broadcast_buffers")),
        ),
        tensor_parallel="the layer computes with what is gathered and nothing else is there: asynchronous tensor "
        "parallelism, or a smaller tp",
    ),
    "synchronous": Advice(
        "the computing thread waited for it: issue it asynchronously where the framework can",
        (
            Knob(FSDP2, "asynchronous gathers (_set_unshard_async_op)", ("all_gather",), _unset("async_unshard")),
            Knob(DEEPSPEED, "a smaller reduce_bucket_size, for compute waits for the bucket", REDUCTIONS, _always),
            Knob(
                DEEPSPEED,
                "overlap_comm, so that compute does not wait for the bucket",
                REDUCTIONS,
                _unset("overlap_comm"),
            ),
            Knob(DDP, "a smaller bucket_cap_mb, so that reductions begin earlier", ("all_reduce",), _always),
        ),
        tensor_parallel="the next layer needs its result at once: asynchronous tensor parallelism, or a smaller tp",
    ),
    "link": Advice(
        "it takes longer than the compute that could hide it: larger micro-batches, fewer bytes or a faster link",
        _SMALLER,
        tensor_parallel="it takes longer than the compute that could hide it: a smaller tp, inside one node",
    ),
}
CAUSES = tuple(ADVICE)


def advice(manifest: Manifest | None, cause: str, kind: str | None, phase: str | None, axis: str | None) -> str:
    """What to try against a cause for collectives of a kind, phase and mesh axis; a sentence without its full stop."""
    entry = ADVICE[cause]
    if axis == "tp" and entry.tensor_parallel is not None:
        return entry.tensor_parallel
    strategy = STRATEGIES.get(manifest.strategy) if manifest is not None else None
    if manifest is None or strategy is None or axis == "tp":
        return entry.text
    knobs = [k.text for k in entry.knobs if k.framework == strategy.framework and k.fits(manifest, kind, phase)]
    return f"{entry.text}; try {', or '.join(knobs)}" if knobs else entry.text
