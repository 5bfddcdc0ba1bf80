"""Every strategy that has a plan, by its name."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tracekit.plan.strategies import (
    ddp,
    fsdp1,
    fsdp2,
    fsdp2_graph,
    fsdp2_tp,
    hsdp,
    zero1,
    zero1_deepspeed,
    zero2,
    zero2_fsdp1,
    zero2_fsdp2,
    zero3_deepspeed,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tracekit.manifest import Manifest
    from tracekit.plan.schema import Call, Term


class Strategy(NamedTuple):
    """The expected calls of a strategy, and what of the lesson's closed form they leave out."""

    collectives: Callable[[Manifest], list[Call]]
    absent: Callable[[Manifest], Iterable[Term]]


STRATEGIES = {
    "ddp": Strategy(ddp.collectives, ddp.absent),
    "zero1": Strategy(zero1.collectives, zero1.absent),
    "zero1-deepspeed": Strategy(zero1_deepspeed.collectives, zero1_deepspeed.absent),
    "zero2": Strategy(zero2.collectives, zero2.absent),
    "zero3-deepspeed": Strategy(zero3_deepspeed.collectives, zero3_deepspeed.absent),
    "zero2-fsdp1": Strategy(zero2_fsdp1.collectives, zero2_fsdp1.absent),
    "fsdp1": Strategy(fsdp1.collectives, fsdp1.absent),
    "fsdp2": Strategy(fsdp2.collectives, fsdp2.absent),
    "zero2-fsdp2": Strategy(zero2_fsdp2.collectives, zero2_fsdp2.absent),
    "hsdp": Strategy(hsdp.collectives, hsdp.absent),
    "fsdp2-tp": Strategy(fsdp2_tp.collectives, fsdp2_tp.absent),
    "fsdp2-graph": Strategy(fsdp2_graph.collectives, fsdp2_graph.absent),
}
