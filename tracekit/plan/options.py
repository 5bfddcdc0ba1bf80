"""Options of a plan that a user gives by name, checked: which a strategy's plan takes, and which values."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tracekit.dtypes import ITEM_SIZES
from tracekit.errors import UsageError
from tracekit.strategies import CHECKPOINTING, find
from tracekit.text import suggestion

if TYPE_CHECKING:
    from collections.abc import Iterable

_FLAGS = frozenset(
    {
        *("all_reduce_every_micro_batch", "broadcast_buffers", "check_grad_overflow"),
        *("compute_grad_norm", "overlap_comm", "reduce_scatter", "reshard_after_backward", "sync_every_micro_batch"),
        *("use_multi_rank_bucket_allreduce", "find_unused_parameters", "static_graph"),
    }
)
_TEXTS = {
    "activation_checkpointing": CHECKPOINTING,
    "backend": ("gloo", "nccl"),
    "compile": ("blocks", "model"),
    "grad_accum_dtype": tuple(ITEM_SIZES),
    "optimizer": ("BF16_Optimizer",),
}
_LISTS = frozenset({"ignored_parameters"})


def read(given: Iterable[str]) -> dict[str, Any]:
    """NAME=VALUE pairs by name, dashes as underscores; values are read as JSON where they are, else as text.

    Raises:
        UsageError: a pair has no name or no value.
    """
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


def check_names(strategy: str, options: Iterable[str]) -> None:
    """Raises UsageError for an option that the strategy's plan does not take."""
    known = sorted(find(strategy).options)
    for name in options:
        if name not in known:
            raise UsageError(f"--option {name}: the plan of {strategy} does not take it: {suggestion(name, known)}")


def check_values(options: dict[str, Any]) -> None:
    """Raises UsageError for a value that is not what its option takes; null is the default of each."""
    for name, value in options.items():
        wanted = _problem(name, value) if value is not None else None
        if wanted:
            raise UsageError(f"--option {name}={json.dumps(value)}: give {wanted}")


def _problem(name: str, value: Any) -> str | None:
    """Values that the option takes, where this is another; None where it is one of them."""
    if name in _FLAGS or (name == "activation_checkpointing" and isinstance(value, bool)):
        return None if isinstance(value, bool) else "true or false"
    if name in _TEXTS:
        return None if value in _TEXTS[name] else " or ".join(_TEXTS[name])
    if name in _LISTS:
        named = isinstance(value, list) and all(isinstance(entry, str) for entry in value)
        return None if named else 'a list of names, as in ["first.weight"]'
    if name in _numbers():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return None if number and 0 <= value <= 2**53 else "a number of 0 or more"
    return None


def _numbers() -> set[str]:
    """Every other option is a number."""
    from tracekit.strategies import STRATEGIES

    every = {name for strategy in STRATEGIES.values() for name in strategy.options}
    return every - _FLAGS - _TEXTS.keys() - _LISTS
