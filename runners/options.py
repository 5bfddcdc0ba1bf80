"""The options that belong to strategies, each defined once; a strategy says by name which of them it takes."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tracekit.strategies import CHECKPOINTING

YES_NO = argparse.BooleanOptionalAction


def reshard(text: str) -> bool | int | None:
    """`--reshard-after-forward`: None for "default" (torch decides), true, false, or the size of a group."""
    words = {"default": None, "true": True, "false": False}
    return words[text] if text in words else positive(text)


def reshard_of_unit(text: str) -> tuple[str, bool | int | None]:
    """`--reshard UNIT=SETTING`; "root" is the unit ""."""
    name, equals, setting = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} names no setting; write UNIT=true, UNIT=false or UNIT=N")
    return "" if name == "root" else name, reshard(setting)


def positive(text: str) -> int:
    """A whole number of 1 or more."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number above 0")
    return int(text)


def depth(text: str) -> int:
    """A whole number of 0 or more."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number")
    return int(text)


def positive_real(text: str) -> float:
    """A finite number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")
    return value


OPTIONS: dict[str, dict[str, Any]] = {
    "freeze": {
        "action": "append",
        "metavar": "REGEX",
        "help": "parameters whose names it finds get no gradient; may be given again",
    },
    "activation-checkpointing": {
        "choices": CHECKPOINTING,
        "nargs": "?",
        "const": "full",
        "default": "none",
        "help": "recompute blocks in backward (full, which the bare flag means), or all of them but attention and "
        "every second matrix product (selective-op)",
    },
    "clip-grad-norm": {
        "type": positive_real,
        "metavar": "NORM",
        "help": "scale gradients to this norm, over all ranks, before the optimizer's step",
    },
    "sync-every-micro-batch": {
        "action": YES_NO,
        "default": True,
        "help": "reduce gradients after every micro-batch, or only after the last one",
    },
    "all-reduce-every-micro-batch": {
        "action": YES_NO,
        "default": True,
        "help": "all-reduce over dp_replicate after every micro-batch, or only after the last one",
    },
    "bucket-mb": {"type": positive_real, "help": "MiB of a gradient bucket; a quarter of the model or 25, if less"},
    "broadcast-buffers": {"action": YES_NO, "default": True, "help": "send rank 0's buffers before every forward"},
    "bucket-numel": {
        "type": positive,
        "help": "elements of a gradient bucket and of an all-gather; a quarter of the model or DeepSpeed's own 5e8, "
        "if less",
    },
    "grad-accum-dtype": {"choices": ["float32", "bfloat16", "float16"], "help": "dtype that gradients add up in"},
    "grad-path": {
        "choices": ["bucket-all-reduce", "reduce-to-owner", "plain-all-reduce"],
        "default": "bucket-all-reduce",
        "help": "DeepSpeed's ways: all-reduce of what several ranks own (its default), one reduce to each owner, or "
        "all-reduce of whole buckets",
    },
    "prefetch-numel": {
        "type": depth,
        "help": "elements gathered ahead at every module; DeepSpeed's own 5e7, or 0 below 1e9 parameters",
    },
    "persistence-numel": {
        "type": depth,
        "help": "parameters with fewer elements stay gathered; DeepSpeed's own 1e5 or all vectors, if less",
    },
    "model-persistence-numel": {
        "type": depth,
        "help": "elements that stay gathered in all, the first parameters that fit; DeepSpeed's own: no limit",
    },
    "max-reuse-numel": {
        "type": depth,
        "help": "keep a parameter that is used again within so many elements; DeepSpeed's own 1e9, or 0 below 1e9 "
        "parameters",
    },
    "reshard-after-forward": {
        "type": reshard,
        "default": None,
        "metavar": "default|true|false|N",
        "help": "free a unit's gathered parameters after its forward, or keep them on groups of N ranks; the default "
        "is torch's: free all units but the root",
    },
    "reshard": {
        "type": reshard_of_unit,
        "action": "append",
        "metavar": "UNIT=SETTING",
        "help": "the same for one unit, as in layers.0=false or root=true; may be given again",
    },
    "forward-prefetch": {
        "type": depth,
        "default": 0,
        "metavar": "N",
        "help": "gather the next N blocks ahead in forward (0: torch's own order)",
    },
    "backward-prefetch": {
        "type": depth,
        "default": 0,
        "metavar": "N",
        "help": "gather the next N blocks ahead in backward (0: torch's own, which is 1)",
    },
    "async-unshard": {
        "action": "store_true",
        "help": "issue all-gathers asynchronously: on a CPU nothing is hidden without it (on a GPU streams do that)",
    },
    "dp-replicate": {"type": positive, "default": 2, "metavar": "N", "help": "replicas of the sharded model"},
    "tp": {"type": positive, "default": 2, "metavar": "N", "help": "ranks that split every matrix of a block"},
    "compile": {"choices": ["blocks", "model"], "help": "torch.compile every block, or the model as a whole"},
    "compile-backend": {
        "choices": ["inductor", "aot_eager"],
        "help": "inductor on GPUs and aot_eager on CPUs unless given: the graphs are the same, compiled or not",
    },
}
EVERYWHERE = frozenset({"freeze", "activation-checkpointing", "clip-grad-norm"})


def add(parser: argparse.ArgumentParser, takes: Collection[str]) -> None:
    """Adds the options that a strategy takes."""
    for option, about in OPTIONS.items():
        if option in takes:
            parser.add_argument(f"--{option}", **about)


def refusal(left: Sequence[str], name: str, refuses: Mapping[str, str]) -> str:
    """One sentence about the arguments that the parser did not know; of other strategies' options, why not."""
    for text in left:
        option = text.partition("=")[0].removeprefix("--").removeprefix("no-")
        if option in OPTIONS:
            return f"{name} has no --{option}: {refuses.get(option, 'leave it out')}"
    return f"unrecognized arguments: {' '.join(left)}"


def told(args: argparse.Namespace, takes: Collection[str]) -> dict[str, Any]:
    """A strategy's options as the manifest has them: names with underscores, values as JSON takes them."""
    values: dict[str, Any] = {}
    for option in sorted(takes):
        value = getattr(args, option.replace("-", "_"))
        values[option.replace("-", "_")] = dict(value) if option == "reshard" and value else value
    return values
