"""Hooks that put the recorder's own names into the trace and watch the order in which gradients become ready."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch.autograd.profiler import record_function

PREFIX = "tracekit::"


def phase(name: Literal["forward", "backward", "optimizer"]) -> record_function:
    """A range `tracekit::<phase>` for loops whose framework names neither its backward nor its optimizer."""
    return record_function(PREFIX + name)


class ForwardMarks:
    """Ranges `tracekit::forward (layers.0)` around the forward of named modules while they are on.

    The root's range is `tracekit::forward` without a name, as FSDP2 names its own. A recomputed forward (activation
    checkpointing) is marked like the first one.
    """

    def __init__(self, modules: Sequence[tuple[str, torch.nn.Module]]) -> None:
        self._modules = list(modules)
        self._handles: list[Any] = []
        self._open: list[record_function] = []

    def turn_on(self) -> None:
        """Adds the hooks; a second call changes nothing."""
        if self._handles:
            return
        for name, module in self._modules:
            self._handles += self._hook(f"{PREFIX}forward ({name})" if name else f"{PREFIX}forward", module)

    def turn_off(self) -> None:
        """Removes the hooks and closes the ranges that an exception left open."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        while self._open:
            self._open.pop().__exit__(None, None, None)

    def _hook(self, label: str, module: torch.nn.Module) -> list[Any]:
        def before(*_: Any) -> None:
            mark = record_function(label)
            mark.__enter__()
            self._open.append(mark)

        def after(*_: Any) -> None:
            if self._open:
                self._open.pop().__exit__(None, None, None)

        # Outermost on both sides, so that a framework's gathering hooks fall inside; always_call: also after an error.
        return [
            module.register_forward_pre_hook(before, prepend=True),
            module.register_forward_hook(after, always_call=True),
        ]


class GradOrder:
    """The names of parameters in the order in which their gradients first became ready, watched by hooks.

    FSDP2 calls these hooks after it has reduced a unit's gradients; other wrappers, after autograd has accumulated one.
    """

    def __init__(self, named: Sequence[tuple[str, torch.nn.Parameter]]) -> None:
        self._names: dict[str, None] = {}
        self._handles = [
            parameter.register_post_accumulate_grad_hook(self._note(name))
            for name, parameter in named
            if parameter.requires_grad
        ]

    def stop(self) -> list[str] | None:
        """Removes the hooks and returns the names; None when none fired."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        return list(self._names) or None

    def _note(self, name: str) -> Any:
        def note(_: torch.Tensor) -> None:
            self._names.setdefault(name)

        return note
